"""Decide whether a step of a query has anything to do. It reads small tables in the task's own process, without Spark.

Each function returns the reason to skip, or None where the step is due.
"""

from __future__ import annotations

from latecomer.specs.deployment import streams_without_rows
from latecomer.specs.spec import Spec


def no_new_rows(lake_uri: str, spec: Spec, *, by_hand: bool) -> str | None:
    """Return why a run has nothing to do: a stream has no row at all, or no row is new to the query.

    Any of the query's streams starts a run, also the first of two, and the schedule starts one whether rows are new or
    not. A run by hand, and one whose query was not checked since its last run, is not skipped for want of new rows: the
    process of that last run may have died between its commit and the check.
    """
    from latecomer.jobs.status import status
    from latecomer.lake.lake import Lake

    report = status(Lake(lake_uri), [spec.name])
    if (reason := streams_without_rows(spec, report["streams"])) is not None:
        return reason
    if not by_hand and any(map(_is_up_to_date, report["queries"])):
        return f"{spec.name} has read every row of its streams"
    return None


def _is_up_to_date(query: dict[str, object]) -> bool:
    """Return whether a query has read every row and was checked since; its times sort as text."""
    ran, checked = query.get("last_run"), query.get("last_check")
    if not isinstance(ran, str) or not isinstance(checked, str):
        return False
    return query.get("backlog") == 0 and checked[: len(ran)] >= ran


def never_run(lake_uri: str, spec: Spec, *, only_late_rows: bool = False) -> str | None:
    """Return why a step that follows runs has nothing to do: the query has not been run yet.

    Parameters
    ----------
    only_late_rows
        The step is due only if a late row waits for repair.
    """
    from latecomer.jobs.status import status
    from latecomer.lake.lake import Lake

    report = status(Lake(lake_uri), [spec.name])
    query = next(iter(report["queries"]), None)
    if query is None:
        reason = streams_without_rows(spec, report["streams"])
        return f"{spec.name} has not been run in {lake_uri} yet" + (f": {reason}" if reason else "")
    if only_late_rows and query.get("late_pending") == 0:
        return f"no late row of {spec.name} waits for repair"
    return None


def no_step_due(lake_uri: str, spec: Spec) -> str | None:
    """Return why `advance` has nothing to do: a stream has no row, or no step of the query is due."""
    from latecomer.jobs.advance import steps
    from latecomer.jobs.status import status
    from latecomer.lake.lake import Lake

    lake = Lake(lake_uri)
    if (reason := streams_without_rows(spec, status(lake, [spec.name])["streams"])) is not None:
        return reason
    return None if next(steps(lake, spec), None) else f"no step of {spec.name} is due"
