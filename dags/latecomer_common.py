"""What the DAG files share: where things are, and how a task calls the ``latecomer`` command.

Nothing heavy is imported here or by what imports it: these files are parsed again and again.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset

ROOT = Path(__file__).resolve().parents[1]
QUERIES = Path(os.environ.get("LATECOMER_QUERIES") or ROOT / "include" / "queries")
LANDING = Path(os.environ.get("LATECOMER_LANDING") or ROOT / "build" / "landing")
LAKE = os.environ.get("LATECOMER_LAKE") or str(ROOT / "build" / "lake")
REPORTS = os.environ.get("LATECOMER_REPORTS") or str(ROOT / "build" / "reports")
SUBMIT = str(ROOT / "pipelines" / "latecomer" / "jobs" / "submit.py")
CONNECTION = "latecomer_spark"
DEFAULTS: dict[str, Any] = {
    "owner": "latecomer",
    "retries": int(os.environ.get("LATECOMER_RETRIES", "2")),
    "retry_delay": timedelta(seconds=30),
}
SETTINGS: dict[str, Any] = {"catchup": False, "max_active_runs": 1, "default_args": DEFAULTS}


def stream_asset(stream: str) -> Asset:
    """The asset that an ingestion of the stream updates and that schedules the queries over it."""
    return Asset(name=f"latecomer_{stream}", uri=f"latecomer://events/{stream}")


def spark_task(task_id: str, *arguments: str, **more: Any) -> Any:
    """A task that runs ``latecomer ARGUMENTS`` by spark-submit on the one connection."""
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    return SparkSubmitOperator(
        task_id=task_id,
        conn_id=CONNECTION,
        application=SUBMIT,
        application_args=list(arguments),
        name=f"latecomer-{task_id}",
        verbose=False,
        **more,
    )


def query_files() -> list[Path]:
    """Query files, in name order."""
    return sorted([*QUERIES.glob("*.yaml"), *QUERIES.glob("*.yml")])
