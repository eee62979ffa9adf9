"""The errors of query and stream files, and the words that their messages are made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

MISSING = object()
"""Stands for the value of a key that the file does not have."""


class SpecError(Exception):
    """A fault of a query or stream file; its text is one line with file, line, key, value, problem and remedy.

    Parameters
    ----------
    where
        The file.
    key
        Dotted path of the key; empty where the whole file is at fault.
    value
        The value in the file. None and `MISSING` are not shown.
    problem, remedy
        What is wrong, and what to do about it.
    line
        Line of the key, counted from 1; None: not known yet.
    at
        Dotted path of another key, whose line is shown in place of that of `key`. A missing key has no line of its own.
    """

    exit_code = 2

    def __init__(
        self,
        where: str,
        key: str,
        value: object,
        problem: str,
        remedy: str,
        line: int | None = None,
        at: str | None = None,
    ) -> None:
        self.where, self.key, self.value, self.problem, self.remedy = where, key, value, problem, remedy
        self.line, self.at = line, at
        super().__init__(where, key, value, problem, remedy, line, at)

    def with_line(self, lines: Mapping[str, int]) -> SpecError:
        """Return the error with the line of its key, or of the nearest key around it; itself where a line is known."""
        key = self.key if self.at is None else self.at
        while self.line is None and key:
            if key in lines:
                return SpecError(self.where, self.key, self.value, self.problem, self.remedy, lines[key], self.at)
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        value = "" if self.value is MISSING or self.value is None else f" {shorten(self.value)}:"
        key = f" {_cut(self.key, 120)}:" if self.key else ""
        line = " ".join(f"{place}:{key}{value} {_cut(self.problem, 200)}; {_cut(self.remedy, 200)}".split())
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shorten(value: object, limit: int = 80) -> str:
    """Return the `repr` of a value, cut after `limit` characters."""
    try:
        return _cut(repr(value), limit)
    except ValueError:  # an integer of more digits than Python writes out
        return "(a huge number)"


def quantity(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> quantity(1, "batch", "batches"), quantity(2_000, "row")
    ('1 batch', '2,000 rows')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a remedy that names the known word closest to `word`, or all known words where none is close.

    `cutoff` is the least similarity, from 0 to 1, as :func:`difflib.get_close_matches` measures it.
    """
    options = [str(option) for option in known]
    close = difflib.get_close_matches(_cut(word, 100), options, n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(options) or '(none)'}"
