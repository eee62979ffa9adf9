"""Do an expression's columns exist, and does it compare and compute like with like?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

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
    WithinDistance,
    children,
    columns,
    to_text,
)

_TEXT_FUNCTIONS = ("lower", "upper", "substr", "concat")
_NUMBER_FUNCTIONS = ("abs", "round", "floor", "ceil", "sqrt", "pow", "length")


def check_columns(expr: Expr, schemas: Mapping[str, Sequence[str]], *, source: str, key: str) -> None:
    """Refuse columns their stream does not have.

    Raises
    ------
    SpecError
        With the closest column that exists.
    """
    for column in sorted(columns(expr), key=lambda c: (c.alias, c.name)):
        known = schemas[column.alias]
        if column.name not in known and column.name not in ALWAYS_THERE:
            close = difflib.get_close_matches(column.name, known, n=3)
            some = ", ".join(close or list(known)[:20])
            raise SpecError(
                source,
                key,
                f"{column.alias}.{column.name}",
                "its stream has no such column",
                f"did you mean one of these columns: {some}"
                if close
                else f"use one of {some}; if it is text, write it in quotes: '{column.name}'",
            )


_DATED = {
    "timestamp": (
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)"),
        "write it as '2013-01-31T12:00:00Z', with a time zone",
    ),
    "date": (re.compile(r"\d{4}-\d\d-\d\d"), "write it as '2013-01-31'"),
}
"""How text is written that may stand beside a timestamp or a date."""


def _check_dated(text: Expr, kind: str, fail: Callable[[str, str], SpecError]) -> None:
    """A timestamp may be compared with text that is an instant, a date with one that is a day: Spark casts it, and it cannot fail."""
    written, remedy = _DATED[kind]
    if not isinstance(text, Literal) or not isinstance(text.value, str) or not written.fullmatch(text.value):
        raise fail(f"compares a {kind} with text that is not a {kind}", remedy)
    try:
        datetime.fromisoformat(text.value)
    except ValueError:
        raise fail(f"compares a {kind} with a date that does not exist", remedy) from None


def check_types(expr: Expr, types: Mapping[tuple[str, str], str], *, source: str, key: str) -> str | None:
    """Refuse what compares or computes unlike things; returns the kind of the value (None: unknown or null).

    Kinds are ``number``, ``string``, ``bool``, ``timestamp``, ``date``; others compare only with themselves.
    """

    def fail(problem: str, remedy: str) -> SpecError:
        return SpecError(source, key, to_text(expr), problem, remedy)

    kinds = [check_types(child, types, source=source, key=key) for child in children(expr)]
    match expr:
        case Column(alias, name):
            return {"seq": "number", "event_ts": "timestamp", "arrival_ts": "timestamp"}.get(name) or types.get(
                (alias, name)
            )
        case Literal(value):
            return (
                None
                if value is None
                else "bool"
                if isinstance(value, bool)
                else "string"
                if isinstance(value, str)
                else "number"
            )
        case Binary(op, _, _) if op in ("and", "or"):
            if any(kind not in ("bool", None) for kind in kinds):
                raise fail(f"`{op}` needs two conditions", "compare the columns with other values")
            return "bool"
        case Binary(op, left, right) if op in COMPARISONS:
            if "string" in kinds and (dated := next((kind for kind in _DATED if kind in kinds), None)):
                _check_dated((left, right)[kinds.index("string")], dated, fail)
            elif None not in kinds and kinds[0] != kinds[1]:
                raise fail(f"compares a {kinds[0]} with a {kinds[1]}", "compare values of the same type")
            elif any(kind is not None and "map<" in kind for kind in kinds):
                raise fail("compares maps, which cannot be compared", "compare columns of single values")
            return "bool"
        case Binary(op, _, _):
            if any(kind not in ("number", None) for kind in kinds):
                raise fail(f"`{op}` needs numbers", "use number columns")
            return "number"
        case Unary(op, _):
            wanted = "bool" if op == "not" else "number"
            if kinds[0] not in (wanted, None):
                raise fail(f"`{op}` needs a {'condition' if wanted == 'bool' else wanted}", "use one here")
            return wanted
        case InList(values=values):
            for item in values:
                kind = check_types(item, types, source=source, key=key)
                if kinds[0] in _DATED and kind == "string":
                    _check_dated(item, kinds[0], fail)
                elif kinds[0] is not None and kind != kinds[0]:
                    raise fail(f"looks for a {kind} among {kinds[0]} values", "list values of the column's type")
            return "bool"
        case Like() | IsNull():
            if isinstance(expr, Like) and kinds[0] not in ("string", None):
                raise fail("`like` needs text", "use a text column")
            return "bool"
        case WithinDistance():
            if any(kind not in ("number", None) for kind in kinds):
                raise fail("within_distance needs number columns", "use number columns")
            return "bool"
        case Call(name, _):
            if name in _NUMBER_FUNCTIONS and name != "length" and any(kind not in ("number", None) for kind in kinds):
                raise fail(f"{name}() needs numbers", "use number columns")
            texts = kinds if name == "concat" else kinds[:1]
            if name in (*_TEXT_FUNCTIONS, "length") and any(kind not in ("string", None) for kind in texts):
                raise fail(f"{name}() needs text", "use text columns")
            if name == "substr" and any(kind not in ("number", None) for kind in kinds[1:]):
                raise fail("substr() needs numbers after its text", "write substr(text, 1, 3)")
            if name in ("least", "greatest", "coalesce") and len({kind for kind in kinds if kind}) > 1:
                raise fail(f"{name}() mixes types", "give it values of one type")
            if name in _NUMBER_FUNCTIONS:
                return "number"
            return "string" if name in _TEXT_FUNCTIONS else next((kind for kind in kinds if kind), None)
    return None
