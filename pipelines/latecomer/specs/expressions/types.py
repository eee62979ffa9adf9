"""Check an expression against the streams' columns: they exist, and its operations have operands of like types.

Types are ``number``, ``string``, ``bool``, ``timestamp``, ``date``, or the engine's own name of any other type, which
compares with itself alone. None is the type of null, and of a column whose type is unknown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from latecomer.specs.errors import SpecError
from latecomer.specs.expressions.tree import (
    ALWAYS_THERE,
    COMPARISONS,
    Binary,
    Call,
    Column,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Unary,
    Value,
    WithinDistance,
    children,
    columns,
    to_text,
    written_name,
)


@dataclass(frozen=True)
class Nested:
    """The type of a struct or of a map, whose values an expression reads with dots.

    Attributes
    ----------
    name
        The engine's name of the type.
    fields
        The types of a struct's fields by name.
    values
        The type of a map's values; None for a struct.
    """

    name: str
    fields: Mapping[str, Kind] = field(default_factory=dict)
    values: Kind | None = None


Kind: TypeAlias = str | Nested
"""The type of a column: a name, as the module has them, or a type with parts."""

_FIXED_TYPES: Mapping[str, Kind] = {"seq": "number", "event_ts": "timestamp", "arrival_ts": "timestamp"}
"""Types of the columns that every stream has."""
_COLLECTIONS = ("array<", "map<", "list<", "large_list<")
"""Beginnings of the names that Spark and Arrow have for types of many values."""
_TEXT_FUNCTIONS = ("lower", "upper", "substr", "concat")
_NUMBER_FUNCTIONS = ("abs", "round", "floor", "ceil", "sqrt", "pow", "length")
_TIME_TEXTS = {
    "timestamp": (
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)"),
        "write it as '2013-01-31T12:00:00Z', with a time zone",
    ),
    "date": (re.compile(r"\d{4}-\d\d-\d\d"), "write it as '2013-01-31'"),
}
"""Types of times -> the texts that may be compared with them, and the remedy of any other text."""


def check_columns(expr: Expr, schemas: Mapping[str, Sequence[str]], *, source: str, key: str) -> None:
    """Refuse columns that their stream does not have.

    Parameters
    ----------
    expr
        The expression.
    schemas
        Alias -> the names of its stream's columns.
    source, key
        The file and the dotted key, for error messages.

    Raises
    ------
    SpecError
        A column does not exist; the remedy names the closest ones that do.
    """
    for column in sorted(columns(expr), key=lambda column: (column.alias, column.name, column.fields)):
        known = schemas[column.alias]
        if column.name in known or column.name in ALWAYS_THERE:
            continue
        value = to_text(column) if column.fields else f"{column.alias}.{column.name}"
        raise SpecError(source, key, value, "its stream has no such column", _column_remedy(column, known))


def _column_remedy(column: Column, known: Sequence[str]) -> str:
    """Return the remedy of a column that its stream does not have."""
    path = (column.name, *column.fields)
    dotted = next((name for name in (".".join(path[:size]) for size in range(len(path), 1, -1)) if name in known), None)
    if dotted is not None:
        return f"the stream has a column with a dot in its name; write it in double quotes: {written_name(dotted)}"
    close = difflib.get_close_matches(column.name, known, n=3)
    if not close and column.fields and column.fields[0] in known:
        rest = ".".join(map(written_name, column.fields))
        return f"{column.name} is no alias of the query either; did you mean {column.alias}.{rest}"
    close = difflib.get_close_matches(".".join(path), known, n=3) or close
    names = ", ".join(map(written_name, close or list(known)[:20]))
    if close:
        return f"did you mean one of these columns: {names}"
    return f"use one of {names}; if it is text, write it in quotes: '{column.name}'"


def check_types(  # noqa: C901 - a case per node
    expr: Expr, types: Mapping[tuple[str, str], Kind], *, source: str, key: str
) -> str | None:
    """Return the type of the expression's value; refuse an expression that compares or computes with unlike types.

    Parameters
    ----------
    expr
        The expression.
    types
        Pairs (alias, column) -> types.
    source, key
        The file and the dotted key, for error messages.

    Raises
    ------
    SpecError
        Operands of an operation do not have the types that it needs, or a column does not have a field.
    """

    def fail(problem: str, remedy: str) -> SpecError:
        return SpecError(source, key, to_text(expr), problem, remedy)

    operands = [check_types(child, types, source=source, key=key) for child in children(expr)]
    match expr:
        case Column(alias, name):
            kind = _kind_inside(expr, _FIXED_TYPES.get(name) or types.get((alias, name)), fail)
            return kind.name if isinstance(kind, Nested) else kind
        case Literal(value):
            return _type_of(value)
        case Binary(op, _, _) if op in ("and", "or"):
            if not _all_are("bool", operands):
                raise fail(f"`{op}` needs two conditions", "compare the columns with other values")
            return "bool"
        case Binary(op, left, right) if op in COMPARISONS:
            time = next((kind for kind in _TIME_TEXTS if kind in operands), None)
            if "string" in operands and time is not None:
                _check_time_text((left, right)[operands.index("string")], time, fail)
            elif None not in operands and operands[0] != operands[1]:
                raise fail(f"compares a {operands[0]} with a {operands[1]}", "compare values of the same type")
            elif any(kind is not None and "map<" in kind for kind in operands):
                raise fail("compares maps, which cannot be compared", "compare columns of single values")
            return "bool"
        case Binary(op, _, _):
            if not _all_are("number", operands):
                raise fail(f"`{op}` needs numbers", "use number columns")
            return "number"
        case Unary("not", _):
            if not _all_are("bool", operands):
                raise fail("`not` needs a condition", "use one here")
            return "bool"
        case Unary(op, _):
            if not _all_are("number", operands):
                raise fail(f"`{op}` needs a number", "use one here")
            return "number"
        case InList(values=values):
            for literal in values:
                kind = _type_of(literal.value)
                if operands[0] in _TIME_TEXTS and kind == "string":
                    _check_time_text(literal, operands[0], fail)
                elif operands[0] is not None and kind != operands[0]:
                    raise fail(f"looks for a {kind} among {operands[0]} values", "list values of the column's type")
            return "bool"
        case IsNull():
            return "bool"
        case Like():
            if not _all_are("string", operands):
                raise fail("`like` needs text", "use a text column")
            return "bool"
        case WithinDistance():
            if not _all_are("number", operands):
                raise fail("within_distance needs number columns", "use number columns")
            return "bool"
        case Call(name, _):
            return _check_call(name, operands, fail)
    return None


def _kind_inside(column: Column, kind: Kind | None, fail: Callable[[str, str], SpecError]) -> Kind | None:
    """Return the type of the value to which a column's fields lead; refuse a field that does not exist."""
    outer = Column(column.alias, column.name)
    for name in column.fields:
        if kind is None:  # its type is unknown
            return None
        if not isinstance(kind, Nested):
            problem = f"{to_text(outer)} is a {kind}, which has no fields"
            raise fail(problem, f"write {to_text(outer)}; only structs and maps have fields")
        if kind.values is None and name not in kind.fields:
            close = difflib.get_close_matches(name, kind.fields, n=3)
            names = ", ".join(map(written_name, close or list(kind.fields)[:20]))
            remedy = f"did you mean one of its fields: {names}" if close else f"it has the fields {names}"
            raise fail(f"{to_text(outer)} has no field {name!r}", remedy)
        kind = kind.fields[name] if kind.values is None else kind.values
        outer = Column(outer.alias, outer.name, (*outer.fields, name))
    return kind


