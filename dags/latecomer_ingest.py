"""``latecomer_ingest``: whatever is new in the landing folder, one task per sub-folder, in name order.

``landing/<stream>/*`` holds one stream; ``landing/_by_<column>/*`` holds many, the column names each row's. Files stay where
they are: ingestion knows content it has seen. Each stream that a query file names is an asset, updated when its folder
was ingested; a ``_by_`` folder updates them all. A folder that cannot be ingested holds up no other; the run then fails. A folder
in which nothing changed since its last ingestion is skipped, and no query is started for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from latecomer.specs.common import STREAM
from latecomer_common import INGEST, LAKE, LANDING, SETTINGS, skip, spark_task, status, stream_asset, usable

BY = re.compile(r"_by_([A-Za-z0-9_.-]{1,96})")


def folders() -> list[Path]:
    """Sub-folders of the landing folder whose names say what they hold; others (``.git``, ``_tmp``) are left alone."""
    inside = LANDING.iterdir() if LANDING.is_dir() else ()
    return sorted(p for p in inside if p.is_dir() and (STREAM.fullmatch(p.name) or BY.fullmatch(p.name)))


def marker(folder: Path) -> dict[str, Any]:
    """What a folder holds, and for which lake: equal markers mean that there is nothing to ingest."""
    files = [(p, p.stat()) for p in sorted(folder.iterdir()) if p.is_file() and p.name[0] != "."]
    return {"lake": LAKE, "files": [[p.name, s.st_size, s.st_mtime_ns] for p, s in files]}


def hooks(folder: Path, task_id: str) -> dict[str, Callable[..., None]]:
    """Skip before the task where nothing is new; after it remember what was there before it."""
    seen: dict[str, Any] = {}

    def before(context: Any) -> None:
        seen.update(marker(folder))
        # of a task that is not mapped (-1), the newest; without the index it would be a list of all
        last = context["ti"].xcom_pull(task_ids=task_id, key="marker", include_prior_dates=True, map_indexes=-1)
        # a lake that was removed since then is empty, and everything is new to it
        if not seen["files"] or (last == seen and status()["streams"]):
            skip(f"nothing new in {folder}")

    def after(context: Any, result: Any) -> None:
        context["ti"].xcom_push(key="marker", value=seen)

    return {"pre_execute": before, "post_execute": after}


_named = list(dict.fromkeys(stream for _, spec in usable().queries for _, stream in spec.streams))
with DAG(
    dag_id=INGEST,
    schedule=os.environ.get("LATECOMER_INGEST_SCHEDULE", "*/5 * * * *"),
    tags=["latecomer"],
    doc_md=__doc__,
    **SETTINGS,
) as dag:
    _before = None
    for _folder in folders():
        _by = BY.fullmatch(_folder.name)
        _how = ["--by", _by[1]] if _by else ["--stream", _folder.name]
        _assets: list[Asset] = [stream_asset(s) for s in (_named if _by else [_folder.name])]
        _id = f"ingest_{_folder.name}"
        _more: dict[str, Any] = {"outlets": _assets, "trigger_rule": "all_done", **hooks(_folder, _id)}
        _task = spark_task(_id, "ingest", "--lake", LAKE, *_how, str(_folder), **_more)
        if _before is not None:
            _before >> _task  # one arrival order, one writer; a folder that fails or is skipped holds up no other
        _before = _task
    if dag.tasks:  # else the last folder alone would say how the run went
        dag.tasks >> EmptyOperator(task_id="every_folder", trigger_rule="none_failed")
