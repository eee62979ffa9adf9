"""Copy fetched jars under their plain names, leaving out every artifact that pyspark ships itself.

Usage: ``collect_jars.py FROM TO``. Two versions of one class on Spark's class path are worse than none.
"""

import re
import shutil
import sys
from pathlib import Path

import pyspark


def artifact(name: str) -> str:
    """``jackson-core`` of ``com.fasterxml_jackson-core-2.15.jar`` (as Ivy names it, the group already removed)."""
    return re.sub(r"-\d[\w.]*(-[\w.]+)?\.jar$", "", name)


def main(source: Path, target: Path) -> None:
    """Copy what Spark does not have."""
    shipped = {artifact(p.name) for p in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    target.mkdir(parents=True, exist_ok=True)
    for jar in sorted(source.glob("*.jar")):
        plain = jar.name.split("_", 1)[1] if "_" in jar.name else jar.name
        if artifact(plain) in shipped or plain.startswith("jackson-"):  # Spark's own Jackson, in Spark's version
            continue
        shutil.copy2(jar, target / plain)
        print(plain)
    if not any(target.glob("delta-spark_*.jar")):
        sys.exit("delta-spark was not among the fetched jars")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