def _check_call(name: str, operands: Sequence[str | None], fail: Callable[[str, str], SpecError]) -> str | None:
    """Return the type of a call's value; refuse operands of other types than the function takes."""
    if name == "size":
        if operands[0] is not None and not operands[0].startswith(_COLLECTIONS):
            raise fail("size() needs an array or a map", "use length() for the characters of a text")
        return "number"
    if name in _NUMBER_FUNCTIONS and name != "length" and not _all_are("number", operands):
        raise fail(f"{name}() needs numbers", "use number columns")
    texts = operands if name == "concat" else operands[:1]
    if name in (*_TEXT_FUNCTIONS, "length") and not _all_are("string", texts):
        raise fail(f"{name}() needs text", "use text columns")
    if name == "substr" and not _all_are("number", operands[1:]):
        raise fail("substr() needs numbers after its text", "write substr(text, 1, 3)")
    if name in _NUMBER_FUNCTIONS:
        return "number"
    if name in _TEXT_FUNCTIONS:
        return "string"
    known = dict.fromkeys(kind for kind in operands if kind)
    if name in ("least", "greatest", "coalesce") and len(known) > 1:
        raise fail(f"{name}() mixes types", "give it values of one type")
    return next(iter(known), None)


def _all_are(kind: str, operands: Sequence[str | None]) -> bool:
    return all(operand in (kind, None) for operand in operands)


def _type_of(value: Value) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def _check_time_text(text: Expr, kind: str, fail: Callable[[str, str], SpecError]) -> None:
    """Refuse a text beside a timestamp that is not an instant, or beside a date that is not a day.

    Spark casts the text, and the cast of one that passes cannot fail.
    """
    pattern, remedy = _TIME_TEXTS[kind]
    if not isinstance(text, Literal) or not isinstance(text.value, str) or not pattern.fullmatch(text.value):
        raise fail(f"compares a {kind} with text that is not a {kind}", remedy)
    try:
        datetime.fromisoformat(text.value)
    except ValueError:
        raise fail(f"compares a {kind} with a date that does not exist", remedy) from None
