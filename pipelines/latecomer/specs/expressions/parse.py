"""Expressions of query files: parsed, checked, and rendered again; never pasted.

A text is parsed by sqlglot, then translated node by node into the small tree of :mod:`latecomer.specs.expressions.tree`; whatever is
not translated is refused by name. Only that tree is ever rendered as SQL, fully parenthesised, identifiers and literals
escaped. A null operand gives null, and a null never matches; arithmetic that overflows (whole numbers: 64 bits) or divides by zero gives null.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from latecomer.specs.errors import SpecError, did_you_mean, shorten
from latecomer.specs.expressions.calls import Refused, call_name, check_count, check_counts
from latecomer.specs.expressions.tree import (
    COMPARISONS,
    FUNCTIONS,
    Binary,
    Call,
    Column,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    SelectItem,
    Unary,
    WithinDistance,
    children,
    columns,
    to_text,
)
from latecomer.specs.names import ALIAS, stored_name

LONGEST, DEEPEST = 4_000, 40
MOST_PARTS = 10_000
"""Of an expression as it is written for Spark, where some operands stand more than once."""
MOST_WORDS = 30
"""Words of a refused text that are tried in quotes."""
MOST_DIGITS = 30
"""That ``round`` keeps."""
NEAR = 0.75
"""How alike the names of two functions are where one is meant by the other: ``sqr`` and ``sqrt``, not ``cast`` and ``least``."""
_NO_EXPRESSION = "is not an expression", "write, for example, left.port = 53 and right.port < 1024"
_NO_CALL = "is not a function call", "write, for example, avg(column)"


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
        meaningless = "gives the expression a name, which has no meaning here", "write the expression alone"
        raise SpecError(source, key, text, *(_no_number(text) or meaningless))
    return item.expr


def parse_item(
    text: str, *, source: str, key: str, aliases: Sequence[str], default_alias: str | None = None
) -> SelectItem:
    """``alias.column`` (named ``alias_column``; in a query of one stream just ``column``) or ``expression as name``."""
    item = _parse(text, source, key, aliases, default_alias)
    if item.name:
        if not re.search(rf'(?<![\w.])as\s*("{item.name}"|(?<=\s){item.name})\s*$', text, re.IGNORECASE):
            several = "is not one expression", "write `expression as name`"
            raise SpecError(source, key, text, *(_no_number(text) or several))
        return item
    if isinstance(item.expr, Column):
        return SelectItem(item.expr.name if len(aliases) == 1 else f"{item.expr.alias}_{item.expr.name}", item.expr)
    raise SpecError(source, key, text, "has no name", "write `expression as name`")


def parse_call(
    text: str, *, source: str, key: str, aliases: Sequence[str], functions: Mapping[str, tuple[int, int]] | None = None
) -> tuple[str, tuple[Expr, ...]]:
    """``name(expression, ...)`` where `name` need not be one of `FUNCTIONS`: its name in lower case, and its arguments.

    Parameters
    ----------
    functions
        Those that are known, to the least and most arguments they take; of others any number is read.

    Raises
    ------
    SpecError
        Not one call, an argument is not an expression, or one of `functions` has not as many as it takes.
    """
    sole = aliases[0] if len(aliases) == 1 else None

    def read(node: Any) -> tuple[str, tuple[Expr, ...]]:
        from sqlglot import exp

        if not isinstance(node, (exp.Func, exp.Anonymous)) or isinstance(
            node, (exp.Cast, exp.Case, exp.If, exp.And, exp.Or)
        ):
            raise Refused(*_NO_CALL)
        name, given = call_name(node)
        if any(isinstance(child, (exp.Star, exp.Distinct)) for child in given):
            raise Refused("uses * or distinct, which are not supported", "write count() to count rows")
        if name in (functions or {}):
            check_count(name, len(given), *(functions or {})[name])
        return name, tuple(_bounded(_translate(child, tuple(aliases), sole, 1)) for child in given)

    return _guarded(text, source, key, read, _NO_CALL, functions or {})  # type: ignore[no-any-return]


def _parse(text: str, source: str, key: str, aliases: Sequence[str], default_alias: str | None) -> SelectItem:
    sole = aliases[0] if len(aliases) == 1 else None

    def read(tree: Any) -> SelectItem:
        from sqlglot import exp

        name = ""
        if isinstance(tree, exp.Alias):
            name = tree.alias
            tree = tree.this
            if not ALIAS.fullmatch(name):
                raise Refused(f"{name!r} is not a column name", "use letters, digits and _")
        return SelectItem(name, _bounded(_translate(tree, tuple(aliases), default_alias or sole, 0)))

    return _guarded(text, source, key, read)  # type: ignore[no-any-return]


def _guarded(
    text: str,
    source: str,
    key: str,
    read: Callable[[Any], Any],
    otherwise: tuple[str, str] = _NO_EXPRESSION,
    outer: Mapping[str, tuple[int, int]] | None = None,
) -> Any:
    """Parse one statement and hand it to `read`; whatever goes wrong becomes a SpecError.

    `otherwise` is problem and remedy of a text that is no SQL, `outer` the functions that may stand outside all others and nowhere else.
    """
    import sqlglot

    if not isinstance(text, str) or not text.strip():
        raise SpecError(source, key, text, "must be an expression", "write one that uses the streams' columns")
    if len(text) > LONGEST:
        raise SpecError(source, key, text, f"is longer than {LONGEST} characters", "shorten it")
    if "\x00" in text:
        raise SpecError(source, key, text, "contains a NUL character", "write one plain expression")
    parts = _QUOTED.split(text)
    outside = "".join(parts[::2])
    for piece, (name, remedy) in _NEVER_THERE.items():
        if piece in outside:
            raise SpecError(source, key, text, f"contains {name}", remedy)
    parts[::2] = [part.replace("==", "=") for part in parts[::2]]

    def parsed(sql: str) -> Any:
        trees = sqlglot.parse(sql, read="duckdb")
        if len(trees) != 1 or trees[0] is None:
            raise Refused("is not one expression", "write one plain expression")
        found = read(trees[0])
        check_counts(sql, outer, most_only=True)  # the parser drops arguments that it has no place for
        return found

    def reason(error: Exception) -> Refused:
        if isinstance(error, Refused):
            return error
        try:
            check_counts("".join(parts), outer)
        except Refused as counted:
            return counted
        except Exception:  # not even words and marks
            pass
        return Refused(*(_no_number(text) or otherwise))

    quiet = logging.getLogger("sqlglot")
    before, quiet.disabled = quiet.disabled, True
    try:
        return parsed("".join(parts))
    except Exception as error:  # whatever a foreign parser makes of arbitrary text is the text's fault
        known = reason(error)
        raise SpecError(source, key, text, known.problem, _in_quotes(parts, parsed) or known.remedy) from None
    finally:
        quiet.disabled = before


def _in_quotes(parts: Sequence[str], parsed: Callable[[str], Any]) -> str | None:
    """What to write if a refused text is an expression once one of its words, a name to its author and SQL's own to the parser, is quoted."""
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", " ".join(parts[::2])))
    words = {word: None for word in words if word.lower() != "null"}  # who writes it means null
    named = "as" in map(str.lower, words)
    for word in itertools.islice(words, MOST_WORDS):
        for name in (rf"(?<=\.){word}\b", rf"\b{word}\b"):
            quoted = [part if i % 2 else re.sub(name, f'"{word}"', part) for i, part in enumerate(parts)]
            try:
                found = parsed("".join(quoted))
            except Exception:  # as little an expression as before
                continue
            if isinstance(found, SelectItem) and found.name and not named:
                continue  # the word, or what follows it, would be a name of the result
            read = found.expr if isinstance(found, SelectItem) else Call(*found)
            alias = next((column.alias for column in columns(read) if column.name == word), None)
            if alias is not None:
                return f'if {word} is a column, write it in double quotes: {alias}."{word}"'
    return None


