"""Calls in expressions: names of functions, and numbers of arguments.

sqlglot drops arguments that it has no place for (it parses ``mod(a, 2, 3)`` as ``a % 2``), so they are counted in the
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from latecomer.specs.expressions.tree import FUNCTIONS
from latecomer.specs.names import ALIAS

if TYPE_CHECKING:
    from sqlglot import exp

OTHER_NAMES = {
    "ceiling": "ceil", "power": "pow", "substring": "substr", "len": "length", "mean": "avg",
    "quantile_cont": "quantile", "percentile_cont": "quantile",
}  # fmt: skip
"""Other names of functions -> the names that query files use."""
_EXAMPLES = {"quantile": "x, 0.9", "substr": "x, 1, 3", "count": ""}
"""Functions -> examples of their arguments."""


class Refused(Exception):
    """Problem and remedy of a text; the caller that knows file and key makes it a SpecError."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy


def call_name(node: exp.Func) -> tuple[str, list[exp.Expr]]:
    """Return the name that query files use for a call's function, in lower case, and its arguments."""
    from sqlglot import exp

    special = {
        exp.Pow: "pow", exp.Substring: "substr", exp.Ceil: "ceil", exp.Length: "length", exp.Concat: "concat",
        exp.Avg: "avg", exp.Quantile: "quantile", exp.PercentileCont: "quantile", exp.Median: "median",
    }  # fmt: skip
    name = (node.name if isinstance(node, exp.Anonymous) else special.get(type(node), node.sql_name())).lower()
    arguments = list(node.expressions) if isinstance(node, (exp.Anonymous, exp.Concat)) else _arguments(node)
    return OTHER_NAMES.get(name, name), arguments


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    from sqlglot import exp

    arguments: list[exp.Expr] = []
    for value in node.args.values():
        values = value if isinstance(value, list) else [value]
        arguments += [argument for argument in values if isinstance(argument, exp.Expression)]
    return arguments


def check_counts(sql: str, outer: Mapping[str, tuple[int, int]] | None, *, most_only: bool = False) -> None:
    """Refuse a call that has, as it is written, fewer or more arguments than its function takes.

    Parameters
    ----------
    sql
        The text.
    outer
        Functions that may stand outside all other calls -> the least and most arguments they take; None: all may.
    most_only
        True where fewer arguments are not refused.
    """
    known = {**FUNCTIONS, "mod": (2, 2)}
    for name, count, is_inner in _calls(sql):
        functions = known if is_inner or not outer else outer
        least, most = functions.get(OTHER_NAMES.get(name, name), (0, count))
        if count > most or not most_only:
            check_count(name, count, least, most)


def _calls(sql: str) -> Iterator[tuple[str, int, bool]]:
    """Yield every call of a text: its name, the number of arguments as written, and whether it is inside another."""
    import sqlglot
    from sqlglot import TokenType

    opening = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
    closing = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
    stack: list[tuple[str, int]] = []  # of each open bracket, the name before it and the commas so far
    before = None
    for token in sqlglot.tokenize(sql, read="duckdb"):
        if token.token_type in opening:
            is_call = before is not None and token.token_type is TokenType.L_PAREN and ALIAS.fullmatch(before.text)
            stack.append((before.text.lower() if before is not None and is_call else "", 0))
        elif token.token_type in closing and stack and before is not None:
            name, commas = stack.pop()
            if name:
                last = before.token_type not in (TokenType.L_PAREN, TokenType.COMMA)
                yield name, commas + last, any(outer for outer, _ in stack)
        elif token.token_type is TokenType.COMMA and stack:
            stack[-1] = (stack[-1][0], stack[-1][1] + 1)
        before = token


def check_count(name: str, count: int, least: int, most: int) -> None:
    """Refuse a call whose number of arguments is not from `least` to `most`."""
    if not least <= count <= most:
        allowed = f"{least}" if least == most else f"{least} or {most}" if most == least + 1 else f"{least} to {most}"
        example = _EXAMPLES.get(OTHER_NAMES.get(name, name), "x, y" if most > 1 and name != "round" else "x")
        raise Refused(
            f"{name}() takes {allowed} argument{'' if most == 1 else 's'}, not {count}",
            f"write, for example, {name}({example})",
        )
