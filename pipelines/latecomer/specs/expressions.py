"""Expressions of query files: parsed, checked, and rendered again; never pasted.

A text is parsed by sqlglot, then translated node by node into the small tree below; whatever is not translated is refused
by name. Only that tree is ever rendered as SQL, fully parenthesised, identifiers and literals escaped. A null
operand gives null, and a null never matches; arithmetic that overflows or divides by zero gives null.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from latecomer.specs.common import ALIAS, SpecError, did_you_mean, shorten

ALWAYS_THERE = ("seq", "event_ts", "arrival_ts")
LONGEST, DEEPEST = 4_000, 40
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")
FUNCTIONS = {
    "abs": (1, 1), "round": (1, 2), "floor": (1, 1), "ceil": (1, 1), "sqrt": (1, 1), "pow": (2, 2),
    "least": (2, 20), "greatest": (2, 20), "coalesce": (2, 20),
    "lower": (1, 1), "upper": (1, 1), "length": (1, 1), "substr": (2, 3), "concat": (2, 20),
}  # fmt: skip
_TEXT_FUNCTIONS = ("lower", "upper", "substr", "concat")
_NUMBER_FUNCTIONS = ("abs", "round", "floor", "ceil", "sqrt", "pow", "length")


@dataclass(frozen=True, slots=True)
class Column:
    """``alias.name``."""

    alias: str
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, text, truth value or null."""

    value: int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Unary:
    """``-x`` or ``not x``."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic, a comparison, ``and`` or ``or``."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Call:
    """One of `FUNCTIONS`."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """``x is [not] null``; the only test that is never null itself."""

    operand: Expr
    negated: bool


@dataclass(frozen=True, slots=True)
class InList:
    """``x [not] in (literals)``."""

    operand: Expr
    values: tuple[Literal, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """``x [not] like 'pattern'``, ``%`` and ``_`` as in SQL."""

    operand: Expr
    pattern: str
    negated: bool


@dataclass(frozen=True, slots=True)
class WithinDistance:
    """Two points of the plane at most `radius` apart."""

    x1: Expr
    y1: Expr
    x2: Expr
    y2: Expr
    radius: float


Expr = Union[Column, Literal, Unary, Binary, Call, IsNull, InList, Like, WithinDistance]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A result column: its name and what it is."""

    name: str
    expr: Expr


class _Refused(Exception):
    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy


def parse(text: str, *, source: str, key: str, aliases: Sequence[str], default_alias: str | None = None) -> Expr:
    """An expression over the columns of `aliases`.

    Parameters
    ----------
    text
        Written as in SQL; ``==`` is ``=``.
    source, key
        For error messages.
    default_alias
        What an unqualified column belongs to; None: it must be qualified. A sole alias is the default.

    Raises
    ------
    SpecError
        Not an expression, or one that is not allowed here.
    """
    item = _parse(text, source, key, aliases, default_alias)
    if item.name:
        raise SpecError(source, key, text, "names itself with `as`", "remove the `as`")
    return item.expr


def parse_item(
    text: str, *, source: str, key: str, aliases: Sequence[str], default_alias: str | None = None
) -> SelectItem:
    """``alias.column`` (named ``alias_column``; in a query of one stream just ``column``) or ``expression as name``."""
    item = _parse(text, source, key, aliases, default_alias)
    if item.name:
        return item
    if isinstance(item.expr, Column):
        return SelectItem(item.expr.name if len(aliases) == 1 else f"{item.expr.alias}_{item.expr.name}", item.expr)
    raise SpecError(source, key, text, "has no name", "write `expression as name`")


def _parse(text: str, source: str, key: str, aliases: Sequence[str], default_alias: str | None) -> SelectItem:
    import sqlglot
    from sqlglot import exp

    if not isinstance(text, str) or not text.strip():
        raise SpecError(source, key, text, "must be an expression", "write one over the streams' columns")
    for piece, name in (
        (";", "a semicolon"),
        ("--", "a comment"),
        ("/*", "a comment"),
        ("\x00", "a NUL"),
        ("`", "a back-tick"),
    ):
        if piece in _outside_text(text):
            raise SpecError(source, key, text, f"contains {name}", "write one plain expression")
    if len(text) > LONGEST:
        raise SpecError(source, key, text, f"is longer than {LONGEST} characters", "shorten it")
    sole = aliases[0] if len(aliases) == 1 else None
    try:
        tree = sqlglot.parse_one(text.replace("==", "=") if "==" in _outside_text(text) else text, read="duckdb")
        name = ""
        if isinstance(tree, exp.Alias):
            name = tree.alias
            tree = tree.this
            if not ALIAS.fullmatch(name):
                raise _Refused(f"{name!r} is not a column name", "use letters, digits and _")
        return SelectItem(name, _translate(tree, tuple(aliases), default_alias or sole, 0))
    except _Refused as refused:
        raise SpecError(source, key, text, refused.problem, refused.remedy) from None
    except (sqlglot.errors.SqlglotError, RecursionError, ValueError, AttributeError, TypeError, IndexError, KeyError):
        raise SpecError(
            source, key, text, "is not an expression", "write one such as left.port = 53 and right.port < 1024"
        ) from None


