"""Parse the expressions of query files.

sqlglot parses a text, and its tree is translated node by node into the small tree of
:mod:`latecomer.specs.expressions.tree`. A node without a translation is refused by its name. Only the small tree is
ever rendered as SQL. A null operand gives null, and a null never matches. Arithmetic that overflows (whole numbers have
64 bits) or divides by zero gives null.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

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
    literal_number,
    to_text,
    written_name,
)
from latecomer.specs.names import ALIAS, stored_name

if TYPE_CHECKING:
    from sqlglot import exp

Fault: TypeAlias = tuple[str, str]
"""The problem and the remedy of a text."""
ParsedCall: TypeAlias = tuple[str, tuple[Expr, ...]]
Parsed = TypeVar("Parsed", SelectItem, ParsedCall)

LONGEST = 4_000
"""Most characters of an expression."""
DEEPEST = 40
"""Most levels of nested operations."""
MOST_PARTS = 10_000
"""Most parts of an expression as Spark SQL, in which some operands are repeated."""
MOST_WORDS = 30
"""Most words of a refused text that are tried in quotes."""
MOST_DIGITS = 30
"""Most digits that ``round`` keeps."""
SIMILARITY = 0.75
"""Least similarity of a function to one that may be meant by it: ``sqr`` to ``sqrt``, but not ``cast`` to ``least``."""
_NOT_AN_EXPRESSION = "is not an expression", "write, for example, left.port = 53 and right.port < 1024"
_NOT_A_CALL = "is not a function call", "write, for example, avg(column)"


def parse(text: str, *, source: str, key: str, aliases: Sequence[str], default_alias: str | None = None) -> Expr:
    """Parse an expression over the columns of some streams.

    Parameters
    ----------
    text
        The expression, written as in SQL; ``==`` is ``=``.
    source, key
        The file and the dotted key, for error messages.
    aliases
        The streams' aliases.
    default_alias
        The alias of a column without one. By default that of a single stream; with several streams, none.

    Raises
    ------
    SpecError
        The text is not an expression, or uses what no expression may use.
    """
    item = _parse(text, source, key, aliases, default_alias)
    if item.name:
        name = _spaced_name(text, item)
        spaced = f"; if it is a column's name with spaces, write {name}" if name else ""
        meaningless = "gives the expression a name, which has no meaning here", f"write the expression alone{spaced}"
        raise SpecError(source, key, text, *(_number_fault(text) or meaningless))
    return item.expr


def parse_item(
    text: str, *, source: str, key: str, aliases: Sequence[str], default_alias: str | None = None
) -> SelectItem:
    """Parse ``expression as name``, or ``alias.column``, which is named ``alias_column`` or, of one stream, ``column``.

    A field, ``alias.column.field``, is named like a column ``field``.

    Parameters and errors are those of `parse`.
    """
    item = _parse(text, source, key, aliases, default_alias)
    if item.name:
        if not re.search(rf'(?<![\w.])as\s*("{item.name}"|(?<=\s){item.name})\s*$', text, re.IGNORECASE):
            name = _spaced_name(text, item)
            spaced = f"; if it is a column's name with spaces, write {name}" if name else ""
            several = "is not one expression", f"write `expression as name`{spaced}"
            raise SpecError(source, key, text, *(_number_fault(text) or several))
        return item
    if isinstance(item.expr, Column):
        name = item.expr.short_name
        return SelectItem(name if len(aliases) == 1 else f"{item.expr.alias}_{name}", item.expr)
    raise SpecError(source, key, text, "has no name", "write `expression as name`")


def parse_call(
    text: str, *, source: str, key: str, aliases: Sequence[str], functions: Mapping[str, tuple[int, int]] | None = None
) -> ParsedCall:
    """Parse ``name(expression, ...)``; return the name in lower case, which may be any, and the arguments.

    Parameters
    ----------
    text, source, key, aliases
        As for `parse`.
    functions
        Names -> the least and most arguments that they take. Other names take any number.

    Raises
    ------
    SpecError
        The text is not one call, an argument is not an expression, or the number of arguments is wrong.
    """
    known = functions or {}
    default_alias = aliases[0] if len(aliases) == 1 else None

    def read(node: exp.Expr) -> ParsedCall:
        from sqlglot import exp

        no_calls = (exp.Cast, exp.Case, exp.If, exp.And, exp.Or)
        if not isinstance(node, (exp.Func, exp.Anonymous)) or isinstance(node, no_calls):
            raise Refused(*_NOT_A_CALL)
        name, arguments = call_name(node)
        if any(isinstance(argument, (exp.Star, exp.Distinct)) for argument in arguments):
            raise Refused("uses * or distinct, which are not supported", "write count() to count rows")
        if name in known:
            check_count(name, len(arguments), *known[name])
        translated = (_translate(argument, tuple(aliases), default_alias, 1) for argument in arguments)
        return name, tuple(map(_bounded, translated))

    return _guarded(text, source, key, read, _NOT_A_CALL, known)


def _parse(text: str, source: str, key: str, aliases: Sequence[str], default_alias: str | None) -> SelectItem:
    """Parse an expression and its name, which is empty where the text has none."""
    if default_alias is None and len(aliases) == 1:
        default_alias = aliases[0]

    def read(node: exp.Expr) -> SelectItem:
        from sqlglot import exp

        name = ""
        if isinstance(node, exp.Alias):
            name, node = node.alias, node.this
            if not ALIAS.fullmatch(name):
                raise Refused(f"{name!r} is not a column name", "use letters, digits and _")
        return SelectItem(name, _bounded(_translate(node, tuple(aliases), default_alias, 0)))

    return _guarded(text, source, key, read)


def _guarded(
    text: str,
    source: str,
    key: str,
    read: Callable[[exp.Expr], Parsed],
    not_sql: Fault = _NOT_AN_EXPRESSION,
    outer: Mapping[str, tuple[int, int]] | None = None,
) -> Parsed:
    """Parse one statement and return what `read` makes of its tree; any failure becomes a SpecError.

    Parameters
    ----------
    text, source, key
        As for `parse`.
    read
        Translates the tree.
    not_sql
        The fault of a text that sqlglot cannot parse.
    outer
        The functions that may stand outside all other calls, and nowhere else, as for `check_counts`.
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
    for mark, (name, remedy) in _FORBIDDEN.items():
        if mark in outside:
            raise SpecError(source, key, text, f"contains {name}", remedy)
    parts[::2] = [part.replace("==", "=") for part in parts[::2]]

    def parse_sql(sql: str) -> Parsed:
        trees = sqlglot.parse(sql, read="duckdb")
        if len(trees) != 1 or trees[0] is None:
            raise Refused("is not one expression", "write one plain expression")
        parsed = read(trees[0])
        check_counts(sql, outer, most_only=True)  # the parser drops arguments that it has no place for
        return parsed

    def reason(error: Exception) -> Refused:
        if isinstance(error, Refused):
            return error
        try:
            check_counts("".join(parts), outer)
        except Refused as wrong_count:
            return wrong_count
        except Exception:  # the text has not even tokens
            pass
        return Refused(*(_number_fault(text) or not_sql))

    logger = logging.getLogger("sqlglot")
    before, logger.disabled = logger.disabled, True
    try:
        return parse_sql("".join(parts))
    except Exception as error:  # whatever a foreign parser raises for arbitrary text is the text's fault
        refused = reason(error)
        raise SpecError(source, key, text, refused.problem, _quote_remedy(parts, parse_sql) or refused.remedy) from None
    finally:
        logger.disabled = before


