"""Decide which steps of a query are due: run, repair, check, publish. It starts no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from latecomer.jobs.status import QueryStatus, status
from latecomer.lake import journal, results_table
from latecomer.lake.lake import Lake
from latecomer.lake.result_differences import Bounds
from latecomer.specs import deployment
from latecomer.specs.deployment import QueryFiles
from latecomer.specs.errors import SpecError
from latecomer.specs.spec import Spec


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

    `run` is due where rows were not read, `repair` where late rows wait, `check` where the last one has not seen all
    results, and `publish` where answers are new or corrected, if the check passed or the query publishes always.
    With `flush`, `run` is due until the input was declared complete.
    """
    query = _status(lake, spec)
    if query is None or "problem" in query or query["backlog"] or (flush and not query["flushed"]):
        yield "run"
        query = _status(lake, spec)
    if query is None:
        return
    if query["late_pending"]:
        yield "repair"
    passed = _passed(lake, spec)
    if passed is None:
        yield "check"
        passed = _passed(lake, spec)
    if (passed or spec.publish_when == "always") and results_table.is_behind(lake, spec):
        yield "publish"


def _passed(lake: Lake, spec: Spec) -> bool | None:
    """Return whether the last check passed; None where it has not seen all results that there are."""
    checks, results = lake.table("checks", spec.name).read(), Bounds.of(lake, spec.name, journal.state_for(lake, spec))
    check = checks.to_pylist()[0] if checks is not None and checks.num_rows else {}
    if any(check.get(name) != bound for name, bound in asdict(results).items()):
        return None
    return bool(check["success"])


def _status(lake: Lake, spec: Spec) -> QueryStatus | None:
    """Return the status of the query; None where it has not been run."""
    return next(iter(status(lake, [spec.name])["queries"]), None)