_PLAIN = "write one plain expression"
_NEVER_THERE = {
    ";": ("a semicolon", _PLAIN),
    "--": ("a comment", _PLAIN),
    "/*": ("a comment", _PLAIN),
    "`": ("a back-tick", _PLAIN),
    "===": ("===", _PLAIN),
    "$": ("a dollar sign", _PLAIN),
    "&&": ("&&", "write `and` if that is meant"),
    "||": ("||", "write `or` if that is meant"),
}
"""Marks that no expression has, their names, and what to do."""
_QUOTED = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")
"""Texts and quoted names; what `split` gives at odd places."""


_NO_NUMBER = re.compile(r"(?<![\w.])(?!\d[\d.]*[eE][+-]?\d+(?!\w))\d[\d.]*[A-Za-z]\w*")


def _no_number(text: str) -> tuple[str, str] | None:
    """Problem and remedy of a refused text that holds digits with letters behind them, as ``1L`` and ``0x10``."""
    found = _NO_NUMBER.search(" ".join(_QUOTED.split(text)[::2]))
    if found is None:
        return None
    return f"contains {found[0]}, which is not a number", "write it in decimal digits: 42, 0.5 or 1e6"


def _bounded(expr: Expr) -> Expr:
    """The same, or refused: a few of these in one another make a short text gigabytes of SQL."""
    if _parts(expr, {}) > MOST_PARTS:
        raise Refused(
            f"is longer than {MOST_PARTS:,} parts as SQL, where between, abs(), floor(), ceil() and within_distance() repeat what stands in them",
            "nest fewer of them in one another",
        )
    return expr