def _outside_text(text: str) -> str:
    """The text without what stands between single quotes."""
    return "".join(text.split("'")[::2])


def _translate(node: Any, aliases: tuple[str, ...], default: str | None, depth: int) -> Expr:
    from sqlglot import exp

    if depth > DEEPEST:
        raise _Refused(f"is nested deeper than {DEEPEST}", "simplify it")

    def inner(child: Any) -> Expr:
        return _translate(child, aliases, default, depth + 1)

    if node.args.get("negate"):
        positive = node.copy()
        positive.set("negate", None)
        return _negate(inner(positive))
    binary = {
        exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.EQ: "=", exp.NEQ: "!=",
        exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.And: "and", exp.Or: "or",
    }  # fmt: skip
    if type(node) in binary:
        return Binary(binary[type(node)], inner(node.this), inner(node.expression))
    if isinstance(node, exp.Paren):
        return inner(node.this)
    if isinstance(node, exp.Column):
        return _column(node, aliases, default)
    if isinstance(node, exp.Literal):
        return Literal(node.this) if node.is_string else Literal(_number(node.this))
    if isinstance(node, exp.Boolean):
        return Literal(bool(node.this))
    if isinstance(node, exp.Null):
        return Literal(None)
    if isinstance(node, exp.Neg):
        operand = inner(node.this)
        if (
            isinstance(operand, Literal)
            and isinstance(operand.value, (int, float))
            and not isinstance(operand.value, bool)
        ):
            return Literal(-operand.value)
        return Unary("-", operand)
    if isinstance(node, exp.Not):
        operand = inner(node.this)
        return _negate(operand)
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        return IsNull(inner(node.this), False)
    if isinstance(node, exp.Between):
        operand = inner(node.this)
        return Binary(
            "and", Binary(">=", operand, inner(node.args["low"])), Binary("<=", operand, inner(node.args["high"]))
        )
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        values = tuple(inner(child) for child in node.expressions)
        if not all(isinstance(value, Literal) and value.value is not None for value in values):
            raise _Refused("lists something else than literals after `in`", "write numbers or quoted text")
        return InList(inner(node.this), values, False)  # type: ignore[arg-type]
    if isinstance(node, exp.Like) and isinstance(node.expression, exp.Literal) and node.expression.is_string:
        return Like(inner(node.this), node.expression.this, False)
    if isinstance(node, (exp.Func, exp.Anonymous)):
        return _call(node, inner)
    raise _Refused(
        f"contains {type(node).__name__.lower()} ({shorten(node.sql(), 40)}), which is not allowed here",
        "use columns, literals, comparisons, and, or, not, arithmetic and simple functions",
    )


def _negate(operand: Expr) -> Expr:
    if isinstance(operand, (IsNull, InList, Like)):
        return replace(operand, negated=not operand.negated)
    return Unary("not", operand)


def _column(node: Any, aliases: tuple[str, ...], default: str | None) -> Column:
    from sqlglot import exp

    if node.args.get("db") or node.args.get("catalog"):
        raise _Refused(f"{node.sql()!r} has too many dots", "write alias.column")
    if not isinstance(node.this, exp.Identifier):
        raise _Refused(f"{node.sql()!r} is not a column", "write alias.column")
    alias, name = node.table or default, node.name
    if alias is None:
        raise _Refused(
            f"column {name!r} names no stream", f"write {aliases[0]}.{name}" if aliases else "write alias.column"
        )
    if alias not in aliases:
        raise _Refused(f"{alias!r} is not one of the query's streams", did_you_mean(alias, aliases))
    return Column(alias, name)


def _number(text: str) -> int | float:
    try:
        value: int | float = int(text)
        if abs(value) >= 1 << 63:
            raise _Refused(f"number {text} does not fit 64 bits", "use a smaller one")
    except ValueError:
        value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        raise _Refused(f"number {text} is not finite", "use a smaller one")
    return value


