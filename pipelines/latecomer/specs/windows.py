"""What the windowed kinds share: windows, group columns, strategies, and how a spec is written out again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from latecomer.specs import expressions as ex
from latecomer.specs.common import (
    ALIAS,
    RESERVED,
    Reader,
    SpecError,
    folded,
    parse_duration,
    shorten,
    stored_name,
    texts,
)
from latecomer.specs.spec import Spec

ENVELOPE = ("provenance", "revision", "published_seq")
"""Columns every result table has; no query may name its own so."""
STORED = ("wait_us", "error", "period_start")
"""Columns that stored tables have beside a result's own; no query may name its own so either."""
INNER = ("_m", "shard", "closed_seq", "repaired_in", *STORED, "_last", "_nth")
"""Columns that windowed kinds have beside a result's own while they work; no windowed query may name its own so."""
_NUMBERED = re.compile(r"_(first_(rows|\d+)|(error|join)_\d+|below|upto|all|none|often|value)")
"""More of them, those of repair."""
_SPACED = re.compile(r"\s*[A-Za-z_]\w*( \w+)+\s*")
MOST_SLIDES = 1_000_000
"""Windows one row may fall into. More is a unit mixed up."""


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open windows ``[start, start + size_us)``, `start` a multiple of `slide_us` since the epoch."""

    size_us: int
    slide_us: int


WINDOW = ("window_start", "window_end")
"""Columns by which a result row names its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedSpec(Spec):
    """Base of the kinds whose answers are of windows.

    Attributes
    ----------
    window : Window
        The one that a result row names.
    group_by : tuple of str
        Columns by whose values a window has several answers; results begin with them.
    """

    window: Window
    group_by: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        """Parts of the groups that have a slack of their own."""
        return 1

    @property
    def observe_us(self) -> int | None:
        """How long after its end a window's stragglers are counted, microseconds; None: as the delays have it."""
        return None


def window_of(reader: Reader, name: str = "window") -> Window:
    """``{size: 1 h, slide: 10 min}``, or just a size; the slide is then the size (tumbling windows).

    Raises
    ------
    SpecError
        No window, a slide longer than the size, or more windows to a row than `MOST_SLIDES`.
    """
    value = reader.take(name)
    if isinstance(value, str):
        size_us = parse_duration(value, source=reader.source, key=reader.key(name))
        return Window(size_us, size_us)
    if not isinstance(value, Mapping):
        raise reader.fail(name, value, "is not a window", "write, for example, {size: 1 h, slide: 10 min}")
    inner = Reader(value, reader.source, reader.key(name))
    size_us = inner.duration("size")
    slide_us = inner.duration("slide", size_us)
    inner.done()
    if slide_us > size_us:
        raise inner.fail(
            "slide",
            value["slide"],
            "is longer than the size, so rows would fall between windows",
            "choose a shorter slide",
        )
    if size_us > slide_us * MOST_SLIDES:
        raise inner.fail(
            "slide", value["slide"], f"puts each row into more than {MOST_SLIDES:,} windows", "choose a longer slide"
        )
    return Window(size_us, slide_us)


def column_of(reader: Reader, key: str, text: str, aliases: tuple[str, ...], alias: str) -> ex.Column:
    """A column, of `alias` where the text does not say of which stream."""
    try:
        column = ex.parse(text, source=reader.source, key=reader.key(key), aliases=aliases, default_alias=alias)
    except SpecError:
        if _SPACED.fullmatch(text) and not RESERVED & set(text.lower().split()):
            remedy = f"if it is a column's name with spaces, write {stored_name(text.strip())}"
            raise reader.fail(key, text, "is not a column", remedy) from None
        raise
    if not isinstance(column, ex.Column):
        raise reader.fail(key, text, "is not a column", "name one column of the stream")
    return column


def group_by_of(reader: Reader, alias: str, fixed: Iterable[str]) -> tuple[str, ...]:
    """``group_by: [column, ...]``: columns of the one stream, with or without its alias in front."""
    found: list[str] = []
    taken = {*fixed, *ENVELOPE, *INNER}
    for place, text in enumerate(texts(reader, "group_by", ())):
        key = f"group_by[{place}]"
        column = column_of(reader, key, text, (alias,), alias)
        if column.name in found:
            raise reader.fail(key, text, "is named twice", "remove one")
        if folded(column.name) in taken or _NUMBERED.fullmatch(folded(column.name)):
            raise reader.fail(
                key, text, "is the name of another result column", "rename the column in the source files"
            )
        found.append(column.name)
    return tuple(found)


