"""Read the JSON documents of the lake: a query's state, its plans, the parameters of `adapt`.

A key that is missing means that another version of the program wrote the document.
"""

from __future__ import annotations

import json
from typing import Any

from latecomer.core.state import OtherVersion


class StoredObject(dict[str, Any]):
    """A JSON object of a stored document; reading a key that it lacks raises `OtherVersion`.

    `where` names the document in messages.
    """

    def __init__(self, values: dict[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where

    def __missing__(self, key: str) -> Any:
        raise OtherVersion(self.where, f"lacks {key!r}")


def loads(text: str, where: str) -> Any:
    """Parse a document; each of its objects is a `StoredObject`."""
    return json.loads(text, object_hook=lambda values: StoredObject(values, where))
