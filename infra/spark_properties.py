"""Write a properties file for ``spark-submit``: what it must know before Python runs.

Given with ``--properties-file`` it makes ``spark-submit submit.py ...`` the same driver as the ``latecomer`` command. It is no
``spark-defaults.conf``: a folder of those (``SPARK_CONF_DIR``) stands in the class path, and the JVM then passes the class archive over.
"""

import sys
from pathlib import Path

from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import settings

OF_THE_JVM = ("spark.driver.extraClassPath", "spark.driver.extraJavaOptions", "spark.executor.extraClassPath")


def main(file: Path, deployment: Path | None = None) -> None:
    """One ``key value`` a line: all that the command sets; with `deployment`, its lines and what a JVM needs to start here."""
    found = settings(Lake("."))
    names = sorted(found) if deployment is None else OF_THE_JVM
    lines = [f"{name} {found[name]}\n" for name in names]
    given = "" if deployment is None else deployment.read_text(encoding="utf-8")
    file.write_text("".join(lines) + given, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
