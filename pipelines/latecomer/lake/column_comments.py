"""The comment of every column of ``results/<query>``, as table formats and catalogs show it."""

from __future__ import annotations

from collections.abc import Iterable

from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import Aggregate, AggregateSpec
from latecomer.specs.spec import Spec
from latecomer.specs.topk import TopKSpec
from latecomer.specs.windows import WindowedSpec

_ALWAYS = {
    "provenance": "on_time and recalled: published by run; repaired: published by repair or backfill",
    "revision": "0 is the first version of the answer; each correction is the next one",
    "published_seq": "the arrival that made the row publishable",
    "published_at": "when the row was written to this table, in UTC",
}
_WINDOWED = {
    "window_start": "start of the window in event time, in UTC; it belongs to the window",
    "window_end": "end of the window in event time, in UTC; it does not belong to the window",
}
_OF_KIND = {
    "aggregate": {
        "rows": "the rows of the answer",
        "coverage": "rows in the first answer divided by the rows of the window that are known now",
    },
    "topk": {
        "rank": "1 is the best",
        "score": "the number by which rows are ranked",
        "seq": "the place of the ranked row in the arrival order",
        "event_ts": "the event time of the ranked row",
    },
    "theta_join": {
        "matches": "the number of results of the window",
        "edge": "the number of the pair of streams that the row describes",
        "part": "order, run, near_filter or far_filter: which part of the factorised join the row is",
        "near": "the alias of the near stream",
        "far": "the alias of the far stream",
        "seq": "the row that is described",
        "position": "in order: the place of the far row; in filters: the number of the filter",
        "first": "in run: the first position of the far rows that match; in filters: the value that is compared",
        "last": "in run: the position after the last far row that matches",
    },
    "membership": {"element": "a value that every stream has in the window"},
}


def comments(spec: Spec, columns: Iterable[str]) -> dict[str, str]:
    """Return what each of the columns of a query's results holds, by name."""
    named = dict(_ALWAYS)
    if isinstance(spec, WindowedSpec):
        named |= _WINDOWED
        alias, stream = spec.streams[0]
        named |= {name: f"the group: {name} of stream {stream}" for name in spec.group_by}
    named |= _OF_KIND.get(spec.kind, {})
    if isinstance(spec, TopKSpec):
        named["score"] = f"the number by which rows are ranked: {ex.to_text(spec.score)}"
    if isinstance(spec, AggregateSpec):
        named |= {aggregate.name: _of_aggregate(aggregate) for aggregate in spec.aggregates}
    named |= {item.name: ex.to_text(item.expr) for item in spec.select or ()}
    for alias, stream in spec.streams:
        named.setdefault(f"{alias}_seq", f"the place of the row of stream {stream} in the arrival order")
        named.setdefault(f"{alias}_event_ts", f"the event time of the row of stream {stream}, in UTC")
    return {name: named.get(name) or _carried(spec, name) for name in columns}


def _of_aggregate(aggregate: Aggregate) -> str:
    argument = "" if aggregate.argument is None else ex.to_text(aggregate.argument)
    share = "" if aggregate.q is None else f", {aggregate.q:g}"
    return f"{aggregate.function}({argument}{share}) over the rows of the window"


def _carried(spec: Spec, name: str) -> str:
    """Return the comment of a column of a stream that a query without `select` carries along."""
    for alias, stream in spec.streams:
        if name.startswith(f"{alias}_"):
            return f"{name.removeprefix(f'{alias}_')} of stream {stream}"
    return f"{name} of stream {spec.streams[0][1]}"
