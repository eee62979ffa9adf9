"""Quote calls with commas inside YAML's ``[...]`` and ``{...}``, so that YAML reads them as their author meant them.

To YAML, ``{p90: quantile(delay, 0.9)}`` has two entries, because a comma ends a plain text there. Query files are full
of calls. So before a file is read, a plain text that leaves a parenthesis open is put between quotes up to the end of
the call. Texts without an open parenthesis, and texts outside ``[...]`` and ``{...}``, are left alone. Lines keep their
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ruamel.yaml.events import Event


def quote_calls(text: str, events: Iterable[Event]) -> str:
    """Return the text with such calls quoted.

    Parameters
    ----------
    text
        YAML.
    events
        The events into which ruamel.yaml parses `text`.
    """
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, ScalarEvent

    in_flow: list[bool] = []  # of each open collection, whether it is written in brackets
    pieces: list[str] = []
    done = 0
    for event in events:
        if isinstance(event, CollectionStartEvent):
            in_flow.append(bool(event.flow_style))
        elif isinstance(event, CollectionEndEvent):
            in_flow.pop()
        elif isinstance(event, ScalarEvent) and in_flow and in_flow[-1] and event.style is None:
            start = event.start_mark.index
            if start >= done and event.value.count("(") > event.value.count(")"):
                end = _end_of_expression(text, start)
                if end is not None:
                    pieces += [text[done:start], "'", text[start:end].replace("'", "''"), "'"]
                    done = end
    return "".join(pieces) + text[done:]


def _end_of_expression(text: str, start: int) -> int | None:
    """Return the end of the expression that begins at `start`, None where its parentheses are never closed.

    It ends at the first comma, bracket, line end or comment outside its parentheses.
    """
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
