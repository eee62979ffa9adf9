"""`publish`: results reach ``results/<query>`` after a check has seen and passed them.

Results that were committed since the last check wait for the next one. A query file that says
``publish: {when: always}`` publishes them whatever a check says. With ``LATECOMER_CATALOG``, the tables are then
registered in Spark's catalog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from latecomer.lake import journal, results_table
from latecomer.lake.errors import InputError, LatecomerError, error_text
from latecomer.lake.lake import Lake
from latecomer.lake.last_check import last_outcome
from latecomer.lake.result_differences import Bounds
from latecomer.quality.checks import CheckFailed
from latecomer.spark import catalog
from latecomer.specs.spec import Spec


def publish(lake: Lake, spec: Spec, *, unchecked: bool = False) -> results_table.Publication:
    """Publish the results of a query that its last check has seen, if it has passed.

    Parameters
    ----------
    unchecked
        Publish also what no check has seen or passed.

    Raises
    ------
    CheckFailed
        The last check has failed; nothing was published.
    InputError
        No check has seen the results; nothing was published. Or as for
        :func:`latecomer.lake.results_table.publish`.
    """
    journal.state_for(lake, spec)
    last = last_outcome(lake, spec.name)
    checked = not unchecked and spec.publish_when != "always"
    publication = results_table.publish(lake, spec, _seen(spec, last) if checked else None)
    publication.achieved_on_time, publication.late_pending = last.get("achieved"), last.get("pending")
    _register(lake, spec.name, publication)
    return publication


def _register(lake: Lake, query: str, publication: results_table.Publication) -> None:
    """Register the query's tables in the catalog that ``LATECOMER_CATALOG`` names; nothing where it names none.

    What was published stays published where that fails, and the next publication tries again.
    """
    if not os.environ.get(catalog.VARIABLE):
        return
    try:
        publication.registered = catalog.register(lake, query)
    except Exception as error:  # whatever a metastore raises
        kind = "" if isinstance(error, LatecomerError) else f"{type(error).__name__}: "
        short = " ".join(f"{kind}{error_text(error)}".split())[:400]
        publication.catalog_problem = (
            f"query {query}: published, but not registered in the catalog ({short}); the next publish tries again"
        )


def _seen(spec: Spec, last: Mapping[str, Any]) -> Bounds:
    """Return the bounds of the results that the last check has seen, which has to have passed."""
    try:
        seen = Bounds(*(int(last[name]) for name in asdict(Bounds())))
    except KeyError:  # no check, or one by an earlier version
        problem, remedy = "has results that no check has seen", "run `latecomer check` before `latecomer publish`"
        raise InputError(f"query {spec.name}", None, problem, remedy) from None
    if not last["success"]:
        raise CheckFailed(
            f"query {spec.name}: its last check failed, so nothing was published; `latecomer check` says why, and "
            "`publish: {when: always}` in the query file publishes all the same"
        )
    return seen
