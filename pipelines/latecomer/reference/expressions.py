"""The value of an expression for one tuple, by SQL's three-valued logic."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

from latecomer.specs.expressions.tree import (
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
)

_WIDE = Context(prec=700)
Value: TypeAlias = Any
"""A number, text, boolean, date or datetime, or None for null. Python's operators decide about its type, as in SQL."""


def evaluate(expr: Expr, lookup: Callable[[Column], Value]) -> Value:  # noqa: C901 - a case per node
    """Return the value of an expression, where `lookup` returns the value of a column in the tuple or pair.

    A struct and a map are dicts, an array is a list.
    """
    match expr:
        case Column(fields=fields):
            value = lookup(expr)
            for name in fields:
                value = None if value is None else value.get(name)
            return value
        case Literal(value):
            return value
        case IsNull(operand, negated):
            return (evaluate(operand, lookup) is None) != negated
        case Binary(op, left, right) if op in ("and", "or"):
            a, b = evaluate(left, lookup), evaluate(right, lookup)
            decisive = op == "or"
            if decisive in (a, b):
                return decisive
            return None if a is None or b is None else not decisive
    values = [evaluate(child, lookup) for child in children(expr)]
    if isinstance(expr, Call) and expr.name in ("coalesce", "least", "greatest"):
        known = [v for v in values if v is not None]
        if not known:
            return None
        best = known[0]
        for value in known[1:] if expr.name != "coalesce" else ():
            if _compare("<" if expr.name == "least" else ">", *_alike(value, best)):
                best = value
        return best
    if any(value is None for value in values):
        return None
    match expr:
        case Unary("not", _):
            return not values[0]
        case Unary():
            return _compute("-", 0, values[0]) if isinstance(values[0], int) else -values[0]
        case Binary(op, _, _):
            return _compute(op, values[0], values[1])
        case InList(_, listed, negated):
            return any(_compare("=", *_alike(values[0], item.value)) for item in listed) != negated
        case Like(_, pattern, negated):
            return _like(values[0], pattern) != negated
        case WithinDistance(_, _, _, _, radius):
            x1, y1, x2, y2 = map(float, values)
            return (x1 - x2) * (x1 - x2) + (y1 - y2) * (y1 - y2) <= radius * radius
        case Call(name, _):
            return _function(name, values)
    raise AssertionError(expr)


def _compute(op: str, a: Value, b: Value) -> Value:
    if op in COMPARISONS:
        return _compare(op, *_alike(a, b))
    if op == "/":
        a, b = float(a), float(b)
    if op in ("/", "%") and b == 0:
        return None
    try:
        value = {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "/": lambda: a / b,
            "%": lambda: _remainder(a, b),
        }[op]()
    except OverflowError:
        return None
    return None if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value


def _remainder(a: Value, b: Value) -> Value:
    """Return the remainder with the sign of the dividend, as in SQL."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) % abs(b) * (1 if a >= 0 else -1)
    return math.nan if math.isinf(a) else math.fmod(a, b)


def _compare(op: str, a: Value, b: Value) -> bool:
    """Compare two values in Spark's order of floats: NaN equals itself and is greater than everything else."""
    nans = [isinstance(value, float) and math.isnan(value) for value in (a, b)]
    if any(nans):
        a, b = nans
    if op == "=":
        return bool(a == b)
    if op == "!=":
        return bool(a != b)
    if op in ("<", "<="):
        return bool(a < b or (op == "<=" and a == b))
    return bool(a > b or (op == ">=" and a == b))


def _alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Convert a text to the type of the other value, a date or an instant.

    An instant is a datetime, or an integer of microseconds since the epoch.
    """
    if isinstance(a, str) and not isinstance(b, str):
        return _instant(a, b), b
    if isinstance(b, str) and not isinstance(a, str):
        return a, _instant(b, a)
    return a, b


def _instant(text: str, like: Value) -> Value:
    if isinstance(like, date) and not isinstance(like, datetime):
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text)
    if isinstance(like, datetime):
        return moment
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def _like(value: str, pattern: str) -> bool:
    return (
        re.fullmatch("".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in pattern), value, re.DOTALL) is not None
    )


def _function(name: str, values: list[Value]) -> Value:
    first = values[0]
    match name:
        case "abs":
            return abs(first) if abs(first) != 1 << 63 or isinstance(first, float) else None
        case "sqrt":
            return math.sqrt(first) if first >= 0 else math.nan
        case "pow":
            return _power(float(first), float(values[1]))
        case "floor" | "ceil":
            return _whole(float(first), math.floor if name == "floor" else math.ceil)
        case "round":
            return _round(float(first), *values[1:])
        case "lower" | "upper":
            return first.lower() if name == "lower" else first.upper()
        case "length" | "size":
            return len(first)
        case "concat":
            return "".join(values)
        case "substr":
            return _substr(*values)
    raise AssertionError(name)


def _power(base: float, exponent: float) -> float:
    """Return the power as IEEE 754 defines it, without exceptions."""
    try:
        value = base**exponent
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    return math.nan if isinstance(value, complex) else value


def _whole(value: float, how: Callable[[float], int]) -> int | None:
    """Return a double as a 64-bit integer; None for NaN and for values out of range."""
    return how(value) if -(2.0**63) <= value < 2.0**63 else None


def _round(value: float, digits: int = 0) -> float:
    """Round the shortest decimal that denotes the double, half away from zero."""
    if not math.isfinite(value):
        return value
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _WIDE))


def _substr(text: str, start: int, length: int | None = None) -> str:
    """Return a part of a text; places count from 1, negative ones from the end.

    Places before the text count towards the length.
    """
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = len(text) if length is None else begin + max(length, 0)
    return text[max(begin, 0) : max(end, 0)]
