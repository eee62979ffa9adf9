"""The queries that have run in a lake, and what they use of a stream, as their stored signatures tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from latecomer.lake import state_json
from latecomer.lake.forget import half_forgotten
from latecomer.lake.journal import planned
from latecomer.lake.lake import Lake

_CONDITIONS = ("where", "conditions")
"""Keys of a signature whose columns are compared, and are no part of a result."""
_NO_COLUMNS = ("kind", "name", "streams", "quality", "strategy")
_OF_NUMBERS = ("count", "avg", "median", "quantile")
"""Aggregates whose results have one type, whichever type of number their argument has."""


@dataclass(frozen=True)
class StoredQuery:
    """A query that has run: its name, and its signature; None where an earlier version ran it, or it is unreadable.

    Of a query without a signature anything is possible, so it uses everything.
    """

    name: str
    signature: dict[str, Any] | None

    def reads(self, stream: str) -> bool:
        """Return whether the query reads a stream."""
        return self.signature is None or any(name == stream for _, name in self.signature["streams"])

    def uses(self, stream: str, column: str) -> bool:
        """Return whether the query may use a column of a stream that it reads."""
        if self.signature is None or not self.reads(stream):
            return self.signature is None
        return self._selects_all or self._names(stream, column, _strings(self._clauses()))

    def shows(self, stream: str, column: str) -> bool:
        """Return whether the type of a result column may follow from that of a column of a stream that it reads."""
        if self.signature is None or not self.reads(stream):
            return self.signature is None
        clauses = self._clauses(*_CONDITIONS)
        items = clauses.pop("select", None) or []
        aggregates = [item for item in items if isinstance(item, dict)]
        clauses["aggregates"] = [item["argument"] for item in aggregates if item["function"] not in _OF_NUMBERS]
        clauses["items"] = [item[-1] for item in items if not isinstance(item, dict)]
        return self._selects_all or self._names(stream, column, _strings(clauses))

    @property
    def _selects_all(self) -> bool:
        """A query that selects nothing has every column in its results, unless it counts."""
        assert self.signature is not None
        return self.signature.get("select", ()) is None and self.signature.get("emit") != "count"

    def _clauses(self, *without: str) -> dict[str, Any]:
        """Return the parts of the signature that hold expressions and columns."""
        assert self.signature is not None
        return {key: value for key, value in self.signature.items() if key not in (*_NO_COLUMNS, *without)}

    def _names(self, stream: str, column: str, texts: Iterable[str]) -> bool:
        """Return whether one of the texts names the column, alone or behind an alias of the stream.

        A text in quotes may seem to; then the query counts as one that uses the column.
        """
        assert self.signature is not None
        aliases = "|".join(re.escape(alias) for alias, name in self.signature["streams"] if name == stream)
        name = f'[`"]?{re.escape(column)}[`"]?(?!\\w)'
        mention = re.compile(rf'(?<![\w.]){name}|(?<!\w)[`"]?(?:{aliases})[`"]?\.{name}', re.IGNORECASE)
        return any(mention.search(text) for text in texts)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def stored_queries(lake: Lake) -> list[StoredQuery]:
    """Return the queries that have a table in the lake, sorted by name; half forgotten ones are among them."""
    names = {*lake.names("state"), *lake.names("journal"), *half_forgotten(lake)}
    return [StoredQuery(name, _signature(lake, name)) for name in sorted(names)]


def _signature(lake: Lake, query: str) -> dict[str, Any] | None:
    """Return the signature of a query's state, else of its first plan."""
    state = lake.table("state", query).read()
    if state is not None and state.num_rows:
        text = state.to_pylist()[0].get("asked")
        return None if text is None else state_json.loads(text, f"state of {query}")
    plan = planned(lake, query, "run", 0)
    return None if plan is None else plan.get("asked")