def _call(node: Any, inner: Callable[[Any], Expr]) -> Expr:
    from sqlglot import exp

    special = {exp.Pow: "pow", exp.Substring: "substr", exp.Ceil: "ceil", exp.Length: "length", exp.Concat: "concat"}
    name = (node.name if isinstance(node, exp.Anonymous) else special.get(type(node), node.sql_name())).lower()
    name = {"ceiling": "ceil", "power": "pow", "substring": "substr", "len": "length"}.get(name, name)
    children = list(node.expressions) if isinstance(node, (exp.Anonymous, exp.Concat)) else _arguments(node)
    if name == "within_distance":
        values = [inner(child) for child in children]
        if len(values) != 5:
            raise _Refused(
                f"within_distance takes 5 arguments, not {len(values)}", "write within_distance(x1, y1, x2, y2, radius)"
            )
        radius = values[4].value if isinstance(values[4], Literal) else None
        if isinstance(radius, bool) or not isinstance(radius, (int, float)) or radius <= 0:
            raise _Refused("within_distance's radius is not a positive number", "write a literal such as 5.0")
        return WithinDistance(values[0], values[1], values[2], values[3], float(radius))
    if name not in FUNCTIONS:
        raise _Refused(
            f"calls {name}(), which is not a function here", did_you_mean(name, [*FUNCTIONS, "within_distance"])
        )
    least, most = FUNCTIONS[name]
    if not least <= len(children) <= most:
        raise _Refused(f"{name}() takes {least} to {most} arguments, not {len(children)}", "mend the call")
    return Call(name, tuple(inner(child) for child in children))


def _arguments(node: Any) -> list[Any]:
    from sqlglot import exp

    found: list[Any] = []
    for value in node.args.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, exp.Expression)]
    return found


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct operands."""
    match expr:
        case Unary(_, operand) | IsNull(operand, _) | InList(operand, _, _) | Like(operand, _, _):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case Call(_, args):
            return args
        case WithinDistance(x1, y1, x2, y2, _):
            return (x1, y1, x2, y2)
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def columns(expr: Expr) -> set[Column]:
    """Every column it reads."""
    return {node for node in walk(expr) if isinstance(node, Column)}


def conjuncts(expr: Expr) -> list[Expr]:
    """Parts that must all hold."""
    if isinstance(expr, Binary) and expr.op == "and":
        return conjuncts(expr.left) + conjuncts(expr.right)
    return [expr]


def to_text(expr: Expr) -> str:
    """Canonical text; `parse` of it gives the same tree."""
    match expr:
        case Column(alias, name):
            return f'{alias}."{name.replace(chr(34), chr(34) * 2)}"' if not ALIAS.fullmatch(name) else f"{alias}.{name}"
        case Literal(value):
            if isinstance(value, str):
                return "'" + value.replace("'", "''") + "'"
            return (
                {None: "null", True: "true", False: "false"}.get(value, repr(value))
                if value is None or isinstance(value, bool)
                else repr(value)
            )
        case Unary(op, operand):
            return f"({op} {to_text(operand)})"
        case Binary(op, left, right):
            return f"({to_text(left)} {op} {to_text(right)})"
        case Call(name, args):
            return f"{name}({', '.join(map(to_text, args))})"
        case IsNull(operand, negated):
            return f"({to_text(operand)} is {'not ' if negated else ''}null)"
        case InList(operand, values, negated):
            return f"({to_text(operand)} {'not ' if negated else ''}in ({', '.join(map(to_text, values))}))"
        case Like(operand, pattern, negated):
            return f"({to_text(operand)} {'not ' if negated else ''}like {to_text(Literal(pattern))})"
        case WithinDistance(x1, y1, x2, y2, radius):
            return f"within_distance({', '.join(map(to_text, (x1, y1, x2, y2)))}, {radius!r})"


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
            close = difflib.get_close_matches(column.name, known, n=3, cutoff=0.5) or list(known)[:20]
            raise SpecError(
                source,
                key,
                f"{column.alias}.{column.name}",
                "no such column in its stream",
                f"did you mean one of these columns: {', '.join(close)}",
            )


def check_types(expr: Expr, types: Mapping[tuple[str, str], str], *, source: str, key: str) -> str | None:
    """Refuse what compares or computes unlike things; returns the kind of the value (None: unknown or null).

    Kinds are ``number``, ``string``, ``bool``, ``timestamp``; others compare only with themselves.
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
                raise fail(f"`{op}` needs two conditions", "compare the columns with something")
            return "bool"
        case Binary(op, _, _) if op in COMPARISONS:
            if None not in kinds and kinds[0] != kinds[1]:
                raise fail(f"compares a {kinds[0]} with a {kinds[1]}", "compare like with like")
            return "bool"
        case Binary(op, _, _):
            if any(kind not in ("number", None) for kind in kinds):
                raise fail(f"`{op}` needs numbers", "use number columns")
            return "number"
        case Unary(op, _):
            wanted = "bool" if op == "not" else "number"
            if kinds[0] not in (wanted, None):
                raise fail(f"`{op}` needs a {wanted}", "mend the operand")
            return wanted
        case InList(_, values, _):
            for item in values:
                kind = check_types(item, types, source=source, key=key)
                if kinds[0] is not None and kind != kinds[0]:
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
            if name in ("lower", "upper", "length", "concat", "substr") and kinds[0] not in ("string", None):
                raise fail(f"{name}() needs text", "use text columns")
            if name in ("least", "greatest", "coalesce") and len({kind for kind in kinds if kind}) > 1:
                raise fail(f"{name}() mixes kinds", "give it values of one kind")
            if name in _NUMBER_FUNCTIONS:
                return "number"
            return "string" if name in _TEXT_FUNCTIONS else next((kind for kind in kinds if kind), None)
    return None


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
            return f"({sql(operand)} {'NOT ' if negated else ''}LIKE {_literal(pattern)})"
        case WithinDistance(x1, y1, x2, y2, radius):
            a, b, c, d = (f"CAST({sql(each)} AS DOUBLE)" for each in (x1, y1, x2, y2))
            return f"((({a}) - ({c})) * (({a}) - ({c})) + (({b}) - ({d})) * (({b}) - ({d})) <= {_literal(radius * radius)})"
        case Call(name, args):
            if name in ("floor", "ceil", "round", "sqrt", "pow"):
                first = f"CAST({sql(args[0])} AS DOUBLE)"
                whole = "INT" if name == "round" else "DOUBLE"
                rest = "".join(f", CAST({sql(arg)} AS {whole})" for arg in args[1:])
                return f"{name}({first}{rest})"
            if name == "substr":
                places = "".join(f", CAST({sql(arg)} AS INT)" for arg in args[1:])
                return f"substr({sql(args[0])}{places})"
            return f"{name}({', '.join(map(sql, args))})"
    raise AssertionError(expr)


