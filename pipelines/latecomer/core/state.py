"""The protocol of stored state, and the error for a state that another version of the program wrote.

Every object with state has ``to_dict()``, which returns a JSON document. A class method ``from_dict(document, ...)``
continues from it exactly; an object whose document is empty or repeats what its constructor is given is constructed
anew, and the accounts of the ledger are constructed and then restored. A class names the keys of its document in a
``TypedDict``; where the class of a document is not known, it is a `StateDocument`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

StateDocument: TypeAlias = Mapping[str, object]
"""A stored state as JSON has it: keys with numbers, texts, nulls, lists and further documents."""

REMEDY = "run the query again from the start under another name, or use the version that wrote it"


class OtherVersion(ValueError):
    """A stored document that this version cannot read. ``str`` is one line; the command returns `exit_code`.

    Parameters
    ----------
    where
        The name of the document.
    problem
        The difference from what this version writes.
    """

    exit_code = 2

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(where, problem)

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}, so another version of the program wrote it; {REMEDY}"


def check_version(where: str, state: StateDocument, *known: int) -> None:
    """Refuse a state whose ``version`` is none of the `known` ones.

    Raises
    ------
    OtherVersion
        With the version of the state and the `known` ones.
    """
    if state["version"] not in known:
        raise OtherVersion(
            where, f"is of version {state['version']}, this program reads {' and '.join(map(str, known))}"
        )
