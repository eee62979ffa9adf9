"""What every query kind's spec shares: errors, durations, names, and reading a mapping key by key.

A :class:`Reader` walks the parsed file: each `take` consumes one key and checks it, `done` refuses what is left, so no
key is ever ignored.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""A stream's name is a folder of the lake and part of Airflow's identifiers, so it is made of what both take: letters, digits, ``_``,
``-`` and ``.``, at most 100. Not ``.`` first (no hidden and no parent folder), nor ``_``, which the product's own names begin with."""
STREAM_REMEDY = "use letters, digits, '_', '-' and '.', a letter or digit first"
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
LONGEST_US = 3650 * UNITS_US["d"]
_UNIT_WORDS = {"micro": "us", "milli": "ms", "msec": "ms", "sec": "s", "min": "min", "ho": "h", "hr": "h", "day": "d"}
RESERVED = frozenset(
    {
        "all", "and", "as", "between", "case", "cast", "distinct", "else", "end", "exists", "false", "from", "group", "having",
        "in", "is", "like", "limit", "not", "null", "or", "order", "over", "select", "then", "true", "union", "when", "where",
        "with",
    }
)  # fmt: skip
"""Words of expressions and of SQL that no alias may be."""
_DURATION = re.compile(r"[ \t]*([0-9]{1,15}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]{1,12})[ \t]*")
_MISSING = object()


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
        shown = "" if self.value is _MISSING or self.value is None else f" {shorten(self.value)}:"
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


def parse_duration(value: object, *, source: str, key: str, zero: bool = False) -> int:
    """``250 ms``, ``10 s``, ``5 min``, ``1 h``, ``1 d`` (also ``us``) as whole microseconds.

    Raises
    ------
    SpecError
        Not a duration, not a whole number of microseconds, not positive, or longer than ten years.
    """
    remedy = "write a number and a unit: 250 ms, 10 s, 5 min, 1 h or 1 d"
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SpecError(source, key, value, "is not a duration", remedy)
    if match[2] not in UNITS_US:
        written = match[2].lower()
        meant = next((unit for word, unit in _UNIT_WORDS.items() if written.startswith(word)), None)
        meant = "min" if written == "m" else written if written in UNITS_US else meant
        hint = f"did you mean {meant!r}?" if meant else f"use one of {', '.join(UNITS_US)}"
        if written == "ns" or written.startswith("nano"):
            hint = "us is the finest there is"
        raise SpecError(source, key, value, f"has the unknown unit {match[2]!r}", hint)
    try:
        exact = Decimal(match[1]) * UNITS_US[match[2]]
    except InvalidOperation:
        raise SpecError(source, key, value, "is not a duration", remedy) from None
    if exact != int(exact):
        raise SpecError(source, key, value, "is finer than a microsecond", "round it")
    if exact > LONGEST_US:
        raise SpecError(source, key, value, "is longer than ten years", "choose a shorter duration")
    if exact == 0 and not zero:
        raise SpecError(source, key, value, "must be longer than zero", remedy)
    return int(exact)


def _plain(bound: float) -> str:
    """A bound as it may be written in a query file."""
    return f"{int(bound)}" if bound == int(bound) else f"{bound:g}"


def shown(duration_us: int) -> str:
    """Whole microseconds as a duration of a query file, in the largest unit that keeps them whole."""
    unit = max((each for each in UNITS_US if duration_us % UNITS_US[each] == 0), key=UNITS_US.__getitem__)
    return f"{duration_us // UNITS_US[unit]} {unit}"


