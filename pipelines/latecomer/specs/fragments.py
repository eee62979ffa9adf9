"""Parts of JSON Schemas, and the record of the keys that a reader takes, from which whole schemas are made.

A :class:`~latecomer.specs.reader.Reader` notes each key with the schema of its values at the very call that checks the
value, so the published schemas and the validation cannot differ in their keys, types, choices and bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

Fragment: TypeAlias = dict[str, Any]
"""A JSON Schema, or a part of one."""

ANY: Fragment = {}
MAPPING: Fragment = {"type": "object"}
"""Stands for a mapping whose keys are noted on their own."""
TEXT: Fragment = {"type": "string", "pattern": r"\S"}
TEXTS: Fragment = {"type": "array", "items": TEXT, "minItems": 1}


def any_of(*fragments: Fragment) -> Fragment:
    """Return the schema of a value that fits one of the schemas or more."""
    return {"anyOf": list(fragments)}


def choice(options: Iterable[str]) -> Fragment:
    """Return the schema of one of these texts."""
    return {"enum": list(options)}


def fullmatch(pattern: str) -> Fragment:
    """Return the schema of a text that a regular expression matches as a whole, without a line break after it."""
    return {"type": "string", "pattern": f"^(?:{pattern})$(?!\\n)"}


def quantity(kind: str, low: float, high: float, above_low: bool = False) -> Fragment:
    """Return the schema of a number (`kind` number or integer) from `low` to `high`, or above `low`."""
    return {"type": kind, "exclusiveMinimum" if above_low else "minimum": low, "maximum": high}


@dataclass(frozen=True)
class Taken:
    """A key that a reader has taken.

    Attributes
    ----------
    key
        The dotted key.
    schema
        The schema of its values; None: the key is refused here.
    required
        Whether the file needs it.
    """

    key: str
    schema: Fragment | None
    required: bool


_TAKEN: ContextVar[list[Taken] | None] = ContextVar("taken", default=None)


def note(key: str, schema: Fragment | None, required: bool) -> None:
    """Note a key that is taken, where :func:`noting` listens."""
    taken = _TAKEN.get()
    if taken is not None:
        taken.append(Taken(key, schema, required))


@contextmanager
def noting() -> Iterator[list[Taken]]:
    """Collect the keys that readers take meanwhile, in a list that grows."""
    taken: list[Taken] = []
    token = _TAKEN.set(taken)
    try:
        yield taken
    finally:
        _TAKEN.reset(token)
