"""``latecomer_ingest``: whatever is new in the landing folder.

``landing/<stream>/*`` holds one stream; ``landing/_by_<column>/*`` holds many, the column names each row's. Files stay where
they are: ingestion knows content it has seen. Where several ``<stream>`` folders have news, `together` takes them in one call, so that
their rows follow each other as they arrived; it takes all or none, without those that their own tasks failed to take and that are as they
were then. Then each folder has a task, in name order, for what is new in it still: all of it where `together` failed. A folder that cannot be
ingested holds up no other; the run then fails. A folder in which nothing changed since its last ingestion is skipped, and no query is started
for it. How files are read that are not as `ingest` expects them (names of the time columns, time zone, unit, format, folders in folders) stands
in ``include/streams/<stream>.yaml`` or ``_by_<column>.yaml``.

Each stream that a query file names is an asset, updated when its folder was ingested; a ``_by_`` folder updates them all.

The landing folder may be in a bucket (``s3://BUCKET/PREFIX``). That is not looked into while this file is parsed, so its folders are those of
the streams that query files name, and one ``_by_<column>`` for each column of ``LATECOMER_LANDING_BY`` (with commas between).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetAlias
from latecomer.specs.names import STREAM
from latecomer_common import (
    DEFAULTS,
    INGEST,
    LAKE,
    LANDING,
    SETTINGS,
    STREAMS,
    UnlessWrong,
    skip,
    spark_task,
    status,
    stream_asset,
    stream_options,
    usable,
)

BY = re.compile(r"_by_([A-Za-z0-9_.-]{1,96})")
TOGETHER = "together"
CALL = ["ingest", "--lake", LAKE, *(["--streams", str(STREAMS)] if STREAMS.is_dir() else [])]
NEWS = AssetAlias("latecomer_news")
"""What `together` updates: the assets of the streams that it took."""


@dataclass(frozen=True, order=True)
class Folder:
    """A folder of the landing folder, by its `name`."""

    name: str

    def __str__(self) -> str:
        return f"{LANDING.rstrip('/')}/{self.name}"


def folders(named: list[str]) -> list[Folder]:
    """Folders in the landing folder whose names say what they hold; others (``.git``, ``_tmp``) are left alone. In a bucket those of the streams `named`."""
    if "://" in LANDING:
        columns = re.findall(r"[^,\s]+", os.environ.get("LATECOMER_LANDING_BY", ""))
        by = {f"_by_{column}" for column in columns}
        if wrong := sorted(name for name in by if not BY.fullmatch(name)):
            raise ValueError(f"LATECOMER_LANDING_BY: {wrong[0][4:]!r} is no name of a column; write COLUMN,COLUMN")
        return sorted(map(Folder, {*named, *by}))
    there = Path(LANDING)
    inside = [each.name for each in there.iterdir() if each.is_dir()] if there.is_dir() else []
    return sorted(Folder(name) for name in inside if STREAM.fullmatch(name) or BY.fullmatch(name))


def marker(folder: Folder) -> dict[str, Any]:
    """What a folder holds (in few words, however many files), and for which lake: equal markers mean that there is nothing to ingest."""
    how = stream_options(folder.name)  # read in another way, its files are news
    files = _files(str(folder), bool(how.get("recursive")))
    names = json.dumps([files, how])
    return {"lake": LAKE, "files": len(files), "names": hashlib.sha256(names.encode()).hexdigest()}


def _files(folder: str, recursive: bool) -> list[list[Any]]:
    """Name, size and times of each file that is not hidden; a folder is one too, as the command says that it reads none."""
    if "://" not in folder and not recursive:
        inside = sorted(each for each in Path(folder).iterdir() if each.name[0] != ".")
        files = [(each.name, each.stat()) for each in inside if each.is_file()]
        folders = [each.name for each in inside if each.name[0] != "_" and each.is_dir()]
        marks = [[name, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns] for name, each in files]
        return marks + [[each] for each in folders]
    from latecomer.ingest.source_file import look_into  # not while parsing

    there = look_into(folder, recursive)
    return [[str(file), *file.marks()] for file in there.files] + [[each] for each in there.folders]


def news(folder: Folder, context: Any, ask: Callable[[], dict[str, Any]] = status) -> dict[str, Any] | None:
    """The folder's marker if something is new in it, else None; the lake's status is what `ask` says."""
    found = marker(folder)
    if not found["files"]:
        return None
    tasks = [(f"ingest_{folder.name}", "marker"), (TOGETHER, folder.name)]
    if found not in [_newest(context, task, key) for task, key in tasks]:
        return found
    # a lake that was removed since then does not know the stream, or is empty, and everything is new to it
    known = ask()["streams"]
    return None if (folder.name in known if STREAM.fullmatch(folder.name) else known) else found


def _newest(context: Any, task: str, key: str) -> Any:
    """What a task has last left under a key, in any run; None: nothing."""
    # of a task that is not mapped (-1); without the index it would be a list of all
    return context["ti"].xcom_pull(task_ids=task, key=key, include_prior_dates=True, map_indexes=-1)


def sound(new: dict[Folder, dict[str, Any]], context: Any) -> dict[Folder, dict[str, Any]]:
    """Folders with news, by marker, less those that their own tasks failed to take as they are; where none is left all, for it was no fault of theirs."""

    def failed(folder: Folder) -> bool:
        tried, taken = (_newest(context, f"ingest_{folder.name}", key) for key in ("tried", "marker"))
        return bool(tried == new[folder] != taken)

    return {folder: found for folder, found in new.items() if not failed(folder)} or new


def hooks(folder: Folder) -> dict[str, Callable[..., None]]:
    """Skip before a folder's task where nothing is new; after it remember what was there before it."""
    seen: dict[str, Any] = {}

    def before(context: Any) -> None:
        found = news(folder, context)
        if found is None:
            skip(f"nothing new in {folder}")
        seen.update(found)
        context["ti"].xcom_push(key="tried", value=found)

    def after(context: Any, result: Any) -> None:
        context["ti"].xcom_push(key="marker", value=seen)

    return {"pre_execute": before, "post_execute": after}


