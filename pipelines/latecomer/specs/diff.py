"""What two questions differ in, in the words of a query file. Both are as :meth:`latecomer.specs.spec.Spec.to_dict` has them, stored or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latecomer.specs.durations import shown

_LONGEST = 120
"""Characters of a value that are shown."""
_NAMES = {"elements": "element", "windows": "window"}
"""Keys that the file has by another name."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One text for each key whose value is another: ``window.slide was 5 min, is 10 min``."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    found = []
    for key in dict.fromkeys((*new, *old)):
        if old.get(key) != new.get(key):
            was, now_is = _text(key, old.get(key)), _text(key, new.get(key))
            name = _NAMES.get(key, key.removesuffix("_us"))
            short = max(len(was), len(now_is)) <= _LONGEST
            found.append(f"{name} was {was}, is {now_is}" if short else f"{name} is another")
    return found


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths to what is no object."""
    if not isinstance(value, Mapping):
        yield at, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{at}.{key}" if at else key)


def _text(key: str, value: Any) -> str:
    """A value as the file has it, or about."""
    if value is None:
        return "not stated"
    if key.endswith("_us") and isinstance(value, int):
        return shown(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _plain(value)
    if not isinstance(value, (list, tuple)):
        return str(value)
    if key == "streams":
        return "{" + ", ".join(f"{alias}: {stream}" for alias, stream in value) + "}"
    return "[" + ", ".join(_item(key, each) for each in value) + "]"


def _item(key: str, value: Any) -> str:
    """An entry of a list: a column, a pair of keys, a selected expression, a condition, a window."""
    if isinstance(value, Mapping):
        if "function" in value:
            given = [_plain(value["argument"] or ""), "" if value["q"] is None else str(value["q"])]
            return f"{value['name']}: {value['function']}({', '.join(filter(None, given))})"
        if "op" in value:
            return f"{_plain(value['left'])} {value['op']} {_plain(value['right'])}"
        return "{" + ", ".join(f"{name.removesuffix('_us')}: {_text(name, each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        first, second = map(str, value)
        if key == "select":
            return (
                second
                if first in (second, second.replace(".", "_"), second.split(".")[-1])
                else f"{_plain(second)} as {first}"
            )
        return first if first == second else f"{first} = {second}"
    return _plain(str(value))


def _plain(text: str) -> str:
    """Canonical text of an expression without the brackets around all of it."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