def _quote_remedy(parts: Sequence[str], parse_sql: Callable[[str], SelectItem | ParsedCall]) -> str | None:
    """Return the remedy of a refused text in which a column has the name of a word of SQL.

    It is such a text if it becomes an expression once one of its words is quoted.
    """
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", " ".join(parts[::2])))
    words = {word: None for word in words if word.lower() != "null"}  # that word always means null
    is_named = "as" in map(str.lower, words)
    for word in itertools.islice(words, MOST_WORDS):
        for pattern in (rf"(?<=\.){word}\b", rf"\b{word}\b"):
            quoted = [part if i % 2 else re.sub(pattern, f'"{word}"', part) for i, part in enumerate(parts)]
            try:
                parsed = parse_sql("".join(quoted))
            except Exception:  # still not an expression
                continue
            if isinstance(parsed, SelectItem) and parsed.name and not is_named:
                continue  # the word, or what follows it, would be a name of the result
            expr = parsed.expr if isinstance(parsed, SelectItem) else Call(*parsed)
            column = next((column for column in columns(expr) if word in (column.name, *column.fields)), None)
            if column is not None:
                path = (column.name, *column.fields)
                names = [f'"{name}"' if name == word else written_name(name) for name in path]
                kind = "column" if column.name == word else "field"
                return f"if {word} is a {kind}, write it in double quotes: {'.'.join((column.alias, *names))}"
    return _joined_remedy(parts, parse_sql)


