"""The tree of an expression: small frozen nodes, nothing that could carry SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Union

from latecomer.specs.names import ALIAS

ALWAYS_THERE = ("seq", "event_ts", "arrival_ts")
"""Columns of every stream."""
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")
FUNCTIONS = {
    "abs": (1, 1), "round": (1, 2), "floor": (1, 1), "ceil": (1, 1), "sqrt": (1, 1), "pow": (2, 2),
    "least": (2, 20), "greatest": (2, 20), "coalesce": (2, 20),
    "lower": (1, 1), "upper": (1, 1), "length": (1, 1), "substr": (2, 3), "concat": (2, 20),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """``alias.name``."""

    alias: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A number, text, truth value or null; 1, 1.0 and true, which Python holds to be equal, are three: what is calculated with them has other types."""

    value: int | float | str | bool | None

    def __eq__(self, other: object) -> bool:
        """The same value of the same type."""
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        """Of what is compared."""
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)


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
NODES = (Column, Literal, Unary, Binary, Call, IsNull, InList, Like, WithinDistance)


@dataclass(frozen=True, slots=True)
class SelectItem:
    """A result column: its name and what it is."""

    name: str
    expr: Expr


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


def rebuilt(expr: Expr, of: Callable[[Expr], Expr]) -> Expr:
    """The same node, of other operands."""
    match expr:
        case Unary() | IsNull() | InList() | Like():
            return replace(expr, operand=of(expr.operand))
        case Binary():
            return replace(expr, left=of(expr.left), right=of(expr.right))
        case Call():
            return replace(expr, args=tuple(map(of, expr.args)))
        case WithinDistance():
            return replace(expr, x1=of(expr.x1), y1=of(expr.y1), x2=of(expr.x2), y2=of(expr.y2))
    return expr


def widened(
    expr: Expr, casts: Mapping[Column, str], decimals: Set[Column] = frozenset(), used: frozenset[str] = frozenset()
) -> Expr:
    """The same, for the engine alone: where it matters, a column is read as the type that `casts` says.

    ``bigint`` where it is calculated with, so that less overflows, but not with one of the `decimals`: to Spark a ``bigint`` has 20 digits,
    and what 38 digits have no room for, it cuts off after the point. ``timestamp`` where it is compared: beside one without a zone Spark
    would leave the zone of an instant in quotes out.
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
    return rebuilt(expr, lambda each: widened(each, casts, decimals, used))


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
            plain = ALIAS.fullmatch(name) and name.lower() not in ("not", "select")
            return f"{alias}.{name}" if plain else f'{alias}."{name.replace(chr(34), chr(34) * 2)}"'
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