def select_of(
    reader: Reader,
    aliases: tuple[str, ...],
    fixed: Iterable[str],
    inner: Iterable[str] = INNER,
    carried: Mapping[str, ex.Expr] | None = None,
) -> tuple[ex.SelectItem, ...] | None:
    """``select: [alias.column, expression as name]``; None: every column.

    `fixed` are the names of result columns that are there anyway, `carried` those of them that may be selected all the same: as what they are.
    """
    carried = carried or {}
    taken = {folded(name) for name in (*fixed, *carried, *ENVELOPE, *inner)}
    found: list[ex.SelectItem] = []
    for place, text in enumerate(texts(reader, "select", ())):
        key = f"select[{place}]"
        item = ex.parse_item(text, source=reader.source, key=key, aliases=aliases)
        if folded(item.name) in {folded(other.name) for other in found}:
            raise reader.fail(key, item.name, "is selected twice", "remove one, or rename it with `as`")
        if folded(item.name) in taken and carried.get(item.name) != item.expr:
            why = _why_not(item.name, (*fixed, *carried, *ENVELOPE))
            raise reader.fail(key, item.name, why, "rename it with `as`")
        found.append(item)
    return tuple(found) or None


def fixed_columns_of(reader: Reader, aliases: tuple[str, ...]) -> list[str]:
    """``<alias>_seq`` of each alias; one that would be a name of the product's own is refused."""
    names = [f"{alias}_seq" for alias in aliases]
    for alias, name in zip(aliases, names, strict=True):
        if folded(name) in (*ENVELOPE, *INNER):
            problem = f"is an alias whose column {name} would have the name of another result column"
            raise reader.fail(f"streams.{alias}", alias, problem, "choose another alias")
    return names


def where_of(reader: Reader, aliases: tuple[str, ...]) -> ex.Expr | None:
    """``where: condition``, optional; what is plainly a number or a text is refused."""
    text = reader.text("where", None)
    if text is None:
        return None
    found = ex.parse(text, source=reader.source, key="where", aliases=aliases)
    if (
        (isinstance(found, ex.Literal) and found.value is not None and not isinstance(found.value, bool))
        or (isinstance(found, ex.Binary) and found.op in ex.ARITHMETIC)
        or (isinstance(found, ex.Unary) and found.op == "-")
        or (isinstance(found, ex.Call) and found.name not in ("coalesce", "least", "greatest"))
    ):
        raise reader.fail("where", text, "is a value, not a condition", "compare it with another value")
    return found


def result_name(reader: Reader, key: str, name: str, taken: Iterable[str]) -> str:
    """A result column's name, checked."""
    if not ALIAS.fullmatch(name):
        raise reader.fail(key, name, "is not a valid column name", "use letters, digits and _, not a digit first")
    if folded(name) in map(folded, (*taken, *ENVELOPE, *INNER)) or _NUMBERED.fullmatch(folded(name)):
        raise reader.fail(key, name, _why_not(name, (*taken, *ENVELOPE)), "choose another name")
    return name


def _why_not(name: str, shown: Iterable[str]) -> str:
    results = folded(name) in map(folded, shown)
    return "is the name of another result column" if results else "is reserved for a column of Latecomer itself"


def strategy_of(
    reader: Reader, strategies: tuple[str, ...], default: str, uses: Mapping[str, tuple[str, ...]]
) -> tuple[Reader, str]:
    """``strategy: {name: ..., ...}`` or a bare name; a key that the chosen strategy does not use is refused.

    Parameters
    ----------
    uses
        Key to the strategies that read it.
    """
    value = reader.take("strategy", default)
    inner = Reader({"name": value} if isinstance(value, str) else value, reader.source, reader.key("strategy"))
    name = inner.choice("name", strategies, default)
    for key, users in uses.items():
        if name not in users and inner.has(key):
            raise inner.fail(
                key, inner.take(key, None), f"is not used by {name}", f"remove it, or choose {' or '.join(users)}"
            )
    return inner, name


def quality_of(reader: Reader, strategy: str, needs: tuple[str, ...], example: str) -> Reader:
    """``quality: {...}``; required where the strategy steers by it, else an empty one."""
    inner = reader.mapping("quality", None)
    if inner is None:
        if strategy in needs:
            raise reader.fail(
                "quality",
                None,
                f"is missing, but strategy {strategy} needs it",
                f"write, for example, quality: {{{example}}}",
            )
        return Reader({}, reader.source, reader.key("quality"))
    return inner


def jsonable(value: Any) -> Any:
    """Specs, expressions and tuples as JSON-able values; expressions in their canonical text."""
    if isinstance(value, ex.NODES):
        return ex.to_text(value)
    if isinstance(value, ex.SelectItem):
        return [value.name, ex.to_text(value.expr)]
    if isinstance(value, (tuple, list)):
        return [jsonable(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: jsonable(getattr(value, each.name)) for each in fields(value)}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{shorten(value)} cannot be written as JSON")
