"""``latecomer_ingest``: ingest the files of the landing folder that are new or changed.

``landing/<stream>/*`` holds one stream; ``landing/_by_<column>/*`` holds many, and the column names each row's stream.
Files stay where they are, because ingestion recognises content that it has seen. Each folder has a task of its own, in
the order of names. A folder that cannot be ingested holds up no other, but the run fails. A folder in which nothing
changed since its last ingestion is skipped, and starts no query.

If several ``<stream>`` folders have new files, the task `together` goes first and ingests them in one call, so that
their rows follow each other as they arrived. That call takes all folders or none. It leaves out a folder that has not
changed since its own task failed on it. What `together` could not ingest is left to the folders' own tasks.

``include/streams/<stream>.yaml`` or ``_by_<column>.yaml`` says how to read files that `ingest` cannot read by default:
names of the time columns, time zone, unit, format, nested folders. A stream whose file states a source, a Delta table
or a Kafka topic, needs no folder: its task takes what the source holds beyond the last ingestion.

Each stream that a query file names is an asset, which an ingestion of its folder updates; a ``_by_`` folder updates
the assets of all streams.

The landing folder may be in a bucket (``s3://BUCKET/PREFIX``). Airflow does not list a bucket while it parses this
file, so its folders are those of the streams that query files name, and one ``_by_<column>`` for each column in
``LATECOMER_LANDING_BY`` (separated by commas).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AssetAlias, Context
from latecomer.specs.names import BY_COLUMN, STREAM
from latecomer.specs.streams import KafkaTopicSource, StreamSource, is_unfinished, stream_files
from latecomer_common import (
    INGEST,
    LAKE,
    LANDING,
    STREAMS,
    LakeStatus,
    RetryTransientErrors,
    TaskHooks,
    dag_settings,
    lake_status,
    read_query_files,
    skip,
    spark_task,
    stream_asset,
    stream_options,
)

if TYPE_CHECKING:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

TOGETHER = "together"
COMMAND = ["ingest", "--lake", LAKE, *(["--streams", str(STREAMS)] if STREAMS.is_dir() else [])]
INGESTED = AssetAlias("latecomer_news")
"""The alias through which `together` updates the assets of the streams that it ingested."""


class Marker(TypedDict):
    """The state of a folder for one lake: equal markers mean that there is nothing to ingest."""

    lake: str
    files: int
    names: str


@dataclass(frozen=True, order=True)
class Folder:
    """A folder of the landing folder, by its `name`."""

    name: str

    def __str__(self) -> str:
        return f"{LANDING.rstrip('/')}/{self.name}"


def landing_folders(streams: list[str]) -> list[Folder]:
    """Return the folders whose names say which streams they hold; others (``.git``, ``_tmp``) are left alone.

    In a bucket these are the folders of `streams` and of the columns in ``LATECOMER_LANDING_BY``.

    Raises
    ------
    ValueError
        ``LATECOMER_LANDING_BY`` holds a word that cannot be the name of a column.
    """
    if "://" in LANDING:
        columns = re.findall(r"[^,\s]+", os.environ.get("LATECOMER_LANDING_BY", ""))
        if wrong := sorted(column for column in columns if not BY_COLUMN.fullmatch(f"_by_{column}")):
            raise ValueError(f"LATECOMER_LANDING_BY: {wrong[0]!r} is no name of a column; write COLUMN,COLUMN")
        return sorted(map(Folder, {*streams, *(f"_by_{column}" for column in columns)}))
    landing = Path(LANDING)
    names = [path.name for path in landing.iterdir() if path.is_dir()] if landing.is_dir() else []
    return sorted(Folder(name) for name in names if STREAM.fullmatch(name) or BY_COLUMN.fullmatch(name))


def current_marker(folder: Folder) -> Marker:
    """Return the folder's present marker; it is small, however many files there are."""
    options = stream_options(folder.name)  # files that are to be read in another way are new
    files = _fingerprints(str(folder), bool(options.get("recursive")))
    names = json.dumps([files, options], default=repr)
    return {"lake": LAKE, "files": len(files), "names": hashlib.sha256(names.encode()).hexdigest()}


