"""`publish`: results reach ``results/<query>`` when a check has seen and passed exactly these results.

A query file that says ``publish: {when: always}`` publishes whatever a check says.
"""

from __future__ import annotations

from dataclasses import asdict

from latecomer.lake import results_table
from latecomer.lake.errors import InputError, LatecomerError
from latecomer.lake.lake import Lake
from latecomer.lake.result_differences import Bounds
from latecomer.quality.checks import last_outcome
from latecomer.specs.spec import Spec


class CheckFailed(LatecomerError):
    """The last check of the results has failed, so nothing was published."""

    exit_code = 1


def publish(lake: Lake, spec: Spec, *, unchecked: bool = False) -> results_table.Publication:
    """Publish what is new in the results of a query, if its last check has seen and passed all of it.

    Parameters
    ----------
    unchecked
        Publish also what no check has seen or passed.

    Raises
    ------
    CheckFailed
        The last check has failed; nothing was published.
    InputError
        Results were written since the last check; nothing was published. Or as for
        :func:`latecomer.lake.results_table.publish`.
    """

    def permit(to: Bounds) -> None:
        if unchecked or spec.publish_when == "always":
            return
        last = last_outcome(lake, spec.name)
        if any(last.get(name) != bound for name, bound in asdict(to).items()):
            problem = "has results that no check has seen"
            raise InputError(f"query {spec.name}", None, problem, "run `latecomer check` before `latecomer publish`")
        if not last["success"]:
            raise CheckFailed(
                f"query {spec.name}: its last check failed, so nothing was published; `latecomer check` says why, and "
                "`publish: {when: always}` in the query file publishes all the same"
            )

    return results_table.publish(lake, spec, permit=permit)
