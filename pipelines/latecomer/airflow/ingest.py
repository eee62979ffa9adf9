"""``latecomer_ingest``: ingest the files of the landing folder that are new or changed.

``landing/<stream>/*`` holds one stream; ``landing/_by_<column>/*`` holds many, and the column names each row's stream.
Files stay where they are, because ingestion recognises content that it has seen. Each folder has a task of its own, in
the order of names. A folder that cannot be ingested holds up no other, but the run fails. A folder in which nothing
changed since its last ingestion is skipped, and starts no query.

If several ``<stream>`` folders have new files, the task `together` goes first and ingests them in one call, so that
their rows follow each other as they arrived. That call takes all folders or none. It leaves out a folder that has not
changed since its own task failed on it. What `together` could not ingest is left to the folders' own tasks.

``<stream>.yaml`` or ``_by_<column>.yaml`` in the folder of stream files says how to read files that `ingest` cannot
read by default: names of the time columns, time zone, unit, format, nested folders. A stream whose file states a
source, a Delta table or a Kafka topic, needs no folder: its task takes what the source holds beyond the last ingestion.

Each stream that a query file names is an asset, which an ingestion of its folder updates; a ``_by_`` folder updates
the assets of all streams.

The landing folder may be in a bucket (``s3://BUCKET/PREFIX``). Airflow does not list a bucket while it parses DAG
files, so its folders are those of the streams that query files name, and one ``_by_<column>`` for each column in the
setting ``landing_by`` (separated by commas).

The DAG has no times of its own. A trigger in Airflow's triggerer looks at the folders and sources, and starts a run
when one of them holds something new. With the setting ``ingest_schedule`` it starts at those times instead, and the
triggerer is not needed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AssetAlias, Context

from latecomer.airflow.assets import stream_asset
from latecomer.airflow.operator import LatecomerOperator, skip
from latecomer.airflow.settings import setting
from latecomer.airflow.submit import log_in
from latecomer.airflow.watch import LOCAL_S, REMOTE_S, LandingTrigger, landing_asset
from latecomer.specs import deployment
from latecomer.specs.deployment import INGEST_DAG
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import read_text
from latecomer.specs.names import BY_COLUMN, STREAM
from latecomer.specs.streams import is_unfinished, stream_file, stream_files

if TYPE_CHECKING:
    from latecomer.specs.spec import Spec

TOGETHER = "together"
INGESTED = AssetAlias("latecomer_news")
"""The alias through which `together` updates the assets of the streams that it ingested."""


class Marker(TypedDict):
    """The state of a folder for one lake: equal markers mean that there is nothing to ingest."""

    lake: str
    files: int
    names: str


@dataclass(frozen=True, order=True)
class Folder:
    """A folder of the landing folder.

    Attributes
    ----------
    name
        Its name, which says what streams it holds.
    landing
        The landing folder.
    streams
        The folder of stream files.
    """

    name: str
    landing: str
    streams: Path

    def __str__(self) -> str:
        return f"{self.landing.rstrip('/')}/{self.name}"

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that its stream file states."""
        return stream_options(self.streams, self.name)


def stream_options(folder: Path, name: str) -> Mapping[str, Any]:
    """Return the options in the file of a stream, or of ``_by_<column>``; none if there is no usable file."""
    path = stream_file(folder, name)
    return {} if path is None else deployment.read_stream_file(path)[0]


def landing_folders(landing: str, streams: Path, named: Sequence[str]) -> list[Folder]:
    """Return the folders whose names say which streams they hold; others (``.git``, ``_tmp``) are left alone.

    In a bucket these are the folders of the streams `named` and of the columns in the setting ``landing_by``.

    Raises
    ------
    ValueError
        ``landing_by`` holds a word that cannot be the name of a column.
    """
    if "://" in landing:
        columns = re.findall(r"[^,\s]+", setting("landing_by"))
        if wrong := sorted(column for column in columns if not BY_COLUMN.fullmatch(f"_by_{column}")):
            raise ValueError(f"LATECOMER_LANDING_BY: {wrong[0]!r} is no name of a column; write COLUMN,COLUMN")
        names = {*named, *(f"_by_{column}" for column in columns)}
    else:
        inner = Path(landing).iterdir() if Path(landing).is_dir() else ()
        names = {path.name for path in inner if path.is_dir()}
        names = {name for name in names if STREAM.fullmatch(name) or BY_COLUMN.fullmatch(name)}
    return sorted(Folder(name, landing, streams) for name in names)


