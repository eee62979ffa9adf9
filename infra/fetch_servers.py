"""Fetch servers of the tests into folders: `python infra/fetch_servers.py FOLDER` makes ``FOLDER/kafka`` and others.

Each is the artifacts of a list in this folder, as ``kafka_jars.txt``.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import pyspark
from latecomer.lake.errors import InputError
from latecomer.spark.engine import jars

HERE = Path(__file__).parent
SPARK = Path(pyspark.__file__).parent / "jars"
OF_SPARK = {
    "kafka": ("scala-library-*",),  # Spark's Ivy leaves it out
    "hdfs": ("hadoop-client-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*"),
}
"""Jars of pyspark that a server needs too."""


def main(target: Path) -> None:
    """Fetch every server whose list has changed, and put its jars into its folder once they are there."""
    for server, patterns in OF_SPARK.items():
        listing, place = HERE / f"{server}_jars.txt", target / server
        wanted = listing.read_text(encoding="utf-8")
        if (place / "fetched").is_file() and (place / "fetched").read_text(encoding="utf-8") == wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            files = jars.download(Path(folder), listing)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            for file in (*files.values(), *(file for pattern in patterns for file in SPARK.glob(f"{pattern}.jar"))):
                shutil.copy(file, place)
        (place / "fetched").write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except InputError as error:
        sys.exit(str(error))
