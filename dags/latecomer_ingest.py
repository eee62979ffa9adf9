"""``latecomer_ingest``: whatever is new in the landing folder, one task per sub-folder, in name order.

``landing/<stream>/*`` holds one stream; ``landing/_by_<column>/*`` holds many, the column names each row's. Files stay where
they are: ingestion knows content it has seen. Each stream that a query file names is an asset, updated when its folder
was ingested; a ``_by_`` folder updates them all.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, Asset
from latecomer.specs.common import SpecError
from latecomer.specs.loading import load_query
from latecomer_common import LAKE, LANDING, SETTINGS, query_files, spark_task, stream_asset


def streams() -> list[str]:
    """Streams that query files name."""
    found: dict[str, None] = {}
    for path in query_files():
        try:
            spec = load_query(path)
        except SpecError:
            continue
        found.update(dict.fromkeys(stream for _, stream in spec.streams))
    return list(found)


def folders() -> list[Path]:
    """Sub-folders of the landing folder."""
    return sorted(p for p in LANDING.iterdir() if p.is_dir()) if LANDING.is_dir() else []


_named = streams()
with DAG(
    dag_id="latecomer_ingest",
    schedule=os.environ.get("LATECOMER_INGEST_SCHEDULE", "*/5 * * * *"),
    tags=["latecomer"],
    doc_md=__doc__,
    **SETTINGS,
) as dag:
    _before = None
    for _folder in folders():
        _by = _folder.name.removeprefix("_by_") if _folder.name.startswith("_by_") else None
        _how = ["--by", _by] if _by else ["--stream", _folder.name]
        _assets: list[Asset] = [stream_asset(s) for s in (_named if _by else [_folder.name])]
        _task = spark_task(f"ingest_{_folder.name}", "ingest", "--lake", LAKE, *_how, str(_folder), outlets=_assets)
        if _before is not None:
            _before >> _task  # one arrival order, one writer
        _before = _task
