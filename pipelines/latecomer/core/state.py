"""Stored state that another version of the program wrote, and this one does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REMEDY = "run the query again from the start under another name, or use the version that wrote it"


class OtherVersion(ValueError):
    """What was stored cannot be read by this version. ``str`` is one line; the command returns `exit_code`.

    Parameters
    ----------
    where
        What was stored.
    problem
        How it differs from what this version writes.
    """

    exit_code = 2

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(where, problem)

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}, so another version of the program wrote it; {REMEDY}"


def check_version(where: str, state: Mapping[str, Any], *known: int) -> None:
    """Refuse a state whose ``version`` is none of the `known` ones.

    Raises
    ------
    OtherVersion
        With both versions.
    """
    if state["version"] not in known:
        raise OtherVersion(
            where, f"is of version {state['version']}, this program reads {' and '.join(map(str, known))}"
        )