def _joined_remedy(parts: Sequence[str], parse_sql: Callable[[str], SelectItem | ParsedCall]) -> str | None:
    """Return the remedy of a refused text that becomes an expression once the words of a name are joined."""
    from sqlglot import TokenType, tokenize
    from sqlglot.parser import Parser

    plain = {TokenType.VAR, *Parser.TYPE_TOKENS}
    for place, part in enumerate(parts):
        for match in () if place % 2 else re.finditer(r"[A-Za-z_]\w*(?: [A-Za-z_]\w*)+", part):
            if any(token.token_type not in plain for token in tokenize(match[0], read="duckdb")):
                continue
            name = stored_name(match[0])
            joined = part[: match.start()] + name + part[match.end() :]
            remedy = f"write {name}"
            try:
                parse_sql("".join((*parts[:place], joined, *parts[place + 1 :])))
            except Refused as refused:
                if not refused.problem.startswith(f"column {name!r} does not say"):
                    continue
                remedy = refused.remedy
            except Exception:  # still not an expression
                continue
            return f"if {match[0]!r} is a column's name with spaces, {remedy}"
    return None


def _spaced_name(text: str, item: SelectItem) -> str | None:
    """Return two names without a word between them as one, as they may be a name with a space; None for other texts."""
    if not isinstance(item.expr, Column) or not re.fullmatch(r"\s*[\w.]+(\s+\w+)+\s*", text):
        return None
    return stored_name(" ".join(text.split()))


_PLAIN = "write one plain expression"
_FORBIDDEN = {
    ";": ("a semicolon", _PLAIN),
    "--": ("a comment", _PLAIN),
    "/*": ("a comment", _PLAIN),
    "`": ("a back-tick", _PLAIN),
    "===": ("===", _PLAIN),
    "$": ("a dollar sign", _PLAIN),
    "&&": ("&&", "write `and` if that is meant"),
    "||": ("||", "write `or` if that is meant"),
}
"""Marks that no expression has -> their names, and remedies."""
_QUOTED = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")
"""Quoted texts and names; `split` returns them at odd places."""
_NOT_A_NUMBER = re.compile(r"(?<![\w.])(?!\d[\d.]*[eE][+-]?\d+(?!\w))\d[\d.]*[A-Za-z]\w*")


def _number_fault(text: str) -> Fault | None:
    """Return the fault of a refused text that holds digits followed by letters, such as ``1L`` and ``0x10``."""
    match = _NOT_A_NUMBER.search(" ".join(_QUOTED.split(text)[::2]))
    if match is None:
        return None
    return f"contains {match[0]}, which is not a number", "write it in decimal digits: 42, 0.5 or 1e6"


