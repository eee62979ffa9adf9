"""What query files of several kinds may say: columns, conditions, strategies, qualities; and how a spec is written out again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from latecomer.specs import expressions as ex
from latecomer.specs.errors import SpecError, shorten
from latecomer.specs.names import ALIAS, RESERVED, folded, stored_name
from latecomer.specs.reader import Reader, texts

ENVELOPE = ("provenance", "revision", "published_seq")
"""Columns every result table has; no query may name its own so."""
STORED = ("wait_us", "error", "period_start")
"""Columns that stored tables have beside a result's own; no query may name its own so either."""
INNER = ("_m", "shard", "closed_seq", "repaired_in", *STORED, "_last", "_nth")
"""Columns that windowed kinds have beside a result's own while they work; no windowed query may name its own so."""
_NUMBERED = re.compile(r"_(first_(rows|\d+)|(error|join)_\d+|below|upto|all|none|often|value)")
"""More of them, those of repair."""
_SPACED = re.compile(r"\s*[A-Za-z_]\w*( \w+)+\s*")


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


def of_another(reader: Reader, alias: str, text: str, other: str | None) -> SpecError:
    """The error of a column of stream `other` where one of `alias`, which is the key, is asked for."""
    problem = f"is a column of {other}, not of {alias}"
    return reader.fail(alias, text, problem, f"write a column of {alias}, with or without its alias in front")


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


def filters_of(reader: Reader, aliases: tuple[str, ...], otherwise: str) -> ex.Expr | None:
    """``where: condition``, optional, of which each part that ``and`` joins reads one stream; `otherwise` is the remedy of one that reads two."""
    found = where_of(reader, aliases)
    for part in () if found is None else ex.conjuncts(found):
        read = {column.alias for column in ex.columns(part)}
        if len(read) != 1:
            remedy = otherwise if read else f"compare a column, such as {aliases[0]}.x"
            problem = f"reads {len(read) or 'no'} streams, but says which rows of one take part"
            raise reader.fail("where", ex.to_text(part), problem, remedy)
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
