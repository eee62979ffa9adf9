"""Decide which steps of a query are due: run, repair, check, publish. It starts no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from latecomer.jobs.status import QueryStatus, status
from latecomer.lake import journal, results_table
from latecomer.lake.lake import Lake
from latecomer.lake.last_check import last_outcome
from latecomer.lake.result_differences import Bounds
from latecomer.specs.spec import Spec


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
    check, results = last_outcome(lake, spec.name), Bounds.of(lake, spec.name, journal.state_for(lake, spec))
    if any(check.get(name) != bound for name, bound in asdict(results).items()):
        return None
    return bool(check["success"])


def _status(lake: Lake, spec: Spec) -> QueryStatus | None:
    """Return the status of the query; None where it has not been run."""
    return next(iter(status(lake, [spec.name])["queries"]), None)
