"""What every query kind's spec shares: errors, durations, names, and reading a mapping key by key.

A :class:`Reader` walks the parsed file: each `take` consumes one key and checks it, `done` refuses what is left, so no
key is ever ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from latecomer.specs.durations import parse_duration
from latecomer.specs.errors import MISSING, SpecError, did_you_mean
from latecomer.specs.names import ALIAS, RESERVED, STREAM, STREAM_REMEDY


def _plain(bound: float) -> str:
    """A bound as it may be written in a query file."""
    return f"{int(bound)}" if bound == int(bound) else f"{bound:g}"


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

    def take(self, name: str, default: Any = MISSING) -> Any:
        """The value of a key, consumed; a missing one is the default or an error."""
        self._known.append(name)
        if name in self._left:
            value = self._left.pop(name)
            if value is None and default is MISSING:
                raise self.fail(name, None, "has no value", "give it one")
            return default if value is None and default is not MISSING else value
        if default is MISSING:
            close = difflib.get_close_matches(name, list(self._left), n=1, cutoff=0.7)
            other = [key for key in self._left if name in _OFTEN_WRITTEN.get(key.lower(), ())]
            found = next(iter(close or other), None)
            remedy = "add it" if found is None else f"is {found!r} {'a typo' if close else 'meant'} for it?"
            at = None if found is None else self.key(found)
            raise SpecError(self.source, self.key(name), MISSING, "is missing", remedy, at=at)
        return default

    def text(self, name: str, default: Any = MISSING, *, limit: int = 10_000) -> Any:
        """A non-empty text."""
        value = self.take(name, default)
        if value is default and default is not MISSING:
            return value
        if not isinstance(value, str) or not value.strip():
            raise self.fail(name, value, "must be text", "write text, in quotes where YAML needs them")
        if len(value) > limit:
            raise self.fail(name, value, f"is longer than {limit} characters", "shorten it")
        return value

    def choice(self, name: str, options: Iterable[str], default: Any = MISSING) -> str:
        """One of a few words."""
        options = list(options)
        value = self.take(name, default)
        if not isinstance(value, str) or value not in options:
            raise self.fail(name, value, "is unknown here", did_you_mean(str(value), options))
        return value

    def duration(self, name: str, default: Any = MISSING, *, zero: bool = False) -> Any:
        """A duration in microseconds, of 0 only where `zero` allows it; a default is returned as it is."""
        value = self.take(name, default)
        if value is default and default is not MISSING:
            return value
        return parse_duration(value, source=self.source, key=self.key(name), zero=zero)

    def number(
        self,
        name: str,
        default: Any = MISSING,
        *,
        low: float,
        high: float,
        open_low: bool = False,
        whole: bool = False,
    ) -> Any:
        """A number within bounds."""
        value = self.take(name, default)
        if value is default and default is not MISSING:
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

    def mapping(self, name: str, default: Any = MISSING) -> Reader | None:
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