_OFTEN_WRITTEN = {
    **dict.fromkeys(("on", "key", "using", "by"), ("keys", "group_by", "element")),
    **dict.fromkeys(("filter", "condition", "having"), ("where", "conditions")),
    **dict.fromkeys(("columns", "fields"), ("select",)),
    **dict.fromkeys(("from", "sources", "inputs"), ("streams",)),
    **dict.fromkeys(("n", "limit"), ("k",)),
    **dict.fromkeys(("order_by", "rank_by"), ("score",)),
}
"""Other languages' words for keys, and the keys that may be meant."""
_SHOWN = {
    "streams": "{alias: stream}, for example {f: flights}",
    "select": "{name: call}, for example {n: count()}",
    "quality": "{period: 1 d} and what is promised",
    "schedule": '{repair: "@hourly"}',
}
"""What mappings look like, by their place."""


class Reader:
    """One mapping of a query file; every problem names the file and the dotted key."""

    def __init__(self, data: Any, source: str, path: str = "") -> None:
        self.source, self.path = source, path
        if not isinstance(data, Mapping):
            raise SpecError(
                source,
                path,
                data,
                "must be a mapping of keys to values",
                f"write {shown}" if (shown := _SHOWN.get(path)) else "see the examples that `latecomer init` writes",
            )
        self._left: dict[str, Any] = {}
        for key, value in data.items():
            if not isinstance(key, str):
                raise SpecError(source, path, key, "keys must be text", "quote the key")
            self._left[key] = value
        self._given = frozenset(key for key, value in self._left.items() if value is not None)
        self._known: list[str] = []

    def key(self, name: str) -> str:
        """Dotted path of a key."""
        return f"{self.path}.{name}" if self.path else name

    def fail(self, name: str, value: object, problem: str, remedy: str) -> SpecError:
        """An error about one key."""
        return SpecError(self.source, self.key(name), value, problem, remedy)

    def has(self, name: str) -> bool:
        """Is the key there, and not consumed yet?"""
        return name in self._left

    def given(self, name: str) -> bool:
        """Has the key a value in the file, consumed or not?"""
        return name in self._given

    def take(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a key, consumed; a missing one is the default or an error."""
        self._known.append(name)
        if name in self._left:
            value = self._left.pop(name)
            if value is None and default is _MISSING:
                raise self.fail(name, None, "has no value", "give it one")
            return default if value is None and default is not _MISSING else value
        if default is _MISSING:
            close = difflib.get_close_matches(name, list(self._left), n=1, cutoff=0.7)
            other = [key for key in self._left if name in _OFTEN_WRITTEN.get(key.lower(), ())]
            found = next(iter(close or other), None)
            remedy = "add it" if found is None else f"is {found!r} {'a typo' if close else 'meant'} for it?"
            at = None if found is None else self.key(found)
            raise SpecError(self.source, self.key(name), _MISSING, "is missing", remedy, at=at)
        return default

    def text(self, name: str, default: Any = _MISSING, *, limit: int = 10_000) -> Any:
        """A non-empty text."""
        value = self.take(name, default)
        if value is default and default is not _MISSING:
            return value
        if not isinstance(value, str) or not value.strip():
            raise self.fail(name, value, "must be text", "write text, in quotes where YAML needs them")
        if len(value) > limit:
            raise self.fail(name, value, f"is longer than {limit} characters", "shorten it")
        return value

    def choice(self, name: str, options: Iterable[str], default: Any = _MISSING) -> str:
        """One of a few words."""
        options = list(options)
        value = self.take(name, default)
        if not isinstance(value, str) or value not in options:
            raise self.fail(name, value, "is unknown here", did_you_mean(str(value), options))
        return value

    def duration(self, name: str, default: Any = _MISSING, *, zero: bool = False) -> Any:
        """A duration in microseconds, of 0 only where `zero` allows it; a default is returned as it is."""
        value = self.take(name, default)
        if value is default and default is not _MISSING:
            return value
        return parse_duration(value, source=self.source, key=self.key(name), zero=zero)

    def number(
        self,
        name: str,
        default: Any = _MISSING,
        *,
        low: float,
        high: float,
        open_low: bool = False,
        whole: bool = False,
    ) -> Any:
        """A number within bounds."""
        value = self.take(name, default)
        if value is default and default is not _MISSING:
            return value
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value != value:
            remedy = (
                f"write one from {_plain(low)} to {_plain(high)}{', without quotes' if isinstance(value, str) else ''}"
            )
            raise self.fail(name, value, f"must be a {'whole ' if whole else ''}number", remedy)
        if value < low or value > high or (open_low and value == low):
            bounds = _plain(low), _plain(high)
            bound = "above {}, at most {}".format(*bounds) if open_low else "from {} to {}".format(*bounds)
            raise self.fail(name, value, f"must be {bound}", "choose a number in that range")
        return value if whole else float(value)

    def mapping(self, name: str, default: Any = _MISSING) -> Reader | None:
        """A nested mapping as a reader; None where the default is None and it is absent."""
        value = self.take(name, default)
        if value is None and default is None:
            return None
        return Reader(value, self.source, self.key(name))

    def items(self) -> list[tuple[str, Any]]:
        """All keys that are left, consumed."""
        found = list(self._left.items())
        self._left.clear()
        return found

    def done(self) -> None:
        """Refuse keys that nobody asked for."""
        for name, value in self._left.items():
            meant = next((known for known in _OFTEN_WRITTEN.get(name.lower(), ()) if known in self._known), None)
            remedy = f"did you mean {meant!r}?" if meant else did_you_mean(name, self._known)
            raise self.fail(name, value, "is not a key here", remedy)


_UNSTORABLE = re.compile(r"[ ,;{}()\n\t=]")


def stored_name(column: str) -> str:
    """The name under which a lake has a column: a character that Delta tables take in no name is ``_``, in query files as at ingestion."""
    return _UNSTORABLE.sub("_", column)


def folded(name: str) -> str:
    """The same for names that tables do not tell apart: each character in upper and then in lower case, as the JVM compares them.

    `str.lower` is not that (``ς`` and ``Σ`` are one name there), nor `str.casefold` (``ß`` and ``ss`` are two).
    """
    upper = (char.upper() if len(char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in upper)


def repeated(names: Sequence[str]) -> list[str]:
    """Those of which there is more than one, case apart, sorted."""
    alike = Counter(map(folded, names))
    return sorted({name for name in names if alike[folded(name)] > 1})


def texts(reader: Reader, name: str, default: Any = ()) -> tuple[str, ...]:
    """A list of texts."""
    value = reader.take(name, default)
    if value is default:
        return tuple(value)
    if not isinstance(value, (list, tuple)) or not value:
        one = isinstance(value, str) and value.strip() and len(value) <= 60
        remedy = f"write [{value}]" if one else "write [first, second]"
        raise reader.fail(name, value, "must be a list with an entry or more", remedy)
    for place, item in enumerate(value):
        if not isinstance(item, str) or not item.strip():
            raise reader.fail(f"{name}[{place}]", item, "must be text", "write text, in quotes where YAML needs them")
    return tuple(value)


def streams_of(reader: Reader, least: int, most: int) -> tuple[tuple[str, str], ...]:
    """``streams: {alias: stream}`` in the file's order."""
    inner = reader.mapping("streams")
    assert inner is not None
    found: list[tuple[str, str]] = []
    for alias, stream in inner.items():
        if not ALIAS.fullmatch(alias):
            raise inner.fail(alias, alias, "is not a valid alias", "use letters, digits and _, not a digit first")
        if alias.lower() in RESERVED:
            raise inner.fail(alias, alias, "is a reserved word", "choose another alias")
        if any(alias.lower() == other.lower() for other, _ in found):
            raise inner.fail(alias, alias, "differs from another alias in case only", "choose another alias")
        if not isinstance(stream, str) or not STREAM.fullmatch(stream):
            raise inner.fail(alias, stream, "is not a stream name", STREAM_REMEDY)
        found.append((alias, stream))
    if not least <= len(found) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise reader.fail(
            "streams", dict(found), f"names {len(found)} streams, but this kind takes {wanted}", "add or remove streams"
        )
    return tuple(found)
