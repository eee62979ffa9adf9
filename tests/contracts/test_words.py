"""The vocabulary of the project: names and phrases that neither code nor documentation may use.

A name is checked where it is defined: functions, classes, parameters, variables, attributes, import aliases, modules.
Prose is checked in docstrings, comments and Markdown pages, without their code spans. ``docs/glossary.md`` has the
terms that are used instead.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Words that no name may contain: any part between underscores or capitals counts. Each has the term to use instead.
PARTS = {
    "ahead": "prefetch",
    "awaited": "the reason to wait",
    "beside": "broadcast_if_small",
    "books": "accounts",
    "brought": "collect_if_small",
    "closings": "closed windows",
    "few": "driver-local",
    "handed": "to_spark",
    "judge": "validate",
    "laws": "invariants",
    "leave": "complete a period",
    "look": "observe, or fingerprint",
    "looked": "prefetched, or observed",
    "lookout": "observation schedule",
    "looks": "observations, or stat fingerprint",
    "news": "new files, or new rows",
    "placed": "decisions",
    "placement": "watermark table",
    "settle": "finalize",
    "settled": "finalized, or materialized",
    "sound": "usable",
    "speech": "first row",
    "tend": "compact and vacuum",
    "thinning": "group sampling",
    "waited": "rows with lateness",
}
# Whole names that say nothing about the thing they name, and names of classes and constants that were replaced.
WHOLE = {
    **dict.fromkeys(
        ["asked", "each", "found", "mine", "one", "own", "there", "this", "wanted", "what"], "the thing's name"
    ),
    "now": "the moment's name, as in now_us",
    "COLLECTED": "what the settings are for",
    "MEANING": "what the settings are for",
    "QUICK": "what the settings are for",
    "_ASKED": "what the settings are for",
    "Landed": "unified input",
    "Left": "completed periods",
    "Order": "BatchScan",
    "Question": "SQL recompute",
    "Reach": "committed bounds",
    "Truth": "SQL recompute",
    "UnlessWrong": "what it decides about a retry",
    "agree": "resolve types",
    "compiled_once": "codegen barrier",
    "computed": "signature",
    "expects_few": "driver-local",
    "question": "signature",
    "released": "flushed results",
    "wait_for_speech": "hold until all streams are seen",
}
MODULES = {"once": "duplicates", "small": "delta", "words": "messages"}
PHRASES = {
    r"as (?:it stands|they stand)": "drop it",
    r"it is said": "name who says it",
    r"lookouts?": "observation schedule",
    r"of which": "a sentence of its own",
    r"so far as": "a noun, or where",
    r"thinning": "group sampling",
    r"those that": "the noun, and that",
}
# A first line says what the thing does (an imperative verb) or is (a noun phrase with an article).
OPENERS = {
    *(
        "and",
        "are",
        "as",
        "at",
        "because",
        "but",
        "by",
        "can",
        "did",
        "do",
        "does",
        "for",
        "from",
        "has",
        "have",
        "how",
    ),
    *("if", "in", "is", "it", "may", "nor", "of", "or", "over", "so", "than", "that", "these", "they", "this", "those"),
    *("though", "to", "unless", "until", "was", "were", "what", "when", "where", "which", "while", "who"),
    *("whose", "why", "with"),
}
# How often each word still occurs, exactly. A count may only go down; a word that is gone leaves the table.
REMAINING: dict[str, int] = {
    "ahead": 1,
    "asked": 13,
    "beside": 5,
    "books": 5,
    "brought": 2,
    "closings": 1,
    "docstring: and": 2,
    "docstring: as": 3,
    "docstring: at": 1,
    "docstring: do": 3,
    "docstring: does": 4,
    "docstring: for": 1,
    "docstring: how": 1,
    "docstring: in": 2,
    "docstring: is": 1,
    "docstring: it": 2,
    "docstring: may": 1,
    "docstring: nor": 1,
    "docstring: of": 5,
    "docstring: so": 1,
    "docstring: unless": 1,
    "docstring: what": 10,
    "docstring: where": 4,
    "docstring: which": 1,
    "docstring: why": 1,
    "docstring: with": 2,
    "each": 62,
    "few": 19,
    "found": 128,
    "handed": 2,
    "leave": 2,
    "look": 3,
    "looked": 5,
    "looks": 2,
    "mine": 2,
    "news": 1,
    "now": 13,
    "of which": 12,
    "one": 28,
    "own": 19,
    "released": 2,
    "settled": 10,
    "there": 4,
    "those that": 2,
    "waited": 4,
    "wanted": 32,
    "what": 1,
}


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a module defines, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.alias(asname=str()):
                yield node.lineno, node.asname
            case ast.MatchAs(name=str()) | ast.MatchStar(name=str()):
                yield node.lineno, node.name


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every docstring of a module, with the line at which it begins."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Every comment of a module, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def parts(name: str) -> list[str]:
    """The words of a name in snake case, camel case or capitals, in small letters.

    Examples
    --------
    >>> parts("_JoinBooks_now2")
    ['join', 'books', 'now2']
    """
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def in_names(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Lines, forbidden words and remedies among the names that a module defines."""
    for line, name in names(tree):
        if name in WHOLE:
            yield line, name, WHOLE[name]
        for word in parts(name):
            if word in PARTS:
                yield line, word, PARTS[word]


