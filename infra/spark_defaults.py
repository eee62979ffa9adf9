"""Write ``spark-defaults.conf`` into a folder: what spark-submit must know before Python runs.

``SPARK_CONF_DIR`` pointed there makes ``spark-submit submit.py ...`` the same driver as the ``latecomer`` command.
"""

import sys
from pathlib import Path

from latecomer.lake.location import Lake
from latecomer.spark.session import settings


def main(folder: Path) -> None:
    """One ``key value`` a line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} {value}" for key, value in sorted(settings(Lake(".")).items())]
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
