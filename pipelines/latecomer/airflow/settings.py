"""The settings of a deployment in Airflow: places, schedules and limits, and where each is read from.

An argument of ``latecomer_dags`` or of an operator wins over the variable ``LATECOMER_<NAME>`` of the environment.
That wins over the option of the section ``[latecomer]`` of ``airflow.cfg`` (as ever in Airflow,
``AIRFLOW__LATECOMER__<NAME>`` sets that too), and the option wins over the default. Settings of tasks, such as the
lake, are read when the task runs.
"""

from __future__ import annotations

import os
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[3]
CONNECTION = "latecomer_spark"
"""Default id of the connection that says where Spark runs; without such a connection it runs within the task."""

OPTIONS: dict[str, str] = {
    "lake": "The lake: a folder, or s3://BUCKET/PREFIX. Read when a task runs.",
    "landing": "The landing folder, or a prefix of a bucket.",
    "landing_by": "Columns that name streams, separated by commas, for landing folders in a bucket.",
    "queries": "The folder of query files.",
    "streams": "The folder of stream files.",
    "reports": "The folder of quality reports, one for workers and API server. Read when a task or a page needs it.",
    "ingest_schedule": "A cron expression that says when the landing folder is read; empty: when something is new.",
    "watch_seconds": "Seconds between two looks of the triggerer for something new.",
    "retries": "How often a failed task is tried again.",
    "task_hours": "The hours after which a task is stopped; its next try goes on.",
    "pool": "The pool of all tasks; it bounds how many drivers run at once.",
    "driver_memory": "The memory of Spark's driver, such as 4g.",
    "spark_properties": "A properties file for spark-submit; without it, the package's own settings are given.",
    "store_conn_id": "A connection of type aws with the credentials of the lake's store. Read when a task runs.",
}
"""The options of the section ``[latecomer]``, and what they mean."""


def setting(name: str, default: str = "") -> str:
    """Return a setting of the environment or of Airflow's configuration; the default where neither has it.

    Parameters
    ----------
    name
        A key of `OPTIONS`.
    """
    if name not in OPTIONS:
        raise KeyError(name)
    if given := os.environ.get(f"LATECOMER_{name.upper()}"):
        return given
    from airflow.sdk import conf

    return conf.get("latecomer", name, fallback=None) or default


def data_folder() -> Path:
    """Return the folder of the lake, the landing folder and the reports where nothing else is set.

    It is ``build`` of the checkout that this package is in, else ``latecomer`` in Airflow's home.
    """
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "pipelines").is_dir():
        return _CHECKOUT / "build"
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser() / "latecomer"


def place(name: str, given: str | None = None) -> str:
    """Return the lake, the landing folder or the folder of reports, by its name in `OPTIONS`."""
    return given or setting(name) or str(data_folder() / name)
