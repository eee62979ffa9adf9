"""JSON documents of the lake (a query's state, its plans, what `adapt` learnt): a key that is not there says who wrote them."""

from __future__ import annotations

import json
from typing import Any

from latecomer.core.state import OtherVersion


class Stored(dict[str, Any]):
    """An object of a stored document, which `where` names in messages; a key that is asked for and not there raises `OtherVersion`."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where

    def __missing__(self, key: str) -> Any:
        raise OtherVersion(self.where, f"lacks {key!r}")


def loads(text: str, where: str) -> Any:
    """A document, every object of which is a `Stored`."""
    return json.loads(text, object_hook=lambda values: Stored(values, where))
