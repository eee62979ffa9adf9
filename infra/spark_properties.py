"""Write a properties file for ``spark-submit`` with the settings that a JVM needs before Python runs.

Given with ``--properties-file``, the file makes ``spark-submit submit.py ...`` the same driver as the ``latecomer``
command. It is not a ``spark-defaults.conf``: Spark puts the folder of such a file (``SPARK_CONF_DIR``) on the class
path, and the JVM then ignores the class archive. With ``--portable`` the file is for another machine than this one, as
that of an image is.
"""

import sys
from pathlib import Path

from latecomer.lake.lake import Lake
from latecomer.spark.engine.session import settings

JVM_SETTINGS = [
    f"spark.{process}.extra{kind}" for process in ("driver", "executor") for kind in ("ClassPath", "JavaOptions")
]

OF_THE_MACHINE = {"spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions", "spark.sql.warehouse.dir"}
"""Settings that follow from the cores, the memory and the folders of the machine that this runs on."""


def main(file: Path, deployment: Path | None = None, *, portable: bool = False) -> None:
    """Write one ``key value`` pair per line.

    Parameters
    ----------
    file
        The properties file to write.
    deployment
        A properties file of a deployment. Its lines replace all settings of the command but those of the JVM.
    portable
        Leave out `OF_THE_MACHINE`.
    """
    values = settings(Lake("."))
    keys = sorted(values.keys() - (OF_THE_MACHINE if portable else set())) if deployment is None else JVM_SETTINGS
    lines = [f"{key} {values[key]}\n" for key in keys]
    more = "" if deployment is None else deployment.read_text(encoding="utf-8")
    file.write_text("".join(lines) + more, encoding="utf-8")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--portable"]
    main(*map(Path, arguments), portable="--portable" in sys.argv)
