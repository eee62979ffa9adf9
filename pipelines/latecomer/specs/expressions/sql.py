"""Render an expression as Spark SQL that cannot fail at run time.

The SQL is for ANSI mode. Every operation is parenthesised and every literal is escaped.
"""

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
    Value,
    WithinDistance,
)

_LIMIT = f"{2.0**63!r}D"
"""The least number that is too large for a whole number of 64 bits."""
_TRY = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
"""Operators -> Spark's functions that give null where the operator fails."""


def to_spark_sql(expr: Expr, column_name: Callable[[Column], str]) -> str:  # noqa: C901 - a case per node
    """Return the expression as Spark SQL.

    Parameters
    ----------
    expr
        The expression.
    column_name
        Gives the SQL of a column, already quoted, without its fields.
    """

    def sql(child: Expr) -> str:
        return to_spark_sql(child, column_name)

    match expr:
        case Column():
            return ".".join((column_name(expr), *map(_quoted, expr.fields)))
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
            return f"({sql(operand)} {'NOT ' if negated else ''}LIKE {_literal(_escape_pattern(pattern))})"
        case WithinDistance(x1, y1, x2, y2, radius):
            a, b, c, d = (f"CAST({sql(operand)} AS DOUBLE)" for operand in (x1, y1, x2, y2))
            dx, dy = f"(({a}) - ({c}))", f"(({b}) - ({d}))"
            return f"({dx} * {dx} + {dy} * {dy} <= {_literal(radius * radius)})"
        case Call(name, args):
            if name in ("floor", "ceil"):
                # Spark gives 0 for NaN, and the nearest whole number of 64 bits for a number beyond them
                value = f"CAST({sql(args[0])} AS DOUBLE)"
                return f"(CASE WHEN {value} >= -{_LIMIT} AND {value} < {_LIMIT} THEN {name}({value}) END)"
            if name in ("round", "sqrt", "pow"):
                first = f"CAST({sql(args[0])} AS DOUBLE)"
                kind = "INT" if name == "round" else "DOUBLE"
                rest = "".join(f", CAST({sql(arg)} AS {kind})" for arg in args[1:])
                return f"{name}({first}{rest})"
            if name == "abs":  # Spark's function fails on the least integer, and rounds a decimal to 34 digits
                return f"(CASE WHEN {sql(args[0])} < 0 THEN try_subtract(0, {sql(args[0])}) ELSE {sql(args[0])} END)"
            if name == "substr":
                places = "".join(f", try_cast({sql(arg)} AS INT)" for arg in args[1:])
                return f"substr({sql(args[0])}{places})"
            if name == "size":
                return f"CAST(size({sql(args[0])}) AS BIGINT)"
            return f"{name}({', '.join(map(sql, args))})"
    raise AssertionError(expr)


def _quoted(field: str) -> str:
    return "`" + field.replace("`", "``") + "`"


def _escape_pattern(pattern: str) -> str:
    """Return a LIKE pattern with backslashes that stand for themselves; Spark fails at one that escapes nothing."""
    return pattern.replace("\\", "\\\\")


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"{value}L"  # no cast: beside a decimal, Spark counts only the digits that a literal has
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    escaped = "".join(c if c.isascii() and c.isprintable() and c not in "'\\$" else _escape(c) for c in value)
    return f"'{escaped}'"


def _escape(char: str) -> str:
    if char in "'\\":
        return "\\" + char
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
