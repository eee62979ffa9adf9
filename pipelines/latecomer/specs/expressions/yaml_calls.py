"""Calls with commas inside YAML's ``[...]`` and ``{...}``, read as their author meant them.

To YAML, ``{p90: quantile(delay, 0.9)}`` is two entries: a comma ends a plain text there. A query file is full of calls, so a
plain text that leaves a parenthesis open is put between quotes, up to where the call ends, before the file is read. No
text without an open parenthesis is touched, and none outside ``[...]`` and ``{...}``; lines keep their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def quote_calls(text: str, events: Iterable[Any]) -> str:
    """The text with such calls quoted.

    Parameters
    ----------
    events
        What ruamel.yaml's parser makes of `text`.
    """
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, ScalarEvent

    flow: list[bool] = []
    pieces: list[str] = []
    done = 0
    for event in events:
        if isinstance(event, CollectionStartEvent):
            flow.append(bool(event.flow_style))
        elif isinstance(event, CollectionEndEvent):
            flow.pop()
        elif isinstance(event, ScalarEvent) and flow and flow[-1] and event.style is None:
            start = event.start_mark.index
            if start >= done and event.value.count("(") > event.value.count(")"):
                end = _end(text, start)
                if end is not None:
                    pieces += [text[done:start], "'", text[start:end].replace("'", "''"), "'"]
                    done = end
    return "".join(pieces) + text[done:]


def _end(text: str, start: int) -> int | None:
    """Where the expression that starts here ends: at the first comma, bracket or comment outside its parentheses; None: nowhere."""
    depth, quote = 0, ""
    for place in range(start, len(text)):
        char = text[place]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif depth == 0 and (char in ",]}\n" or (char == "#" and text[place - 1].isspace())):
            return start + len(text[start:place].rstrip())
        elif char == "#" and text[place - 1].isspace():
            return None
    return None
