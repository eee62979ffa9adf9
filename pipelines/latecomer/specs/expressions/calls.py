"""Calls in expressions: our names of their functions, and how many arguments are written.

sqlglot drops arguments that it has no place for (``mod(a, 2, 3)`` is ``a % 2`` to it), so they are counted in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latecomer.specs.expressions.tree import FUNCTIONS
from latecomer.specs.names import ALIAS

OTHER_NAMES = {
    "ceiling": "ceil", "power": "pow", "substring": "substr", "len": "length", "mean": "avg", "quantile_cont": "quantile",
    "percentile_cont": "quantile",
}  # fmt: skip
_EXAMPLES = {"quantile": "x, 0.9", "substr": "x, 1, 3", "count": ""}


class Refused(Exception):
    """Problem and remedy of a text, which the place that knows file and key makes an error of."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy


def call_name(node: Any) -> tuple[str, list[Any]]:
    """Our name of a call, and its arguments."""
    from sqlglot import exp

    special = {
        exp.Pow: "pow", exp.Substring: "substr", exp.Ceil: "ceil", exp.Length: "length", exp.Concat: "concat",
        exp.Avg: "avg", exp.Quantile: "quantile", exp.PercentileCont: "quantile", exp.Median: "median",
    }  # fmt: skip
    name = (node.name if isinstance(node, exp.Anonymous) else special.get(type(node), node.sql_name())).lower()
    name = OTHER_NAMES.get(name, name)
    children = list(node.expressions) if isinstance(node, (exp.Anonymous, exp.Concat)) else _arguments(node)
    return name, children


def _arguments(node: Any) -> list[Any]:
    from sqlglot import exp

    found: list[Any] = []
    for value in node.args.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, exp.Expression)]
    return found


def check_counts(sql: str, outer: Mapping[str, tuple[int, int]] | None, *, most_only: bool = False) -> None:
    """Refuse a call with fewer or more arguments, as they are written, than its function takes; with `most_only` one with more."""
    known = {**FUNCTIONS, "mod": (2, 2)}
    for name, count, inside in _calls(sql):
        functions = known if inside or not outer else outer
        least, most = functions.get(OTHER_NAMES.get(name, name), (0, count))
        if count > most or not most_only:
            check_count(name, count, least, most)


def _calls(sql: str) -> Iterator[tuple[str, int, bool]]:
    """Each call that a text holds: its name, how many arguments are written, and whether it stands inside another."""
    import sqlglot
    from sqlglot.tokens import TokenType

    opening = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
    closing = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
    stack: list[tuple[str, int]] = []
    before = None
    for token in sqlglot.tokenize(sql, read="duckdb"):
        if token.token_type in opening:
            named = before is not None and token.token_type is TokenType.L_PAREN and ALIAS.fullmatch(before.text)
            stack.append((before.text.lower() if before is not None and named else "", 0))
        elif token.token_type in closing and stack and before is not None:
            name, commas = stack.pop()
            if name:
                last = before.token_type not in (TokenType.L_PAREN, TokenType.COMMA)
                yield name, commas + last, any(each for each, _ in stack)
        elif token.token_type is TokenType.COMMA and stack:
            stack[-1] = (stack[-1][0], stack[-1][1] + 1)
        before = token


def check_count(name: str, count: int, least: int, most: int) -> None:
    """Refuse a call that has not as many arguments as its function takes."""
    if not least <= count <= most:
        wanted = f"{least}" if least == most else f"{least} or {most}" if most == least + 1 else f"{least} to {most}"
        example = _EXAMPLES.get(OTHER_NAMES.get(name, name), "x, y" if most > 1 and name != "round" else "x")
        raise Refused(
            f"{name}() takes {wanted} argument{'' if most == 1 else 's'}, not {count}",
            f"write, for example, {name}({example})",
        )
