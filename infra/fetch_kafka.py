"""Fetch the Kafka broker of the tests, ``kafka_jars.txt``, into a folder: `python infra/fetch_kafka.py FOLDER`."""

import shutil
import sys
import tempfile
from pathlib import Path

import pyspark
from latecomer.lake.errors import InputError
from latecomer.spark.engine import jars


def main(target: Path) -> None:
    """Fetch all jars, and put them into `target` once they are there."""
    (scala,) = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")  # Spark's Ivy leaves it out
    with tempfile.TemporaryDirectory() as folder:
        files = jars.download(Path(folder), Path(__file__).with_name("kafka_jars.txt"))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in (*files.values(), scala):
            shutil.copy(file, target)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except InputError as error:
        sys.exit(str(error))