def _fingerprints(folder: str, recursive: bool) -> list[list[str | int]]:
    """Return name, size and times of each file that is neither hidden nor unfinished, and the name of each folder.

    Folders are listed because the command reports the ones that it does not read.
    """
    if "://" not in folder and not recursive:
        visible = (path for path in Path(folder).iterdir() if path.name[0] != ".")
        paths = sorted(path for path in visible if not is_unfinished(path.name))
        stats = [(path.name, path.stat()) for path in paths if path.is_file()]
        files: list[list[str | int]] = [
            [name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats
        ]
        return files + [[path.name] for path in paths if path.name[0] != "_" and path.is_dir()]
    from latecomer.ingest.source_file import look_into  # it imports pyarrow, which parsing must not

    listing = look_into(folder, recursive)
    files = [[str(file), *file.marks()] for file in listing.files]
    return files + [[name] for name in listing.folders]


def changed_marker(
    folder: Folder, context: Context, read_status: Callable[[], LakeStatus] = lake_status
) -> Marker | None:
    """Return the folder's marker if something in it is new to the lake, else None."""
    marker = current_marker(folder)
    if not marker["files"]:
        return None
    tasks = [(f"ingest_{folder.name}", "marker"), (TOGETHER, folder.name)]
    if marker not in [_last_pushed(context, task, key) for task, key in tasks]:
        return marker
    # a lake that was removed since then does not know the stream, or is empty, and everything is new to it
    streams = read_status()["streams"]
    known = folder.name in streams if STREAM.fullmatch(folder.name) else bool(streams)
    return None if known else marker


def _last_pushed(context: Context, task: str, key: str) -> object:
    """Return the last value that a task has pushed under a key, in any run; None if there is none."""
    # -1 is a task that is not mapped; without the index the result would be a list of all values
    return context["ti"].xcom_pull(task_ids=task, key=key, include_prior_dates=True, map_indexes=-1)


def without_known_failures(markers: Mapping[Folder, Marker], context: Context) -> dict[Folder, Marker]:
    """Return the folders that have changed since their own tasks last failed on them.

    If none is left, return all: then it was not the folders' fault that their tasks failed.
    """

    def failed(folder: Folder) -> bool:
        tried, taken = (_last_pushed(context, f"ingest_{folder.name}", key) for key in ("tried", "marker"))
        return bool(tried == markers[folder] != taken)

    return {folder: marker for folder, marker in markers.items() if not failed(folder)} or dict(markers)


def folder_hooks(folder: Folder) -> TaskHooks:
    """Return hooks that skip a folder's task if nothing is new, and remember afterwards what it ingested."""
    tried: list[Marker] = []

    def before(context: Context) -> None:
        marker = changed_marker(folder, context)
        if marker is None:
            skip(f"nothing new in {folder}")
        tried[:] = [marker]
        context["ti"].xcom_push(key="tried", value=marker)

    def after(context: Context, result: object) -> None:
        context["ti"].xcom_push(key="marker", value=tried[0])

    return {"pre_execute": before, "post_execute": after}


def log_in(source: StreamSource | None) -> None:
    """Put the login of a topic's connection into the environment of this task's process, which its command inherits.

    So it stands in no argument, template or log. Without a connection the environment stays as it is.
    """
    if not isinstance(source, KafkaTopicSource) or source.connection is None:
        return
    from airflow.sdk import Connection
    from latecomer.ingest.kafka_client import PREFIX, Security

    name = source.connection
    login = Connection.get(name)
    variables = Security.variables_of_connection(name, login.login, login.password, login.extra_dejson)
    for variable in [variable for variable in os.environ if variable.startswith(PREFIX)]:
        del os.environ[variable]
    os.environ.update(variables)


def source_hooks(stream: str) -> TaskHooks:
    """Return hooks that skip the task of a stream's table or topic if that holds nothing new."""

    def before(context: Context) -> None:
        from latecomer.ingest.options import IngestOptions  # these import pyarrow, which parsing must not
        from latecomer.ingest.stream_sources import new_content
        from latecomer.lake.errors import InputError
        from latecomer.lake.lake import Lake

        options = IngestOptions(stream=stream, **stream_options(stream))
        log_in(options.source)
        try:
            nothing_new = new_content(Lake(LAKE), options, print) is None
        except InputError:
            return  # the command says in one line what is wrong
        if nothing_new:
            skip(f"nothing new in the source of {stream}")

    return {"pre_execute": before}


def together_hooks(streams: list[Folder]) -> TaskHooks:
    """Return hooks that skip `together` unless two streams have new files, and update the assets it ingested."""
    taken: dict[Folder, Marker] = {}

    def before(context: Context) -> None:
        taken.clear()
        read_status = cache(lake_status)
        changes = ((folder, changed_marker(folder, context, read_status)) for folder in streams)
        changed = {folder: marker for folder, marker in changes if marker is not None}
        taken.update(without_known_failures(changed, context))
        if len(taken) < 2:
            skip("fewer than two streams have new files, so there is nothing to bring in order")
        paths = [f"{folder.name}={folder}" for folder in taken]
        task: SparkSubmitOperator = context["ti"].task  # type: ignore[assignment]
        task.application_args = [*COMMAND, *paths]

    def after(context: Context, result: object) -> None:
        for folder, marker in taken.items():
            context["ti"].xcom_push(key=folder.name, value=marker)
            context["outlet_events"][INGESTED].add(stream_asset(folder.name))

    return {"pre_execute": before, "post_execute": after}


_streams = list(dict.fromkeys(stream for _, spec in read_query_files().queries for stream in spec.stream_names))
with DAG(
    dag_id=INGEST,
    schedule=os.environ.get("LATECOMER_INGEST_SCHEDULE", "*/5 * * * *"),
    tags=["latecomer"],
    doc_md=__doc__,
    **dag_settings(RetryTransientErrors("stream ")),
) as dag:
    _previous = None
    _from_sources = [path.stem for path in stream_files(STREAMS) if "source" in stream_options(path.stem)]
    _folders = [folder for folder in landing_folders(_streams) if folder.name not in _from_sources]
    _of_streams = [folder for folder in _folders if not BY_COLUMN.fullmatch(folder.name)]
    if len(_of_streams) > 1:
        _previous = spark_task(TOGETHER, outlets=[INGESTED], retries=0, **together_hooks(_of_streams))
    _tasks = []
    for _folder in _folders:
        _by = BY_COLUMN.fullmatch(_folder.name)
        _task = spark_task(
            f"ingest_{_folder.name}",
            *COMMAND,
            *(["--by", _by[1]] if _by else ["--stream", _folder.name]),
            str(_folder),
            outlets=[stream_asset(stream) for stream in (_streams if _by else [_folder.name])],
            trigger_rule="all_done",
            **folder_hooks(_folder),
        )
        if _previous is not None:
            _previous >> _task  # one arrival order, one writer; a folder that fails or is skipped holds up no other
        _tasks.append(_previous := _task)
    for _stream in _from_sources:
        _task = spark_task(
            f"ingest_{_stream}",
            *COMMAND,
            _stream,
            outlets=[stream_asset(_stream)],
            trigger_rule="all_done",
            **source_hooks(_stream),
        )
        if _previous is not None:
            _previous >> _task
        _tasks.append(_previous := _task)
    if _tasks:  # without it the last folder alone would decide the run's state; `together` is not decisive
        _tasks >> EmptyOperator(task_id="every_folder", trigger_rule="none_failed")
