"""Copy fetched jars under their plain names, except artifacts that pyspark ships itself.

Usage: ``collect_jars.py FROM TO``. With two versions of one class on its class path, Spark may load either.
"""

import re
import shutil
import sys
from pathlib import Path

import pyspark


def artifact(name: str) -> str:
    """Return a jar's artifact, the part before its version: ``jackson-core`` for ``jackson-core-2.15.jar``."""
    return re.sub(r"-\d[\w.]*(-[\w.]+)?\.jar$", "", name)


def main(source: Path, target: Path) -> None:
    """Copy the jars of `source` that Spark does not ship into `target`."""
    shipped = {artifact(p.name) for p in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    target.mkdir(parents=True, exist_ok=True)
    for jar in sorted(source.glob("*.jar")):
        plain = jar.name.split("_", 1)[1] if "_" in jar.name else jar.name  # Ivy writes GROUP_ARTIFACT-VERSION.jar
        if artifact(plain) in shipped or plain.startswith("jackson-"):  # Spark's own Jackson, in Spark's version
            continue
        shutil.copy2(jar, target / plain)
        print(plain)
    if not any(target.glob("delta-spark_*.jar")):
        sys.exit("delta-spark was not among the fetched jars")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