def current_marker(folder: Folder, lake: str) -> Marker:
    """Return the folder's present marker; it is small, however many files there are."""
    options = folder.options  # files that are to be read in another way are new
    files = _fingerprints(str(folder), bool(options.get("recursive")))
    names = json.dumps([files, options], default=repr)
    return {"lake": lake, "files": len(files), "names": hashlib.sha256(names.encode()).hexdigest()}


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


def known_streams(lake: str) -> set[str]:
    """Return the names of the streams that a lake has rows of."""
    from latecomer.lake.ingest_log import by_stream
    from latecomer.lake.lake import Lake

    return set(by_stream(Lake(lake)))


def changed_marker(folder: Folder, lake: str, context: Context, known: Callable[[], set[str]]) -> Marker | None:
    """Return the folder's marker if something in it is new to the lake, else None."""
    marker = current_marker(folder, lake)
    if not marker["files"]:
        return None
    tasks = [(f"ingest_{folder.name}", "marker"), (TOGETHER, folder.name)]
    if marker not in [_last_pushed(context, task, key) for task, key in tasks]:
        return marker
    # a lake that was removed since then does not know the stream, or is empty, and everything is new to it
    streams = known()
    return None if (folder.name in streams if STREAM.fullmatch(folder.name) else streams) else marker


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


class IngestOperator(LatecomerOperator):
    """The base of the tasks that ingest."""

    def __init__(self, *, streams: Path, **options: Any) -> None:
        super().__init__(action="ingest", **options)
        self.streams = streams

    def command(self, *arguments: str) -> list[str]:
        """Return the arguments of ``latecomer`` for an ingestion into the lake of this run."""
        files = ["--streams", str(self.streams)] if self.streams.is_dir() else []
        return ["ingest", "--lake", str(self.lake), *files, *arguments]


class IngestFolder(IngestOperator):
    """Ingest a folder; it is skipped if nothing in it is new, and remembers what it has ingested."""

    def __init__(self, *, folder: Folder, **options: Any) -> None:
        super().__init__(streams=folder.streams, **options)
        self.folder = folder
        self._marker: Marker | None = None

    def prepare(self, context: Context, spec: Spec | None) -> list[str]:
        """Skip if nothing is new; else note what is tried."""
        lake = str(self.lake)
        self._marker = changed_marker(self.folder, lake, context, lambda: known_streams(lake))
        if self._marker is None:
            skip(f"nothing new in {self.folder}")
        context["ti"].xcom_push(key="tried", value=self._marker)
        by = BY_COLUMN.fullmatch(self.folder.name)
        return self.command(*(["--by", by[1]] if by else ["--stream", self.folder.name]), str(self.folder))

    def conclude(self, context: Context, spec: Spec | None, lines: list[str]) -> None:
        """Note what is ingested."""
        context["ti"].xcom_push(key="marker", value=self._marker)


class IngestSource(IngestOperator):
    """Ingest what the table or topic of a stream holds beyond the last ingestion; it is skipped if that is nothing."""

    def __init__(self, *, stream: str, **options: Any) -> None:
        super().__init__(**options)
        self.stream = stream

    def prepare(self, context: Context, spec: Spec | None) -> list[str]:
        """Log in to the source, and skip if it holds nothing new."""
        from latecomer.ingest.options import IngestOptions
        from latecomer.ingest.stream_sources import new_content
        from latecomer.lake.errors import InputError
        from latecomer.lake.lake import Lake

        options = IngestOptions(stream=self.stream, **stream_options(self.streams, self.stream))
        log_in(options.source)
        try:
            nothing_new = new_content(Lake(str(self.lake)), options, print) is None
        except InputError:
            nothing_new = False  # the command says in one line what is wrong
        if nothing_new:
            skip(f"nothing new in the source of {self.stream}")
        return self.command(self.stream)


