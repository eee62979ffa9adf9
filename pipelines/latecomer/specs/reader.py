"""Read a mapping of a query file key by key.

Each `take` of a :class:`Reader`, and each method that takes and checks, consumes one key. `done` refuses the keys that
are left, so no key is ever ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar, overload

from latecomer.specs import fragments
from latecomer.specs.durations import DURATION, DURATION_OR_ZERO, parse_duration
from latecomer.specs.errors import MISSING, SpecError, did_you_mean
from latecomer.specs.fragments import MAPPING, TEXT, TEXTS, Fragment, choice, fullmatch, quantity
from latecomer.specs.names import ALIAS, RESERVED, STREAM, STREAM_REMEDY

Default = TypeVar("Default")

_SYNONYMS = {
    **dict.fromkeys(("on", "key", "using", "by"), ("keys", "group_by", "element")),
    **dict.fromkeys(("filter", "condition", "having"), ("where", "conditions")),
    **dict.fromkeys(("columns", "fields"), ("select",)),
    **dict.fromkeys(("from", "sources", "inputs"), ("streams",)),
    **dict.fromkeys(("n", "limit"), ("k",)),
    **dict.fromkeys(("order_by", "rank_by"), ("score",)),
}
"""Other languages' words for keys -> the keys that may be meant."""
_EXAMPLES = {
    "streams": "{alias: stream}, for example {f: flights}",
    "select": "{name: call}, for example {n: count()}",
    "quality": "{period: 1 d} and a target",
    "schedule": '{repair: "@hourly"}',
}
"""Examples of mappings, by their dotted key."""
LONGEST_TEXT = 10_000
"""Most characters of a text."""


