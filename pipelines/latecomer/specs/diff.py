"""The differences between two signatures, in the words of a query file.

Signatures are those of :meth:`latecomer.specs.spec.Spec.signature`, or what a lake has stored of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from latecomer.specs.durations import format_duration

_LONGEST = 120
"""Most characters of a value that are shown."""
_FILE_KEYS = {"elements": "element", "windows": "window"}
"""Keys of signatures that have another name in files -> that name."""


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return one text for each key whose value differs, such as ``window.slide was 5 min, is 10 min``."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    texts = []
    for key in dict.fromkeys((*new, *old)):
        if old.get(key) != new.get(key):
            was, is_now = _format(key, old.get(key)), _format(key, new.get(key))
            name = _FILE_KEYS.get(key, key.removesuffix("_us"))
            short = max(len(was), len(is_now)) <= _LONGEST
            texts.append(f"{name} was {was}, is {is_now}" if short else f"{name} is another")
    return texts


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value that is not an object, with its dotted path."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}" if path else key)


def _format(key: str, value: object) -> str:
    """Return a value about as a query file has it."""
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return str(value).lower()
    if key.endswith("_us") and isinstance(value, int):
        return format_duration(value)
    if isinstance(value, str):
        return _strip_brackets(value)
    if not isinstance(value, (list, tuple)):
        return str(value)
    if key == "streams":
        return "{" + ", ".join(f"{alias}: {stream}" for alias, stream in value) + "}"
    return "[" + ", ".join(_format_item(key, item) for item in value) + "]"


def _format_item(key: str, item: object) -> str:
    """Return an entry of a list: a column, a pair of keys, a selected expression, a condition or a window."""
    if isinstance(item, Mapping):
        if "function" in item:
            arguments = [_strip_brackets(item["argument"] or ""), "" if item["q"] is None else str(item["q"])]
            return f"{item['name']}: {item['function']}({', '.join(filter(None, arguments))})"
        if "op" in item:
            return f"{_strip_brackets(item['left'])} {item['op']} {_strip_brackets(item['right'])}"
        return (
            "{" + ", ".join(f"{name.removesuffix('_us')}: {_format(name, inner)}" for name, inner in item.items()) + "}"
        )
    if isinstance(item, (list, tuple)):
        first, second = map(str, item)
        if key != "select":
            return first if first == second else f"{first} = {second}"
        default_names = (second, second.replace(".", "_"), second.split(".")[-1])
        return second if first in default_names else f"{_strip_brackets(second)} as {first}"
    return _strip_brackets(str(item))


def _strip_brackets(text: str) -> str:
    """Return the canonical text of an expression without the brackets around all of it."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