_REPEATED = {"abs": 3, "floor": 3, "ceil": 3, "within_distance": 2}
"""Functions whose operands stand more than once in their SQL, and how often."""


def _parts(expr: Expr, known: dict[int, int]) -> int:
    """How long an expression is as Spark SQL. What stands in a tree twice is looked at once: `known` has it by its identity."""
    if id(expr) in known:
        return known[id(expr)]
    match expr:
        case Column(name=text) | Like(pattern=text) | Literal(value=str() as text):
            own = 1 + len(text) // 10
        case InList(values=values):
            own = 1 + sum(_parts(value, known) for value in values)
        case _:
            own = 1
    name = "within_distance" if isinstance(expr, WithinDistance) else expr.name if isinstance(expr, Call) else ""
    known[id(expr)] = own + _REPEATED.get(name, 1) * sum(_parts(child, known) for child in children(expr))
    return known[id(expr)]


def _translate(node: Any, aliases: tuple[str, ...], default: str | None, depth: int) -> Expr:
    from sqlglot import exp

    if depth > DEEPEST:
        raise Refused(f"is nested deeper than {DEEPEST}", "simplify it")

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
        return _binary(binary[type(node)], inner(node.this), inner(node.expression))
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
        if isinstance(node.this, exp.Literal) and not node.this.is_string:  # the least whole number has no opposite
            return Literal(_number(f"-{node.this.name}"))
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
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        operand = inner(node.this)
        low, high = inner(node.args["low"]), inner(node.args["high"])
        return Binary("and", _binary(">=", operand, low), _binary("<=", operand, high))
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        values = tuple(inner(child) for child in node.expressions)
        if not all(isinstance(value, Literal) and value.value is not None for value in values):
            raise Refused("lists something other than literals after `in`", "write numbers or quoted text")
        return InList(inner(node.this), values, False)  # type: ignore[arg-type]
    if isinstance(node, exp.Like) and isinstance(node.expression, exp.Literal) and node.expression.is_string:
        return Like(inner(node.this), node.expression.this, False)
    if isinstance(node, (exp.Func, exp.Anonymous)):
        return _call(node, inner)
    raise Refused(
        f"contains {type(node).__name__.lower()} ({shorten(node.sql(), 40)}), which is not allowed here",
        "use columns, literals, comparisons, and, or, not, arithmetic and simple functions",
    )