class Reader:
    """A reader of one mapping; every error names the file and the dotted key.

    Parameters
    ----------
    data
        The parsed value, which must be a mapping with text keys.
    source
        The file, for error messages.
    path
        Dotted key of the mapping; empty for the whole file.

    Raises
    ------
    SpecError
        The value is not such a mapping.
    """

    def __init__(self, data: object, source: str, path: str = "") -> None:
        self.source, self.path = source, path
        if not isinstance(data, Mapping):
            example = _EXAMPLES.get(path)
            remedy = f"write {example}" if example else "see the examples that `latecomer init` writes"
            raise SpecError(source, path, data, "must be a mapping of keys to values", remedy)
        self._left: dict[str, object] = {}
        for key, value in data.items():
            if not isinstance(key, str):
                raise SpecError(source, path, key, "keys must be text", "quote the key")
            self._left[key] = value
        self._given = frozenset(key for key, value in self._left.items() if value is not None)
        self._known: list[str] = []

    def key(self, name: str) -> str:
        """Return the dotted path of a key."""
        return f"{self.path}.{name}" if self.path else name

    def fail(self, name: str, value: object, problem: str, remedy: str) -> SpecError:
        """Return an error about one key."""
        return SpecError(self.source, self.key(name), value, problem, remedy)

    def has(self, name: str) -> bool:
        """Return whether the key is in the file and not consumed yet."""
        return name in self._left

    def given(self, name: str) -> bool:
        """Return whether the key has a value in the file, consumed or not."""
        return name in self._given

    def take(self, name: str, default: object = MISSING, *, schema: Fragment) -> object:
        """Consume a key and return its value, unchecked.

        A key without a value, or one that the file does not have, gives the default; without a default it is an error.
        `schema` is the JSON Schema of the values that the caller accepts, as far as one can say that.
        """
        self._known.append(name)
        fragments.note(self.key(name), schema, default is MISSING)
        if name in self._left:
            value = self._left.pop(name)
            if value is not None:
                return value
            if default is MISSING:
                raise self.fail(name, None, "has no value", "give it one")
        elif default is MISSING:
            raise self._missing(name)
        return default

    def refuse(self, name: str, problem: str, remedy: str) -> None:
        """Raise the error of a key that the file has, although it may not here."""
        fragments.note(self.key(name), None, False)
        if self.has(name):
            raise self.fail(name, self._left[name], problem, remedy)

    def _missing(self, name: str) -> SpecError:
        """Return the error of a missing key. It names a key of the file that may be meant for it."""
        close = difflib.get_close_matches(name, list(self._left), n=1, cutoff=0.7)
        synonyms = [key for key in self._left if name in _SYNONYMS.get(key.lower(), ())]
        other = next(iter(close or synonyms), None)
        if other is None:
            return self.fail(name, MISSING, "is missing", "add it")
        remedy = f"is {other!r} {'a typo' if close else 'meant'} for it?"
        return SpecError(self.source, self.key(name), MISSING, "is missing", remedy, at=self.key(other))

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: Default) -> str | Default: ...
    def text(self, name: str, default: object = MISSING) -> object:
        """Consume a key whose value is a text that is not blank."""
        value = self.take(name, default, schema=TEXT | {"maxLength": LONGEST_TEXT})
        if value is default and default is not MISSING:
            return value
        if not isinstance(value, str) or not value.strip():
            raise self.fail(name, value, "must be text", "write text, in quotes where YAML needs them")
        if len(value) > LONGEST_TEXT:
            raise self.fail(name, value, f"is longer than {LONGEST_TEXT} characters", "shorten it")
        return value

    def choice(self, name: str, options: Iterable[str], default: str | None = None) -> str:
        """Consume a key whose value is one of `options`."""
        options = list(options)
        value = self.take(name, MISSING if default is None else default, schema=choice(options))
        return self._chosen(name, value, options)

    def _chosen(self, name: str, value: object, options: Iterable[str]) -> str:
        if not isinstance(value, str) or value not in options:
            raise self.fail(name, value, "is unknown here", did_you_mean(str(value), options))
        return value

    def optional_choice(self, name: str, options: Iterable[str]) -> str | None:
        """Consume a key whose value, if it has one, is one of `options`."""
        value = self.take(name, None, schema=choice(options))
        return None if value is None else self._chosen(name, value, options)

    def flag(self, name: str) -> bool | None:
        """Consume a key that is true or false; None where the file lacks it."""
        value = self.take(name, None, schema={"type": "boolean"})
        if value is None or isinstance(value, bool):
            return value
        raise self.fail(name, value, "must be true or false", "write true or false")

    @overload
    def duration(self, name: str, *, zero: bool = ...) -> int: ...
    @overload
    def duration(self, name: str, default: Default, *, zero: bool = ...) -> int | Default: ...
    def duration(self, name: str, default: object = MISSING, *, zero: bool = False) -> object:
        """Consume a key whose value is a duration; return microseconds. A duration of 0 needs `zero`."""
        value = self.take(name, default, schema=DURATION_OR_ZERO if zero else DURATION)
        if value is default and default is not MISSING:
            return value
        return parse_duration(value, source=self.source, key=self.key(name), zero=zero)

    @overload
    def number(self, name: str, *, low: float, high: float, above_low: bool = ...) -> float: ...
    @overload
    def number(
        self, name: str, default: Default, *, low: float, high: float, above_low: bool = ...
    ) -> float | Default: ...
    def number(
        self, name: str, default: object = MISSING, *, low: float, high: float, above_low: bool = False
    ) -> object:
        """Consume a key whose value is a number from `low` to `high`, or above `low` where `above_low` is true."""
        value = self.take(name, default, schema=quantity("number", low, high, above_low))
        if value is default and default is not MISSING:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise self._not_a_number(name, value, "number", low, high)
        if value < low or value > high or (above_low and value == low):
            raise self._out_of_range(name, value, low, high, above_low)
        return float(value)

    @overload
    def whole_number(self, name: str, *, low: int, high: int) -> int: ...
    @overload
    def whole_number(self, name: str, default: Default, *, low: int, high: int) -> int | Default: ...
    def whole_number(self, name: str, default: object = MISSING, *, low: int, high: int) -> object:
        """Consume a key whose value is a whole number from `low` to `high`, both included."""
        value = self.take(name, default, schema=quantity("integer", low, high))
        if value is default and default is not MISSING:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._not_a_number(name, value, "whole number", low, high)
        if not low <= value <= high:
            raise self._out_of_range(name, value, low, high)
        return value

    def _not_a_number(self, name: str, value: object, noun: str, low: float, high: float) -> SpecError:
        quotes = ", without quotes" if isinstance(value, str) else ""
        remedy = f"write one from {_format_bound(low)} to {_format_bound(high)}{quotes}"
        return self.fail(name, value, f"must be a {noun}", remedy)

    def _out_of_range(self, name: str, value: object, low: float, high: float, above_low: bool = False) -> SpecError:
        least, most = _format_bound(low), _format_bound(high)
        bounds = f"above {least}, at most {most}" if above_low else f"from {least} to {most}"
        return self.fail(name, value, f"must be {bounds}", "choose a number in that range")

    def mapping(self, name: str, schema: Fragment = MAPPING) -> Reader:
        """Consume a key whose value is a mapping; return its reader."""
        return Reader(self.take(name, schema=schema), self.source, self.key(name))

    def optional_mapping(self, name: str, schema: Fragment = MAPPING) -> Reader | None:
        """Consume a key whose value, if it has one, is a mapping; return its reader, or None."""
        value = self.take(name, None, schema=schema)
        return None if value is None else Reader(value, self.source, self.key(name))

    def optional_texts(self, name: str) -> tuple[str, ...]:
        """Consume a key whose value, if it has one, is a list of texts; without a value the tuple is empty."""
        value = self.take(name, None, schema=TEXTS)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)) or not value:
            single = isinstance(value, str) and value.strip() and len(value) <= 60
            remedy = f"write [{value}]" if single else "write [first, second]"
            raise self.fail(name, value, "must be a list with an entry or more", remedy)
        for place, text in enumerate(value):
            if not isinstance(text, str) or not text.strip():
                raise self.fail(f"{name}[{place}]", text, "must be text", "write text, in quotes where YAML needs them")
        return tuple(value)

    def items(self) -> list[tuple[str, object]]:
        """Consume all keys that are left; return them with their values."""
        items = list(self._left.items())
        self._left.clear()
        return items

    def done(self) -> None:
        """Refuse the keys that are left."""
        for name, value in self._left.items():
            meant = next((known for known in _SYNONYMS.get(name.lower(), ()) if known in self._known), None)
            remedy = f"did you mean {meant!r}?" if meant else did_you_mean(name, self._known)
            raise self.fail(name, value, "is not a key here", remedy)


