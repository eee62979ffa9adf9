"""``kind: membership``: elements seen in every stream within a window.

Defaults, with their source: ``fingerprint_bits`` 12 and ``bucket`` 4 are the thesis's (chapter 2). Answers are
confirmed exactly, so ``false_positive_rate`` (default 0.001) bounds the work done in vain, not the answer; one that no
fingerprint of `LONGEST_FINGERPRINT` bits meets is refused where filters are of fingerprints. ``period`` is 60 s or the longest
window, whichever is longer, and ``gamma`` is one period. How long a window waits after its end in stream time is chosen for ``recall``, the
share of a period's elements that are to be there at once, or it is the constant ``slack`` (0 where neither is given).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Any, ClassVar

from latecomer.specs import expressions as ex
from latecomer.specs.clauses import column_of, filters_of, jsonable, of_another, quality_of, strategy_of
from latecomer.specs.reader import Reader, streams_of
from latecomer.specs.spec import bounds_of, rest_of
from latecomer.specs.windows import WINDOW, WaitingSpec, Window, wait_of, window_of

STRATEGIES = ("mcf", "bloom", "one_filter", "exact")
_CUCKOO = ("mcf", "one_filter")
_USES = {"fingerprint_bits": _CUCKOO, "bucket": _CUCKOO}
LONGEST_FINGERPRINT = 32
"""Bits to which :func:`latecomer.core.membership.cuckoo.size_for` raises a fingerprint where the rate asks for it."""


@dataclass(frozen=True, slots=True)
class MembershipStrategy:
    """Which filter; the answer is the same for all."""

    name: str
    fingerprint_bits: int
    bucket: int
    gamma_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSpec(WaitingSpec):
    """A membership query; `elements` and `windows` are in the order of `streams`, whose first gives the elements and the window of a result row."""

    kind: ClassVar[str] = "membership"
    elements: tuple[ex.Column, ...]
    other_windows: tuple[Window, ...]
    false_positive_rate: float
    strategy: MembershipStrategy

    @property
    def windows(self) -> tuple[Window, ...]:
        """Every stream's window."""
        return (self.window, *self.other_windows)

    @property
    def counts_filters(self) -> bool:
        """Are the filters' figures in the ledger? Not where there are none, nor where one filter errs by what happens to close together."""
        return self.strategy.name in ("mcf", "bloom")

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Window and element."""
        return (*WINDOW, "element")

    def expressions(self) -> Iterator[tuple[str, ex.Expr, str | None]]:
        """Elements are comparable."""
        first, alike = self.elements[0], len({column.name for column in self.elements}) == 1
        for column in self.elements:
            key = "element" if alike else f"element.{column.alias}"  # the file says it once, or by alias
            if column is not first:
                yield key, ex.Binary("=", first, column), "bool"
            yield key, column, "plain"
        yield from self.filters()

    def question(self) -> dict[str, Any]:
        """The rest of what the query computes."""
        quality, strategy = self.wait.question()
        return {
            "elements": jsonable(self.elements),
            **({} if self.where is None else {"where": jsonable(self.where)}),
            "windows": jsonable(self.windows),
            "quality": {"false_positive_rate": self.false_positive_rate, "period_us": self.period_us, **quality},
            "strategy": {**jsonable(self.strategy), **strategy},
        }


def parse(reader: Reader, name: str) -> MembershipSpec:
    """A membership query's spec from the rest of its file.

    Raises
    ------
    SpecError
        With file, key, value and remedy.
    """
    streams = streams_of(reader, 2, 64)
    aliases = tuple(alias for alias, _ in streams)
    elements, windows = _elements(reader, aliases), _windows(reader, aliases)
    where = filters_of(reader, aliases, "let each part between `and` read one stream")
    inner, strategy_name = strategy_of(reader, STRATEGIES, "mcf", _USES)
    quality = quality_of(reader, strategy_name, (), "recall: 0.95, period: 1 d")
    rate = quality.number("false_positive_rate", 0.001, low=0.0, high=0.5, open_low=True)
    period_us = quality.duration("period", max(60_000_000, *(window.size_us for window in windows)))
    wait = wait_of(quality, inner)
    bounds = bounds_of(quality, streams)
    strategy = MembershipStrategy(
        strategy_name,
        inner.number("fingerprint_bits", 12, low=4, high=32, whole=True),
        inner.number("bucket", 4, low=1, high=64, whole=True),
        inner.duration("gamma", period_us),
    )
    inner.done()
    _check_rate(quality, rate, strategy, len(streams))
    return MembershipSpec(
        name=name,
        streams=streams,
        elements=elements,
        where=where,
        window=windows[0],
        other_windows=windows[1:],
        false_positive_rate=rate,
        period_us=period_us,
        strategy=strategy,
        wait=wait,
        stated=wait.recall is not None,
        **bounds,
        **rest_of(reader),
    )


def _check_rate(quality: Reader, rate: float, strategy: MembershipStrategy, streams: int) -> None:
    """Refuse a rate that no filter can be sized for: an element asks one of every other stream, and each may err by its share."""
    least = 2 * strategy.bucket / 2**LONGEST_FINGERPRINT
    if strategy.name not in _CUCKOO or least <= rate / (streams - 1):
        return
    enough = Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(least * (streams - 1))
    smaller = "a smaller bucket, or " if strategy.bucket > 1 else ""
    raise quality.fail(
        "false_positive_rate",
        rate,
        f"needs fingerprints of more than {LONGEST_FINGERPRINT} bits over {streams} streams",
        f"write {enough:g} or more, or choose {smaller}strategy exact",
    )


def _elements(reader: Reader, aliases: tuple[str, ...]) -> tuple[ex.Column, ...]:
    value = reader.take("element")
    if isinstance(value, str) and value.strip():
        columns = [column_of(reader, "element", value, aliases, alias) for alias in aliases]
        if columns[0] == columns[1]:
            name, (one, other, *more) = columns[0].name, aliases
            each = f"{{{one}: {name}, {other}: {name}{', ...' if more else ''}}}"
            problem = f"is a column of {columns[0].alias} alone, but is taken of every stream"
            raise reader.fail("element", value, problem, f"write {name}, or {each}")
        return tuple(columns)
    if not isinstance(value, Mapping):
        raise reader.fail(
            "element", value, "is not a column", f"write a column, or {{{aliases[0]}: a, {aliases[1]}: b}}"
        )
    inner = Reader(value, reader.source, "element")
    found = []
    for alias in aliases:
        text = inner.text(alias)
        found.append(column_of(inner, alias, text, aliases, alias))
        if found[-1].alias != alias:
            raise of_another(inner, alias, text, found[-1].alias)
    inner.done()
    return tuple(found)


def _windows(reader: Reader, aliases: tuple[str, ...]) -> tuple[Window, ...]:
    value = reader.take("window")
    each = (
        isinstance(value, Mapping)
        and value
        and (all(isinstance(inner, Mapping) for inner in value.values()) or not {"size", "slide"} & set(value))
    )
    if not each:
        return (window_of(Reader({"window": value}, reader.source)),) * len(aliases)
    inner = Reader(value, reader.source, "window")
    found = tuple(window_of(inner, alias) for alias in aliases)
    inner.done()
    return found
