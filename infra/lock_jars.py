"""Write the locks: every jar that the artifacts of a list bring and Spark lacks, with its SHA-256 hash.

`make lock-jars` runs it. With two versions of one class on its class path, Spark may load either.
"""

import hashlib
import re
import sys
import tempfile
from pathlib import Path

import pyspark
from latecomer.spark.engine import jars


def artifact(name: str) -> str:
    """Return a jar's artifact, the part before its version: ``jackson-core`` for ``jackson-core-2.15.jar``."""
    return re.sub(r"-\d[\w.]*(-[\w.]+)?\.jar$", "", name)


def main(optional: str | None) -> None:
    """Fetch the jars of ``jars.txt`` or of an optional set, and write one line per jar that Spark does not ship."""
    listing = jars.listing(optional)
    shipped = {artifact(file.name) for file in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n"
            for name, file in sorted(jars.download(Path(folder), listing).items())
            if artifact(name) not in shipped and not name.startswith("jackson-")  # Spark's own Jackson, in its version
        ]
    artifacts, _ = jars.coordinates(listing)
    if not any(artifacts[0].split(":")[1] in line for line in lines):
        sys.exit(f"{artifacts[0]} was not among the fetched jars")
    listing.with_suffix(".lock").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    for optional in (None, *jars.SETS):
        main(optional)