def in_prose(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Lines, forbidden phrases and remedies in texts, less what stands in code spans."""
    for line, text in texts:
        plain = re.sub(
            r"```.*?```|``.*?``|`[^`\n]*`", lambda code: re.sub(r"[^\n]", " ", code[0]), text, flags=re.DOTALL
        )
        for phrase, remedy in PHRASES.items():
            for hit in re.finditer(rf"\b{phrase}\b".replace(" ", r"\s+"), plain, re.IGNORECASE):
                yield line + plain[: hit.start()].count("\n"), phrase, remedy


def in_openers(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Lines and first words of docstrings that open with neither a verb nor a noun phrase."""
    for line, text in texts:
        word = re.sub(r"\W", "", text.split()[0]).lower()
        if word in OPENERS:
            yield line, f"docstring: {word}", "open with a verb or a noun phrase"


def in_module(source: str, stem: str = "") -> list[tuple[int, str, str]]:
    """Lines, forbidden words and remedies of one Python module."""
    module = [(1, f"module: {stem}", MODULES[stem])] if stem in MODULES else []
    module += [(1, word, PARTS[word]) for word in parts(stem) if word in PARTS]
    tree = ast.parse(source)
    texts = [*docstrings(tree)]
    return [*module, *in_names(tree), *in_prose([*texts, *comments(source)]), *in_openers(texts)]


@cache
def everywhere() -> list[tuple[Path, int, str, str]]:
    """Every violation of the repository: file, line, word and remedy."""
    violations = []
    for folder in ("pipelines", "dags", "plugins", "infra", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, word, remedy in in_module(path.read_text(encoding="utf-8"), path.stem):
                violations.append((path.relative_to(ROOT), line, word, remedy))
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for line, word, remedy in in_prose([(1, path.read_text(encoding="utf-8"))]):
            violations.append((path.relative_to(ROOT), line, word, remedy))
    return violations


def test_no_forbidden_word_is_used():
    violations = everywhere()
    counts = Counter(word for _, _, word, _ in violations)
    grown = {word for word, count in counts.items() if count > REMAINING.get(word, 0)}
    lines = [f"{path}:{line}: {word!r}: use {remedy}" for path, line, word, remedy in violations if word in grown]
    assert not lines, "\n".join(lines)


def stale(remaining, counts):
    """Return the words that occur less often than the table `remaining` says, with their real counts."""
    return {word: counts.get(word, 0) for word, count in remaining.items() if counts.get(word, 0) < count}


def test_the_table_of_remaining_words_shrinks_with_the_code():
    lower = stale(REMAINING, Counter(word for _, _, word, _ in everywhere()))
    assert not lower, f"lower the counts of REMAINING to these, and remove words with 0: {lower}"


def test_a_stale_count_is_found():
    assert stale({"few": 3, "look": 1, "each": 2}, {"few": 1, "each": 2}) == {"few": 1, "look": 0}


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("class Lookout: ...", "lookout"),
        ("def wait_for_speech(): ...", "speech"),
        ("rows, each = 1, 2", "each"),
        ("def f(mine): ...", "mine"),
        ("self.closings = []", "closings"),
        ("import ledger as books", "books"),
        ("class Reach: ...", "Reach"),
        ("match x:\n    case [*found]: ...", "found"),
        ("x = 1  # the rows, of which some are late", "of which"),
        ('"""Rows, so\nfar as they are known."""', "so far as"),
        ('def f():\n    """What windows look like."""', "docstring: what"),
    ],
)
def test_a_forbidden_word_is_found(source, word):
    assert word in [violation[1] for violation in in_module(source)]


def test_a_module_is_judged_by_its_name_too():
    assert [word for _, word, _ in in_module("", "once")] == ["module: once"]
    assert [word for _, word, _ in in_module("", "test_thinning")] == ["thinning"]


def test_names_that_are_only_used_and_code_spans_are_left_alone():
    assert not in_module(
        '"""The call `so far as` of ``those that`` stays."""\nfrom datetime import datetime\ndatetime.now()'
    )