def hooks_together(streams: list[Folder]) -> dict[str, Callable[..., None]]:
    """Skip before `together` unless there is something to bring in order; after it remember what it took, and update its assets."""
    taken: dict[Folder, dict[str, Any]] = {}

    def before(context: Any) -> None:
        taken.clear()
        ask = cache(status)
        new = {folder: found for folder in streams if (found := news(folder, context, ask)) is not None}
        taken.update(sound(new, context))
        if len(taken) < 2:
            skip("fewer than two streams have news, so there is nothing to bring in order")
        paths = [f"{folder.name}={folder}" for folder in taken]
        context["ti"].task.application_args = [*CALL, *paths]

    def after(context: Any, result: Any) -> None:
        for folder, found in taken.items():
            context["ti"].xcom_push(key=folder.name, value=found)
            context["outlet_events"][NEWS].add(stream_asset(folder.name))

    return {"pre_execute": before, "post_execute": after}


_named = list(dict.fromkeys(stream for _, spec in usable().queries for _, stream in spec.streams))
with DAG(
    dag_id=INGEST,
    schedule=os.environ.get("LATECOMER_INGEST_SCHEDULE", "*/5 * * * *"),
    tags=["latecomer"],
    doc_md=__doc__,
    **SETTINGS | {"default_args": DEFAULTS | {"retry_policy": UnlessWrong("stream ")}},
) as dag:
    _before = None
    _found = folders(_named)
    _streams = [folder for folder in _found if not BY.fullmatch(folder.name)]
    if len(_streams) > 1:
        _before = spark_task(TOGETHER, outlets=[NEWS], retries=0, **hooks_together(_streams))
    _tasks = []
    for _folder in _found:
        _by = BY.fullmatch(_folder.name)
        _how = ["--by", _by[1]] if _by else ["--stream", _folder.name]
        _assets: list[Asset] = [stream_asset(s) for s in (_named if _by else [_folder.name])]
        _more: dict[str, Any] = {"outlets": _assets, "trigger_rule": "all_done", **hooks(_folder)}
        _task = spark_task(f"ingest_{_folder.name}", *CALL, *_how, str(_folder), **_more)
        if _before is not None:
            _before >> _task  # one arrival order, one writer; a folder that fails or is skipped holds up no other
        _tasks.append(_before := _task)
    if _tasks:  # else the last folder alone would say how the run went; what `together` could not do they have done
        _tasks >> EmptyOperator(task_id="every_folder", trigger_rule="none_failed")
