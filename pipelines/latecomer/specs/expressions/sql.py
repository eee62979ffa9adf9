"""An expression as Spark SQL that cannot fail at run time: ANSI mode, every operation parenthesised, every literal escaped."""

from __future__ import annotations

from collections.abc import Callable

from latecomer.specs.expressions.tree import (
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
)

_BEYOND = f"{2.0**63!r}D"
_TRY = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}


def to_spark_sql(expr: Expr, column_name: Callable[[Column], str]) -> str:
    """Spark SQL that cannot fail at run time; `column_name` returns SQL that needs no escaping."""

    def sql(child: Expr) -> str:
        return to_spark_sql(child, column_name)

    match expr:
        case Column():
            return column_name(expr)
        case Literal(value):
            return _literal(value)
        case Unary(op, operand):
            return f"(NOT {sql(operand)})" if op == "not" else f"try_subtract(0, {sql(operand)})"
        case Binary(op, left, right) if op in _TRY:
            return f"{_TRY[op]}({sql(left)}, {sql(right)})"
        case Binary("/", left, right):
            return f"try_divide(CAST({sql(left)} AS DOUBLE), CAST({sql(right)} AS DOUBLE))"
        case Binary("%", left, right):
            return f"try_mod({sql(left)}, {sql(right)})"
        case Binary(op, left, right):
            return f"({sql(left)} {op.upper()} {sql(right)})"
        case IsNull(operand, negated):
            return f"({sql(operand)} IS {'NOT ' if negated else ''}NULL)"
        case InList(operand, values, negated):
            return f"({sql(operand)} {'NOT ' if negated else ''}IN ({', '.join(map(sql, values))}))"
        case Like(operand, pattern, negated):
            return f"({sql(operand)} {'NOT ' if negated else ''}LIKE {_literal(_doubled(pattern))})"
        case WithinDistance(x1, y1, x2, y2, radius):
            a, b, c, d = (f"CAST({sql(each)} AS DOUBLE)" for each in (x1, y1, x2, y2))
            return f"((({a}) - ({c})) * (({a}) - ({c})) + (({b}) - ({d})) * (({b}) - ({d})) <= {_literal(radius * radius)})"
        case Call(name, args):
            if name in ("floor", "ceil"):
                # whole numbers of 64 bits: Spark's of NaN is 0, of one beyond them the nearest there is
                value = f"CAST({sql(args[0])} AS DOUBLE)"
                return f"(CASE WHEN {value} >= -{_BEYOND} AND {value} < {_BEYOND} THEN {name}({value}) END)"
            if name in ("round", "sqrt", "pow"):
                first = f"CAST({sql(args[0])} AS DOUBLE)"
                whole = "INT" if name == "round" else "DOUBLE"
                rest = "".join(f", CAST({sql(arg)} AS {whole})" for arg in args[1:])
                return f"{name}({first}{rest})"
            if name == "abs":  # Spark's fails on the smallest integer, and rounds a decimal to 34 digits
                return f"(CASE WHEN {sql(args[0])} < 0 THEN try_subtract(0, {sql(args[0])}) ELSE {sql(args[0])} END)"
            if name == "substr":
                places = "".join(f", try_cast({sql(arg)} AS INT)" for arg in args[1:])
                return f"substr({sql(args[0])}{places})"
            return f"{name}({', '.join(map(sql, args))})"
    raise AssertionError(expr)


def _doubled(pattern: str) -> str:
    """A LIKE pattern in which a backslash is itself; Spark refuses at run time one that escapes nothing."""
    return pattern.replace("\\", "\\\\")


def _literal(value: int | float | str | bool | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"{value}L"  # a plain literal: beside a decimal Spark takes it for one of no more digits than it has
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    escaped = "".join(c if c.isascii() and c.isprintable() and c not in "'\\$" else _escape(c) for c in value)
    return f"'{escaped}'"


def _escape(char: str) -> str:
    if char in "'\\":
        return "\\" + char
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
