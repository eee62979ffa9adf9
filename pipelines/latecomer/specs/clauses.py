"""Keys of query files that several kinds have: columns, conditions, strategies and qualities; and values as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from latecomer.specs import expressions as ex
from latecomer.specs.errors import SpecError, shorten
from latecomer.specs.fragments import MAPPING, any_of, choice, note
from latecomer.specs.names import ALIAS, RESERVED, fold_case, stored_name
from latecomer.specs.reader import Reader

ENVELOPE = ("provenance", "revision", "published_seq")
"""Columns that every result table has. No result column of a query may have such a name."""
STORED = ("wait_us", "error", "error_at_close", "period_start")
"""Columns that stored tables have beside the result's. No result column of a query may have such a name."""
INNER = ("_m", "shard", "closed_seq", "repaired_in", *STORED, "_last", "_nth")
"""Columns that windowed kinds add while they work. No result column of a windowed query may have such a name."""
_REPAIR_COLUMN = re.compile(r"_(first_(rows|\d+)|(error|join)_\d+|below|upto|all|none|often|value)")
"""Further names like `INNER`, which repair uses."""
_SPACED = re.compile(r"\s*[A-Za-z_]\w*( \w+)+\s*")


def parse_column(reader: Reader, key: str, text: str, aliases: tuple[str, ...], default_alias: str) -> ex.Column:
    """Parse a column's name, which may have its alias in front; without one it is a column of `default_alias`."""
    try:
        column = ex.parse(text, source=reader.source, key=reader.key(key), aliases=aliases, default_alias=default_alias)
    except SpecError:
        if _SPACED.fullmatch(text) and not RESERVED & set(text.lower().split()):
            remedy = f"if it is a column's name with spaces, write {stored_name(text.strip())}"
            raise reader.fail(key, text, "is not a column", remedy) from None
        raise
    if not isinstance(column, ex.Column):
        raise reader.fail(key, text, "is not a column", "name one column of the stream")
    return column


def wrong_stream(reader: Reader, alias: str, text: str, other: str | None) -> SpecError:
    """Return the error of a column of stream `other` under a key, `alias`, that takes columns of that stream."""
    problem = f"is a column of {other}, not of {alias}"
    return reader.fail(alias, text, problem, f"write a column of {alias}, with or without its alias in front")


def parse_group_by(
    reader: Reader, alias: str, fixed: Iterable[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ex.Column], ...]]:
    """Read ``group_by: [column, ...]`` of the query's one stream; `fixed` are the names of other result columns.

    Returns
    -------
    names, fields
        The names of the result columns, and those of them that are fields inside a column, with that field.
    """
    names: list[str] = []
    fields: list[tuple[str, ex.Column]] = []
    for place, text in enumerate(reader.optional_texts("group_by")):
        key = f"group_by[{place}]"
        column = parse_column(reader, key, text, (alias,), alias)
        name = column.short_name
        if name in names:
            same = (name, column) in fields or not (column.fields or name in dict(fields))
            problem = "is named twice" if same else f"would be a second result column {name}"
            raise reader.fail(key, text, problem, "remove one")
        if _is_taken(name, fixed):
            problem, remedy = "is the name of another result column", "rename the column in the source files"
            raise reader.fail(key, text, problem, remedy)
        names.append(name)
        fields += [(name, column)] if column.fields else []
    return tuple(names), tuple(fields)


def parse_select(
    reader: Reader,
    aliases: tuple[str, ...],
    fixed: Iterable[str],
    inner: Iterable[str] = INNER,
    carried: Mapping[str, ex.Expr] | None = None,
) -> tuple[ex.SelectItem, ...] | None:
    """Read ``select: [alias.column, expression as name]``; None: every column.

    Parameters
    ----------
    reader, aliases
        The file and the aliases of its streams.
    fixed
        Names of the result columns that the query has in any case.
    inner
        Further names that are taken.
    carried
        Names of fixed result columns -> the expressions that may be selected under them.
    """
    carried = carried or {}
    taken = {fold_case(name) for name in (*fixed, *carried, *ENVELOPE, *inner)}
    items: list[ex.SelectItem] = []
    for place, text in enumerate(reader.optional_texts("select")):
        key = f"select[{place}]"
        item = ex.parse_item(text, source=reader.source, key=key, aliases=aliases)
        if fold_case(item.name) in {fold_case(other.name) for other in items}:
            raise reader.fail(key, item.name, "is selected twice", "remove one, or rename it with `as`")
        if fold_case(item.name) in taken and carried.get(item.name) != item.expr:
            problem = _why_taken(item.name, (*fixed, *carried, *ENVELOPE))
            raise reader.fail(key, item.name, problem, "rename it with `as`")
        items.append(item)
    return tuple(items) or None


