"""``kind: membership``: elements seen in every stream within a window.

Defaults: ``fingerprint_bits`` 12 and ``bucket`` 4 are the thesis's (chapter 2). Candidates are confirmed exactly, so
``false_positive_rate`` (default 0.001) bounds the work that is done in vain, not the error of the answer. Filters of
fingerprints refuse a rate that needs more than `LONGEST_FINGERPRINT` bits.

``period`` is 60 s or the longest window, whichever is longer, and ``gamma`` is one period. The slack, how long a window
waits after its end in stream time, is chosen for ``recall``, the share of a period's elements that are on time. It may
also be the constant ``slack``; where neither is given it is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import ClassVar

from latecomer.core.windows.grid import Grid
from latecomer.specs import expressions as ex
from latecomer.specs.clauses import open_quality, open_strategy, parse_column, parse_filters, to_json, wrong_stream
from latecomer.specs.durations import DURATION
from latecomer.specs.fragments import MAPPING, TEXT, any_of, choice
from latecomer.specs.reader import Reader, parse_streams
from latecomer.specs.spec import RequiredType, Signature, Strategy, parse_bounds, parse_details, parse_period
from latecomer.specs.windows import (
    WINDOW,
    WINDOW_SCHEMA,
    WITHOUT_SLACK,
    WaitingSpec,
    parse_slack,
    parse_waits,
    parse_window,
)

STRATEGIES = ("mcf", "bloom", "one_filter", "exact")
DEFAULT_STRATEGY = "mcf"
_CUCKOO = ("mcf", "one_filter")
_USES = {"fingerprint_bits": _CUCKOO, "bucket": _CUCKOO}
LONGEST_FINGERPRINT = 32
"""Most bits that :func:`latecomer.core.membership.cuckoo.size_for` gives a fingerprint to meet the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipStrategy(Strategy):
    """The filter, the bits of a fingerprint and the entries of a bucket. The answer is the same for all."""

    fingerprint_bits: int
    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSpec(WaitingSpec):
    """A membership query. Result rows have the element and the window of the first stream.

    Attributes
    ----------
    elements : tuple of Column
        The column of each stream that has its elements, in the order of `streams`.
    other_windows : tuple of Grid
        The windows of the streams after the first.
    false_positive_rate : float
        Most absent elements that may pass the filters, as a share of all absent elements.
    """

    kind: ClassVar[str] = "membership"
    elements: tuple[ex.Column, ...]
    other_windows: tuple[Grid, ...]
    false_positive_rate: float
    strategy: MembershipStrategy

    @property
    def windows(self) -> tuple[Grid, ...]:
        """The windows of every stream."""
        return (self.window, *self.other_windows)

    @property
    def counts_filters(self) -> bool:
        """True where the ledger has the filters' figures.

        ``exact`` has no filters. The errors of ``one_filter`` depend on which windows close together.
        """
        return self.strategy.name in ("mcf", "bloom")

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The window and the element."""
        return (*WINDOW, "element")

    def _kind_expressions(self) -> Iterator[tuple[str, ex.Expr, RequiredType]]:
        first, alike = self.elements[0], len({column.name for column in self.elements}) == 1
        for column in self.elements:
            key = "element" if alike else f"element.{column.alias}"  # the file has one name, or one per alias
            if column is not first:
                yield key, ex.Binary("=", first, column), "bool"
            yield key, column, "plain"

    def _kind_signature(self) -> Signature:
        return {
            "elements": to_json(self.elements),
            **({} if self.where is None else {"where": to_json(self.where)}),
            "windows": to_json(self.windows),
        }

    def _quality_signature(self) -> Signature:
        return {"false_positive_rate": self.false_positive_rate, **WaitingSpec._quality_signature(self)}


def parse(reader: Reader, name: str) -> MembershipSpec:
    """Read a membership query's spec from the keys that are left of its file.

    Raises
    ------
    SpecError
        For any fault: file, key, value, problem and remedy.
    """
    streams = parse_streams(reader, 2, 64)
    aliases = tuple(alias for alias, _ in streams)
    elements, windows = _parse_elements(reader, aliases), _parse_windows(reader, aliases)
    where = parse_filters(reader, aliases, "let each part between `and` read one stream")
    inner, strategy_name = open_strategy(reader, STRATEGIES, DEFAULT_STRATEGY, _USES)
    quality = open_quality(reader, strategy_name, (), "recall: 0.95, period: 1 d")
    rate = quality.number("false_positive_rate", 0.001, low=0.0, high=0.5, above_low=True)
    period_us = parse_period(quality, max(window.size_us for window in windows))
    slack = parse_slack(quality, inner)
    waits = parse_waits(quality, learns=slack["slack_us"] is None, remedy=WITHOUT_SLACK)
    bounds = parse_bounds(quality, streams)
    strategy = MembershipStrategy(
        name=strategy_name,
        fingerprint_bits=inner.whole_number("fingerprint_bits", 12, low=4, high=32),
        bucket=inner.whole_number("bucket", 4, low=1, high=64),
        gamma_us=inner.duration("gamma", period_us),
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
        **slack,
        **waits,
        **bounds,
        **parse_details(reader),
    )


def _check_rate(quality: Reader, rate: float, strategy: MembershipStrategy, streams: int) -> None:
    """Refuse a rate for which no filter can be sized.

    An element is looked up in the filter of every other stream, and each of them may have its share of the errors.
    """
    least = 2 * strategy.bucket / 2**LONGEST_FINGERPRINT
    if strategy.name not in _CUCKOO or least <= rate / (streams - 1):
        return
    enough = Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(least * (streams - 1))
    smaller = "a smaller bucket, or " if strategy.bucket > 1 else ""
    problem = f"needs fingerprints of more than {LONGEST_FINGERPRINT} bits over {streams} streams"
    remedy = f"write {enough:g} or more, or choose {smaller}strategy exact"
    raise quality.fail("false_positive_rate", rate, problem, remedy)


def _parse_elements(reader: Reader, aliases: tuple[str, ...]) -> tuple[ex.Column, ...]:
    """Read ``element: column``, of every stream, or ``element: {alias: column}``."""
    value = reader.take("element", schema=any_of(TEXT, MAPPING | {"minProperties": 2, "additionalProperties": TEXT}))
    if isinstance(value, str) and value.strip():
        columns = [parse_column(reader, "element", value, aliases, alias) for alias in aliases]
        if columns[0] == columns[1]:
            name, (first, second, *more) = ".".join((columns[0].name, *columns[0].fields)), aliases
            problem = f"is a column of {columns[0].alias} alone, but is taken of every stream"
            remedy = f"write {name}, or {{{first}: {name}, {second}: {name}{', ...' if more else ''}}}"
            raise reader.fail("element", value, problem, remedy)
        return tuple(columns)
    if not isinstance(value, Mapping):
        remedy = f"write a column, or {{{aliases[0]}: a, {aliases[1]}: b}}"
        raise reader.fail("element", value, "is not a column", remedy)
    inner = Reader(value, reader.source, "element")
    columns = []
    for alias in aliases:
        text = inner.text(alias)
        column = parse_column(inner, alias, text, aliases, alias)
        if column.alias != alias:
            raise wrong_stream(inner, alias, text, column.alias)
        columns.append(column)
    inner.done()
    return tuple(columns)


def _parse_windows(reader: Reader, aliases: tuple[str, ...]) -> tuple[Grid, ...]:
    """Read ``window: {size: ..., slide: ...}`` or ``window: 1 h``, of every stream, or ``window: {alias: window}``."""
    by_alias = MAPPING | {"additionalProperties": WINDOW_SCHEMA, "propertyNames": {"not": choice(("size", "slide"))}}
    by_alias = any_of(by_alias, MAPPING | {"minProperties": 2, "additionalProperties": MAPPING})
    value = reader.take("window", schema=any_of(DURATION, MAPPING, by_alias))
    per_alias = (
        isinstance(value, Mapping)
        and value
        and (all(isinstance(window, Mapping) for window in value.values()) or not {"size", "slide"} & set(value))
    )
    if not per_alias:
        return (parse_window(Reader({"window": value}, reader.source)),) * len(aliases)
    inner = Reader(value, reader.source, "window")
    windows = tuple(parse_window(inner, alias) for alias in aliases)
    inner.done()
    return windows