def _binary(op: str, left: Expr, right: Expr) -> Binary:
    """An operation; a comparison with null is refused, as no row could match it."""
    if op in COMPARISONS and Literal(None) in (left, right):
        other = right if left == Literal(None) else left
        name = to_text(other) if isinstance(other, Column) else "x"
        tests = {"=": f"`{name} is null`", "!=": f"`{name} is not null`"}
        raise Refused(
            "compares with null, which never matches", f"write {tests.get(op) or ' or '.join(tests.values())}"
        )
    return Binary(op, left, right)


def _negate(operand: Expr) -> Expr:
    if isinstance(operand, (IsNull, InList, Like)):
        return replace(operand, negated=not operand.negated)
    return Unary("not", operand)


def _column(node: Any, aliases: tuple[str, ...], default: str | None) -> Column:
    from sqlglot import exp

    if node.args.get("db") or node.args.get("catalog"):
        raise Refused(f"{node.sql()!r} has too many dots", "write alias.column")
    if not isinstance(node.this, exp.Identifier):
        raise Refused(f"{node.sql()!r} is not a column", "write alias.column")
    alias, name = node.table or default, node.name
    if alias is None:
        raise Refused(
            f"column {name!r} does not say which stream it is from",
            f"write {aliases[0]}.{name}" if aliases else "write alias.column",
        )
    if alias not in aliases:
        raise Refused(f"{alias!r} is not an alias of the query's streams", did_you_mean(alias, aliases))
    return Column(alias, stored_name(name))


def _number(text: str) -> int | float:
    try:
        value: int | float = int(text)
        if not -(1 << 63) <= value < 1 << 63:
            raise Refused(f"number {text} does not fit 64 bits", "use a smaller one")
    except ValueError:
        value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        raise Refused(f"number {text} is too large", "use a smaller one")
    return value


def _call(node: Any, inner: Callable[[Any], Expr]) -> Expr:
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        remedy = "use the value as it is: numbers of all types go together"
        if isinstance(node.this, exp.Literal) and node.this.is_string:
            dates = "text in quotes beside a date or a timestamp is one, as '2013-01-31' and '2013-01-31T12:00:00Z'"
            remedy = f"write '{node.this.name}' alone: {dates}"
        raise Refused("calls cast(), which cannot be used here", remedy)
    name, children = call_name(node)
    if name == "within_distance":
        values = [inner(child) for child in children]
        if len(values) != 5:
            raise Refused(
                f"within_distance takes 5 arguments, not {len(values)}", "write within_distance(x1, y1, x2, y2, radius)"
            )
        radius = values[4].value if isinstance(values[4], Literal) else None
        if isinstance(radius, bool) or not isinstance(radius, (int, float)) or radius <= 0:
            raise Refused("has a radius that is not a positive number", "write a number such as 5.0")
        if not 1e-150 <= radius <= 1e150:  # its square is compared
            raise Refused("has a radius that is not between 1e-150 and 1e150", "measure in another unit")
        return WithinDistance(values[0], values[1], values[2], values[3], float(radius))
    if name not in FUNCTIONS:
        remedy = did_you_mean(name, [*FUNCTIONS, "within_distance"], NEAR)
        raise Refused(f"calls {name}(), which cannot be used here", remedy)
    check_count(name, len(children), *FUNCTIONS[name])
    args = tuple(inner(child) for child in children)
    if name == "round" and len(args) == 2:
        digits = args[1].value if isinstance(args[1], Literal) else None
        if type(digits) is not int or abs(digits) > MOST_DIGITS:
            remedy = "write, for example, round(x, 2)"
            raise Refused(f"has a number of digits that is not a whole number up to {MOST_DIGITS}", remedy)
    return Call(name, args)