def sequence_columns(reader: Reader, aliases: tuple[str, ...]) -> list[str]:
    """Return the result column ``<alias>_seq`` of each alias; refuse an alias for which that name is taken."""
    names = [f"{alias}_seq" for alias in aliases]
    for alias, name in zip(aliases, names, strict=True):
        if fold_case(name) in (*ENVELOPE, *INNER):
            problem = f"is an alias whose column {name} would have the name of another result column"
            raise reader.fail(f"streams.{alias}", alias, problem, "choose another alias")
    return names


def parse_where(reader: Reader, aliases: tuple[str, ...]) -> ex.Expr | None:
    """Read ``where: condition``, which is optional; refuse an expression that is plainly a number or a text."""
    text = reader.text("where", None)
    if text is None:
        return None
    condition = ex.parse(text, source=reader.source, key="where", aliases=aliases)
    if (
        (isinstance(condition, ex.Literal) and not isinstance(condition.value, bool | None))
        or (isinstance(condition, ex.Binary) and condition.op in ex.ARITHMETIC)
        or (isinstance(condition, ex.Unary) and condition.op == "-")
        or (isinstance(condition, ex.Call) and condition.name not in ("coalesce", "least", "greatest"))
    ):
        raise reader.fail("where", text, "is a value, not a condition", "compare it with another value")
    return condition


def parse_filters(reader: Reader, aliases: tuple[str, ...], remedy: str) -> ex.Expr | None:
    """Read ``where: condition``, which is optional; each part that ``and`` joins must read exactly one stream.

    `remedy` is the remedy of a part that reads several.
    """
    condition = parse_where(reader, aliases)
    for part in () if condition is None else ex.conjuncts(condition):
        read = {column.alias for column in ex.columns(part)}
        if len(read) != 1:
            problem = f"reads {len(read) or 'no'} streams, but says which rows of one take part"
            other_remedy = f"compare a column, such as {aliases[0]}.x"
            raise reader.fail("where", ex.to_text(part), problem, remedy if read else other_remedy)
    return condition


def check_result_name(reader: Reader, name: str, others: Iterable[str]) -> None:
    """Refuse a result column's name, which is also its key, that is not a name or is taken."""
    if not ALIAS.fullmatch(name):
        raise reader.fail(name, name, "is not a valid column name", "use letters, digits and _, not a digit first")
    others = tuple(others)
    if _is_taken(name, others):
        raise reader.fail(name, name, _why_taken(name, (*others, *ENVELOPE)), "choose another name")


def _is_taken(name: str, others: Iterable[str]) -> bool:
    name = fold_case(name)
    return name in map(fold_case, (*others, *ENVELOPE, *INNER)) or _REPAIR_COLUMN.fullmatch(name) is not None


def _why_taken(name: str, results: Iterable[str]) -> str:
    is_result = fold_case(name) in map(fold_case, results)
    return "is the name of another result column" if is_result else "is reserved for a column of Latecomer itself"


def open_strategy(
    reader: Reader, strategies: tuple[str, ...], default: str, uses: Mapping[str, tuple[str, ...]]
) -> tuple[Reader, str]:
    """Read the name in ``strategy: {name: ..., ...}``, or a bare name; refuse keys that the strategy does not use.

    Parameters
    ----------
    reader
        The file.
    strategies, default
        Names of the kind's strategies, and which of them holds where the file names none.
    uses
        Key -> the strategies that use it. All use a key that is not in the mapping.

    Returns
    -------
    Reader, str
        A reader of the other keys, and the name.
    """
    value = reader.take("strategy", default, schema=any_of(choice(strategies), MAPPING))
    inner = Reader({"name": value} if isinstance(value, str) else value, reader.source, reader.key("strategy"))
    name = inner.choice("name", strategies, default)
    for key, users in uses.items():
        if name not in users:
            inner.refuse(key, f"is not used by {name}", f"remove it, or choose {' or '.join(users)}")
    return inner, name


def open_quality(reader: Reader, strategy: str, adaptive: tuple[str, ...], example: str) -> Reader:
    """Return a reader of ``quality: {...}``; a file may lack it only where the strategy is not in `adaptive`."""
    inner = reader.optional_mapping("quality")
    if strategy in adaptive:
        note(reader.key("quality"), MAPPING, True)
    if inner is not None:
        return inner
    if strategy in adaptive:
        problem = f"is missing, but strategy {strategy} needs it"
        raise reader.fail("quality", None, problem, f"write, for example, quality: {{{example}}}")
    return Reader({}, reader.source, reader.key("quality"))


def to_json(value: object) -> object:
    """Return dataclasses, expressions and tuples as JSON-able values; expressions as their canonical text."""
    if isinstance(value, ex.NODES):
        return ex.to_text(value)
    if isinstance(value, ex.SelectItem):
        return [value.name, ex.to_text(value.expr)]
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{shorten(value)} cannot be written as JSON")
