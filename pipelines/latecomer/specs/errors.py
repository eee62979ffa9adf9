"""The errors of query and stream files: place, value, problem, remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

MISSING = object()


class SpecError(Exception):
    """A query file says something that cannot be: one line with file, key, value, problem and remedy.

    Parameters
    ----------
    where
        The file.
    key
        Dotted path of the key, empty where the whole file is meant.
    value
        What stands there; None is not shown.
    problem, remedy
        What is wrong; what to do.
    line
        Line of the key, counted from 1, where it is known.
    at
        Dotted path of the key whose line is meant, where it is another: a key that is missing has none.
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

    def located(self, lines: Mapping[str, int]) -> SpecError:
        """The same with its line, where that is not known yet: of its key, or of the nearest one around it."""
        key = self.key if self.at is None else self.at
        while self.line is None and key:
            if key in lines:
                return SpecError(self.where, self.key, self.value, self.problem, self.remedy, lines[key], self.at)
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return self

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        shown = "" if self.value is MISSING or self.value is None else f" {shorten(self.value)}:"
        key = f" {_cut(self.key, 120)}:" if self.key else ""
        line = " ".join(f"{place}:{key}{shown} {_cut(self.problem, 200)}; {_cut(self.remedy, 200)}".split())
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shorten(value: object, limit: int = 80) -> str:
    """`repr` of a value on one line, cut."""
    try:
        return _cut(repr(value), limit)
    except ValueError:  # an integer of more digits than Python writes out
        return "(a huge number)"


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: "1 batch", "2 batches"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A remedy: the closest known word that is at least `cutoff` alike (0 to 1, as difflib has it), or all of them."""
    options = [str(k) for k in known]
    close = difflib.get_close_matches(_cut(word, 100), options, n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(options) or '(none)'}"