def _bounded(expr: Expr) -> Expr:
    """Return the expression; refuse one whose SQL is too long. A few nested calls make gigabytes of a short text."""
    if _count_parts(expr, {}) > MOST_PARTS:
        repeats = "between, abs(), floor(), ceil() and within_distance() repeat what stands in them"
        raise Refused(
            f"is longer than {MOST_PARTS:,} parts as SQL, where {repeats}", "nest fewer of them in one another"
        )
    return expr


_REPETITIONS = {"abs": 3, "floor": 3, "ceil": 3, "within_distance": 2}
"""Functions whose operands are repeated in their SQL -> how often they occur."""


def _count_parts(expr: Expr, known: dict[int, int]) -> int:
    """Return the length of an expression as Spark SQL, in parts.

    `known` has the lengths of nodes by their identity. A node that occurs twice in the tree is counted once, so the
    time does not grow with the length.
    """
    if id(expr) in known:
        return known[id(expr)]
    parts = 1
    match expr:
        case Column(name=text) | Like(pattern=text) | Literal(value=str() as text):
            parts += len(text) // 10
        case InList(values=values):
            parts += sum(_count_parts(value, known) for value in values)
    name = "within_distance" if isinstance(expr, WithinDistance) else expr.name if isinstance(expr, Call) else ""
    parts += _REPETITIONS.get(name, 1) * sum(_count_parts(child, known) for child in children(expr))
    known[id(expr)] = parts
    return parts


def _translate(  # noqa: C901 - a case per node
    node: exp.Expr, aliases: tuple[str, ...], default_alias: str | None, depth: int
) -> Expr:
    """Translate a node of sqlglot's tree; refuse one that no expression may have."""
    from sqlglot import exp

    if depth > DEEPEST:
        raise Refused(f"is nested deeper than {DEEPEST}", "simplify it")

    def inner(child: exp.Expr) -> Expr:
        return _translate(child, aliases, default_alias, depth + 1)

    if node.args.get("negate"):
        positive = node.copy()
        positive.set("negate", None)
        return _negate(inner(positive))
    operators: dict[type[exp.Expr], str] = {
        exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.EQ: "=", exp.NEQ: "!=",
        exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.And: "and", exp.Or: "or",
    }  # fmt: skip
    if type(node) in operators:
        return _binary(operators[type(node)], inner(node.this), inner(node.expression))
    if isinstance(node, exp.Paren):
        return inner(node.this)
    if isinstance(node, (exp.Column, exp.Dot)):
        return _column(node, aliases, default_alias)
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
        number = literal_number(operand)
        return Unary("-", operand) if number is None else Literal(-number)
    if isinstance(node, exp.Not):
        return _negate(inner(node.this))
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        return IsNull(inner(node.this), False)
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        operand = inner(node.this)
        low, high = inner(node.args["low"]), inner(node.args["high"])
        return Binary("and", _binary(">=", operand, low), _binary("<=", operand, high))
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        entries = [inner(child) for child in node.expressions]
        literals = tuple(entry for entry in entries if isinstance(entry, Literal) and entry.value is not None)
        if len(literals) < len(entries):
            raise Refused("lists something other than literals after `in`", "write numbers or quoted text")
        return InList(inner(node.this), literals, False)
    if isinstance(node, exp.Like) and isinstance(node.expression, exp.Literal) and node.expression.is_string:
        return Like(inner(node.this), node.expression.this, False)
    if isinstance(node, (exp.Func, exp.Anonymous)):
        return _call(node, inner)
    raise Refused(
        f"contains {type(node).__name__.lower()} ({shorten(node.sql(), 40)}), which is not allowed here",
        "use columns, literals, comparisons, and, or, not, arithmetic and simple functions",
    )


def _binary(op: str, left: Expr, right: Expr) -> Binary:
    """Return an operation; refuse a comparison with null, which no row could match."""
    if op in COMPARISONS and Literal(None) in (left, right):
        other = right if left == Literal(None) else left
        name = to_text(other) if isinstance(other, Column) else "x"
        tests = {"=": f"`{name} is null`", "!=": f"`{name} is not null`"}
        raise Refused(
            "compares with null, which never matches", f"write {tests.get(op) or ' or '.join(tests.values())}"
        )
    return Binary(op, left, right)


