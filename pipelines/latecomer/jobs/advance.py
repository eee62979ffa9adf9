"""Decide which steps of a query are due: run, repair, check, publish. It starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from latecomer.jobs.status import QueryStatus, status
from latecomer.lake.lake import Lake
from latecomer.specs import deployment
from latecomer.specs.deployment import QueryFiles
from latecomer.specs.errors import SpecError
from latecomer.specs.spec import Spec

_SECONDS = len("2024-01-01 00:00:00Z")
"""Length of the times of a status, which sort as text."""


def query_files(places: Iterable[Path]) -> QueryFiles:
    """Read query files, and all query files of folders, each file once.

    Raises
    ------
    SpecError
        A folder holds no query file.
    """
    paths: dict[Path, Path] = {}
    for place in places:
        files = deployment.query_files(place) if place.is_dir() else [place]
        if not files:
            raise SpecError(str(place), "", None, "holds no query file", "name a folder of .yaml files")
        paths |= {path.absolute(): path for path in files}
    return deployment.read_query_files(paths.values())


def obstacle(lake: Lake, spec: Spec) -> str:
    """Return why the query cannot run yet, a stream without a row; empty where it can, or where the lake has no row."""
    streams = status(lake, [spec.name])["streams"]
    empty = [name for name in spec.stream_names if name not in streams or not streams[name]["rows"]]
    return f"stream {empty[0]} has no row yet" if empty and streams else ""


def steps(lake: Lake, spec: Spec, *, flush: bool = False) -> Iterator[str]:
    """Yield the names of the steps that are due, in order; each is decided after the one before was taken.

    `run` is due where rows were not read, `repair` where late rows wait, `check` where either changed something since
    the last check, and `publish` where the last check is newer than what is published and passed, or where the query
    publishes always. With `flush`, `run` is due until the input was declared complete.
    """
    query = _status(lake, spec)
    if query is None or "problem" in query or query["backlog"] or (flush and not query["flushed"]):
        yield "run"
        query = _status(lake, spec)
    repairable = 0 if query is None else query["late_pending"]
    if repairable:
        yield "repair"
        query = _status(lake, spec)
    if query is None:
        return
    checked = query["last_check"]
    if checked is None or checked[:_SECONDS] < query["last_run"][:_SECONDS] or query["late_pending"] != repairable:
        yield "check"
        query = _status(lake, spec) or query
    publishes = spec.publish_when == "always" or "FAILED" not in (query["last_check"] or "FAILED")
    published = query["last_publication"]
    if publishes and (published is None or published[:_SECONDS] <= _last_change(query)):
        yield "publish"


def _last_change(query: QueryStatus) -> str:
    """Return the time of the last run or check, whichever is later."""
    return max(query["last_run"][:_SECONDS], (query["last_check"] or "")[:_SECONDS])


def _status(lake: Lake, spec: Spec) -> QueryStatus | None:
    """Return the status of the query; None where it has not been run."""
    return next(iter(status(lake, [spec.name])["queries"]), None)