def _format_bound(bound: float) -> str:
    """Return a bound as a query file may have it."""
    return f"{int(bound)}" if bound == int(bound) else f"{bound:g}"


def parse_streams(reader: Reader, least: int, most: int) -> tuple[tuple[str, str], ...]:
    """Read ``streams: {alias: stream}`` with `least` to `most` streams; return the pairs in the file's order."""
    names: Fragment = {"propertyNames": fullmatch(ALIAS.pattern) | {"not": choice(sorted(RESERVED))}}
    names |= {"minProperties": least, "maxProperties": most, "additionalProperties": fullmatch(STREAM.pattern)}
    inner = reader.mapping("streams", MAPPING | names)
    streams: list[tuple[str, str]] = []
    for alias, stream in inner.items():
        if not ALIAS.fullmatch(alias):
            raise inner.fail(alias, alias, "is not a valid alias", "use letters, digits and _, not a digit first")
        if alias.lower() in RESERVED:
            raise inner.fail(alias, alias, "is a reserved word", "choose another alias")
        if any(alias.lower() == other.lower() for other, _ in streams):
            raise inner.fail(alias, alias, "differs from another alias in case only", "choose another alias")
        if not isinstance(stream, str) or not STREAM.fullmatch(stream):
            raise inner.fail(alias, stream, "is not a stream name", STREAM_REMEDY)
        streams.append((alias, stream))
    if not least <= len(streams) <= most:
        allowed = f"{least}" if least == most else f"{least} to {most}"
        problem = f"names {len(streams)} streams, but this kind takes {allowed}"
        raise reader.fail("streams", dict(streams), problem, "add or remove streams")
    return tuple(streams)