def _negate(operand: Expr) -> Expr:
    """Return ``not operand``; tests have a negated form of their own."""
    if isinstance(operand, (IsNull, InList, Like)):
        return replace(operand, negated=not operand.negated)
    return Unary("not", operand)


def _column(node: exp.Column | exp.Dot, aliases: tuple[str, ...], default_alias: str | None) -> Column:
    """Return the column, and the fields inside it, that names with dots between them denote.

    The first name is an alias where a stream has it and another name follows.
    """
    alias, *names = _names(node)
    if not names or (alias not in aliases and default_alias is not None):
        names, alias = [alias, *names], default_alias or ""
    if not alias:
        remedy = f"write {aliases[0]}.{names[0]}" if aliases else "write alias.column"
        raise Refused(f"column {names[0]!r} does not say which stream it is from", remedy)
    if alias not in aliases:
        dotted = f"{aliases[0] if aliases else 'alias'}.{written_name('.'.join((alias, *names)))}"
        remedy = f"{did_you_mean(alias, aliases)}; if a column's name has that dot, write {dotted}"
        raise Refused(f"{alias!r} is not an alias of the query's streams", remedy)
    if len(names) > DEEPEST:
        raise Refused(f"has more than {DEEPEST} dots in one name", "simplify it")
    return Column(alias, stored_name(names[0]), tuple(names[1:]))


def _names(node: exp.Expr) -> list[str]:
    """Return the names that dots join."""
    from sqlglot import exp

    if isinstance(node, exp.Dot):
        return [*_names(node.this), *_names(node.expression)]
    if isinstance(node, exp.Column):
        return [name for part in node.parts for name in _names(part)]
    if not isinstance(node, exp.Identifier):
        raise Refused(f"{node.sql()!r} is not a column", "write alias.column, and after it alias.column.field")
    return [node.name]


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


def _call(node: exp.Func, inner: Callable[[exp.Expr], Expr]) -> Expr:
    """Translate a call; `inner` translates its arguments."""
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        remedy = "use the value as it is: numbers of all types go together"
        if isinstance(node.this, exp.Literal) and node.this.is_string:
            dates = "text in quotes beside a date or a timestamp is one, as '2013-01-31' and '2013-01-31T12:00:00Z'"
            remedy = f"write '{node.this.name}' alone: {dates}"
        raise Refused("calls cast(), which cannot be used here", remedy)
    name, arguments = call_name(node)
    if name == "within_distance":
        return _within_distance([inner(argument) for argument in arguments])
    if name not in FUNCTIONS:
        remedy = did_you_mean(name, [*FUNCTIONS, "within_distance"], SIMILARITY)
        raise Refused(f"calls {name}(), which cannot be used here", remedy)
    check_count(name, len(arguments), *FUNCTIONS[name])
    args = tuple(map(inner, arguments))
    if name == "round" and len(args) == 2:
        digits = literal_number(args[1])
        if not isinstance(digits, int) or abs(digits) > MOST_DIGITS:
            remedy = "write, for example, round(x, 2)"
            raise Refused(f"has a number of digits that is not a whole number up to {MOST_DIGITS}", remedy)
    return Call(name, args)


def _within_distance(arguments: list[Expr]) -> WithinDistance:
    if len(arguments) != 5:
        problem = f"within_distance takes 5 arguments, not {len(arguments)}"
        raise Refused(problem, "write within_distance(x1, y1, x2, y2, radius)")
    x1, y1, x2, y2, last = arguments
    radius = literal_number(last)
    if radius is None or radius <= 0:
        raise Refused("has a radius that is not a positive number", "write a number such as 5.0")
    if not 1e-150 <= radius <= 1e150:  # its square is compared
        raise Refused("has a radius that is not between 1e-150 and 1e150", "measure in another unit")
    return WithinDistance(x1, y1, x2, y2, float(radius))