def _literal(value: int | float | str | bool | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"CAST({value} AS BIGINT)" if value >= 0 else f"CAST('{value}' AS BIGINT)"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    escaped = "".join(c if c.isascii() and c.isprintable() and c not in "'\\" else _escape(c) for c in value)
    return f"'{escaped}'"


def _escape(char: str) -> str:
    if char in "'\\":
        return "\\" + char
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def evaluate(expr: Expr, lookup: Callable[[Column], Any]) -> Any:
    """Value for one tuple (or pair), None for null: three-valued logic, one value at a time. For oracles."""
    match expr:
        case Column():
            return lookup(expr)
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
        return known[0] if expr.name == "coalesce" else min(known) if expr.name == "least" else max(known)
    if any(value is None for value in values):
        return None
    match expr:
        case Unary("not", _):
            return not values[0]
        case Unary():
            return -values[0]
        case Binary(op, _, _):
            return _compute(op, values[0], values[1])
        case InList(_, listed, negated):
            return (values[0] in [each.value for each in listed]) != negated
        case Like(_, pattern, negated):
            return _like(values[0], pattern) != negated
        case WithinDistance(_, _, _, _, radius):
            x1, y1, x2, y2 = map(float, values)
            return (x1 - x2) ** 2 + (y1 - y2) ** 2 <= radius * radius
        case Call(name, _):
            return _function(name, values)
    raise AssertionError(expr)


def _compute(op: str, a: Any, b: Any) -> Any:
    if op in ("/", "%") and b == 0:
        return None
    value = {
        "=": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b, "<=": lambda: a <= b, ">": lambda: a > b,
        ">=": lambda: a >= b, "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b,
        "%": lambda: abs(a) % abs(b) * (1 if a >= 0 else -1),
    }[op]()  # fmt: skip
    overflow = isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63
    return None if overflow else value


def _like(value: str, pattern: str) -> bool:
    import re

    return (
        re.fullmatch("".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in pattern), value, re.DOTALL) is not None
    )


def _function(name: str, values: list[Any]) -> Any:
    import math

    if name == "sqrt":
        return math.sqrt(values[0]) if values[0] >= 0 else math.nan
    if name == "substr":
        text, start = values[0], values[1]
        begin = start - 1 if start > 0 else max(len(text) + start, 0) if start < 0 else 0
        return text[begin : begin + values[2] if len(values) > 2 else None]
    return {
        "abs": lambda: abs(values[0]), "round": lambda: _round(*values), "floor": lambda: math.floor(values[0]),
        "ceil": lambda: math.ceil(values[0]), "pow": lambda: float(values[0]) ** float(values[1]),
        "lower": lambda: values[0].lower(), "upper": lambda: values[0].upper(), "length": lambda: len(values[0]),
        "concat": lambda: "".join(map(str, values)),
    }[name]()  # fmt: skip


def _round(value: float, digits: int = 0) -> float:
    import math

    scale = 10.0**digits
    return math.copysign(math.floor(abs(value) * scale + 0.5) / scale, value)
