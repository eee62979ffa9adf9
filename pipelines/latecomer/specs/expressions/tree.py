"""The syntax tree of an expression: small frozen nodes. No node can carry SQL."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias, Union

from latecomer.specs.names import ALIAS, RESERVED, stored_name

ALWAYS_THERE = ("seq", "event_ts", "arrival_ts")
"""Columns that every stream has."""
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")
FUNCTIONS = {
    "abs": (1, 1), "round": (1, 2), "floor": (1, 1), "ceil": (1, 1), "sqrt": (1, 1), "pow": (2, 2),
    "least": (2, 20), "greatest": (2, 20), "coalesce": (2, 20),
    "lower": (1, 1), "upper": (1, 1), "length": (1, 1), "substr": (2, 3), "concat": (2, 20),
    "size": (1, 1),
}  # fmt: skip
"""Functions -> the least and most arguments they take."""

Value: TypeAlias = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """The column ``alias.name``, or with `fields` a value inside it: ``alias.name.field.field``.

    Attributes
    ----------
    alias, name
        The stream's alias in the query, and the column that is read.
    fields
        Fields of structs, or keys of maps, from the outermost to the innermost.
    """

    alias: str
    name: str
    fields: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """The last part, as a result column may be named."""
        return stored_name(self.fields[-1]) if self.fields else self.name


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A number, text, truth value or null.

    Literals are equal where value and type are. Python holds 1, 1.0 and true to be equal, but results computed with
    them differ in type.
    """

    value: Value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)


@dataclass(frozen=True, slots=True)
class Unary:
    """The operation ``-x`` or ``not x``."""

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
    """A call of one of `FUNCTIONS`; in a tree that `widen` made, also of a type that casts."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """The test ``x is [not] null``, which is never null itself."""

    operand: Expr
    negated: bool


@dataclass(frozen=True, slots=True)
class InList:
    """The test ``x [not] in (literals)``."""

    operand: Expr
    values: tuple[Literal, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """The test ``x [not] like 'pattern'``; ``%`` and ``_`` are SQL's wildcards."""

    operand: Expr
    pattern: str
    negated: bool


@dataclass(frozen=True, slots=True)
class WithinDistance:
    """The test that two points of the plane are at most `radius` apart."""

    x1: Expr
    y1: Expr
    x2: Expr
    y2: Expr
    radius: float


Expr: TypeAlias = Union[Column, Literal, Unary, Binary, Call, IsNull, InList, Like, WithinDistance]  # noqa: UP007
NODES = (Column, Literal, Unary, Binary, Call, IsNull, InList, Like, WithinDistance)
"""The classes of nodes, for `isinstance`."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A selected result column."""

    name: str
    expr: Expr


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the operands of an expression."""
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


def map_children(expr: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with `function` applied to each operand."""
    match expr:
        case Unary() | IsNull() | InList() | Like():
            return replace(expr, operand=function(expr.operand))
        case Binary():
            return replace(expr, left=function(expr.left), right=function(expr.right))
        case Call():
            return replace(expr, args=tuple(map(function, expr.args)))
        case WithinDistance():
            x1, y1, x2, y2 = map(function, children(expr))
            return replace(expr, x1=x1, y1=y1, x2=x2, y2=y2)
    return expr


def widen(
    expr: Expr, casts: Mapping[Column, str], decimals: Set[Column] = frozenset(), used: frozenset[str] = frozenset()
) -> Expr:
    """Return the expression with casts of columns to wider types where the type matters, for Spark alone.

    A column is cast to ``bigint`` where it is an operand of arithmetic, so that less overflows. That does not hold
    beside a decimal: a ``bigint`` has 20 digits to Spark, which cuts off digits after the point where 38 have no room.
    A column is cast to ``timestamp`` where it is compared: beside a timestamp without a zone, Spark would ignore the
    zone of an instant in quotes.

    Parameters
    ----------
    expr
        The expression.
    casts
        Columns -> ``bigint`` or ``timestamp``.
    decimals
        Columns that are decimals.
    used
        The casts that apply to `expr` because of the operations around it.
    """
    if isinstance(expr, Column):
        return Call(casts[expr], (expr,)) if casts.get(expr) in used else expr
    match expr:
        case Binary("+" | "-" | "*", _, _) | Unary("-", _) | Call("abs", _):
            if decimals.isdisjoint(columns(expr)):
                used |= {"bigint"}
        case Binary(op, _, _) if op in COMPARISONS:
            used |= {"timestamp"}
        case InList():
            used |= {"timestamp"}
    return map_children(expr, lambda child: widen(child, casts, decimals, used))


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and every expression inside it."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def columns(expr: Expr) -> set[Column]:
    """Return every column that the expression reads."""
    return {node for node in walk(expr) if isinstance(node, Column)}


def conjuncts(expr: Expr) -> list[Expr]:
    """Return the parts that ``and`` joins."""
    if isinstance(expr, Binary) and expr.op == "and":
        return conjuncts(expr.left) + conjuncts(expr.right)
    return [expr]


def literal_number(expr: Expr) -> int | float | None:
    """Return the value of a literal number, None for any other expression."""
    value = expr.value if isinstance(expr, Literal) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def to_text(expr: Expr) -> str:
    """Return the canonical text, from which `parse` makes the same tree."""
    match expr:
        case Column(alias, name, fields):
            return ".".join((alias, *(_as_written(part, ("not", "select")) for part in (name, *fields))))
        case Literal(value):
            return _literal_text(value)
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
        case WithinDistance(_, _, _, _, radius):
            return f"within_distance({', '.join(map(to_text, children(expr)))}, {radius!r})"


def written_name(name: str) -> str:
    """Return a column's name as an expression has it: in double quotes unless it is a plain word.

    >>> written_name("origin"), written_name("id.orig_h"), written_name("end")
    ('origin', '"id.orig_h"', '"end"')
    """
    return _as_written(name, RESERVED)


def _as_written(name: str, words: Container[str]) -> str:
    """Return a name, in double quotes where it is not plain or is one of the `words`."""
    is_plain = ALIAS.fullmatch(name) and name.lower() not in words
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def find_column(column: Column, names: Container[str]) -> Column:
    """Return a column whose name was written without quotes: where no column has it, its dots lead to a field.

    Parameters
    ----------
    column
        The column; its name may have dots.
    names
        The columns of its stream.

    Examples
    --------
    >>> find_column(Column("l", "user.id"), ["user.id"]), find_column(Column("l", "user.id"), ["user"]).fields
    (Column(alias='l', name='user.id', fields=()), ('id',))
    """
    name, *fields = column.name.split(".")
    if column.name in names or name not in names or not all(fields):
        return column
    return Column(column.alias, name, tuple(fields))


def _literal_text(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