class IngestTogether(IngestOperator):
    """Ingest several folders in one call; it is skipped unless two have new files."""

    def __init__(self, *, folders: Sequence[Folder], **options: Any) -> None:
        super().__init__(streams=folders[0].streams, **options)
        self.folders = list(folders)
        self._taken: dict[Folder, Marker] = {}

    def prepare(self, context: Context, spec: Spec | None) -> list[str]:
        """Choose the folders with new files, less the ones that their own tasks have failed on."""
        lake = str(self.lake)
        known = cache(lambda: known_streams(lake))
        changes = ((folder, changed_marker(folder, lake, context, known)) for folder in self.folders)
        changed = {folder: marker for folder, marker in changes if marker is not None}
        self._taken = without_known_failures(changed, context)
        if len(self._taken) < 2:
            skip("fewer than two streams have new files, so there is nothing to bring in order")
        return self.command(*(f"{folder.name}={folder}" for folder in self._taken))

    def conclude(self, context: Context, spec: Spec | None, lines: list[str]) -> None:
        """Note what is ingested, and update the streams' assets."""
        for folder, marker in self._taken.items():
            context["ti"].xcom_push(key=folder.name, value=marker)
            context["outlet_events"][INGESTED].add(stream_asset(folder.name))


def landing_trigger(landing: str, streams: Path, watched: Sequence[str], lake: str | None) -> LandingTrigger:
    """Return the trigger that watches folders of the landing folder, and sources of streams, by their names."""
    files = {name: stream_file(streams, name) for name in sorted(watched)}
    texts = {name: "" if path is None else _text(path) for name, path in files.items()}
    remote = "://" in landing or any("source" in stream_options(streams, name) for name in files)
    seconds = float(setting("watch_seconds") or (REMOTE_S if remote else LOCAL_S))
    return LandingTrigger(landing, texts, lake, seconds)


def _text(path: Path) -> str:
    """Return the text of a stream file; none of a file that cannot be read, which is a problem of its own."""
    try:
        return read_text(path, "a stream file")
    except SpecError:
        return ""


def ingest_dag(
    *,
    landing: str,
    streams: Path,
    named: Sequence[str],
    schedule: str | None,
    options: dict[str, Any],
    common: dict[str, Any],
) -> DAG:
    """Return the DAG that ingests.

    Parameters
    ----------
    named
        The streams that query files name.
    schedule
        A cron expression; None: whenever something is new, as the triggerer says.
    options
        Arguments of all operators.
    common
        Arguments of all DAGs.
    """
    from_sources = [path.stem for path in stream_files(streams) if "source" in stream_options(streams, path.stem)]
    folders = [folder for folder in landing_folders(landing, streams, named) if folder.name not in from_sources]
    starts: Any = schedule
    if schedule is None and (watched := [*(folder.name for folder in folders), *from_sources]):
        starts = [landing_asset(landing_trigger(landing, streams, watched, options.get("lake")))]
    with DAG(dag_id=INGEST_DAG, schedule=starts, tags=["latecomer"], doc_md=__doc__, **common) as dag:
        previous: LatecomerOperator | None = None
        of_streams = [folder for folder in folders if not BY_COLUMN.fullmatch(folder.name)]
        tasks: list[LatecomerOperator] = []
        for folder in folders:
            by = BY_COLUMN.fullmatch(folder.name)
            outlets = [stream_asset(stream) for stream in (named if by else [folder.name])]
            task_id, rule = f"ingest_{folder.name}", "all_done"
            tasks.append(IngestFolder(task_id=task_id, folder=folder, outlets=outlets, trigger_rule=rule, **options))
        for stream in from_sources:
            outlets, task_id = [stream_asset(stream)], f"ingest_{stream}"
            tasks.append(
                IngestSource(
                    task_id=task_id, stream=stream, streams=streams, outlets=outlets, trigger_rule="all_done", **options
                )
            )
        if len(of_streams) > 1:
            previous = IngestTogether(task_id=TOGETHER, folders=of_streams, outlets=[INGESTED], retries=0, **options)
        for task in tasks:  # one arrival order, one writer; a folder that fails or is skipped holds up no other
            if previous is not None:
                previous >> task
            previous = task
        if tasks:  # without it the last folder alone would decide the run's state; `together` is not decisive
            tasks >> EmptyOperator(task_id="every_folder", trigger_rule="none_failed")
    return dag
