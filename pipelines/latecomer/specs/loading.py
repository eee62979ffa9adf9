"""Load the spec of a query file: YAML 1.2, read safely, bounded in size and depth.

Some valid YAML is refused too: repeated keys, anchors and aliases (a short file can stand for a huge one), merge keys,
tags (they construct objects), keys that are not text, other YAML versions and more than one document.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from latecomer.specs.errors import SpecError, did_you_mean
from latecomer.specs.expressions.yaml_calls import quote_calls
from latecomer.specs.fragments import choice, fullmatch
from latecomer.specs.names import NAME
from latecomer.specs.reader import Reader
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.events import Event

Made = TypeVar("Made")

KINDS = ("join", "aggregate", "topk", "theta_join", "membership")
LARGEST_BYTES = 64 * 1024
"""Size of the largest file, in bytes or characters."""
DEEPEST = 12
"""Most levels of nested collections."""
MOST_EVENTS = 10_000
"""Most events that a file may be parsed into: about twice the number of its values."""


def load_query(path: str | Path) -> Spec:
    """Read the spec of a query file.

    Raises
    ------
    SpecError
        For any fault of the file, whatever its bytes: one line with file, key, value, problem and remedy. No other
        error is raised.
    """
    return parse_query(read_text(path, "a query file"), str(path))


def parse_query(text: str, source: str = "<string>") -> Spec:
    """Read the spec in the text of a query file.

    Parameters
    ----------
    text
        YAML.
    source
        The file, for error messages.

    Raises
    ------
    SpecError
        For any fault of the text.

    Examples
    --------
    >>> spec = parse_query('''
    ... name: views_per_page
    ... kind: aggregate
    ... streams: {v: views}
    ... group_by: [page]
    ... window: {size: 1 h, slide: 10 min}
    ... select: {views: count()}
    ... quality: {error: 0.05, probability: 0.95, period: 1 d}
    ... ''')
    >>> spec.kind, spec.target, spec.result_keys
    ('aggregate', 0.95, ('page', 'window_start', 'window_end'))
    """
    if len(text) > LARGEST_BYTES:
        raise _too_large(source)
    data, lines = _parse_yaml(text, source)
    try:
        return replace(_parse_spec(data, source), lines=lines)
    except SpecError as error:
        raise error.with_line(lines) from None


def parse_mapping(data: Mapping[str, object], source: str) -> Spec:
    """Read the spec in the keys and values of a query file; the errors of `parse_query`, which name `source`."""
    return _parse_spec(dict(data), source)


def load_mapping(path: Path, make: Callable[[Reader], Made]) -> Made:
    """Read another file of keys and values, and return what `make` makes of its reader; a file without keys is empty.

    Raises
    ------
    SpecError
        For any fault of the file, as for `load_query`.
    """
    return parse_mapping_text(read_text(path, "a file of keys and values"), make, str(path))


def parse_mapping_text(text: str, make: Callable[[Reader], Made], source: str) -> Made:
    """Return what `make` makes of the text of such a file; the errors of `load_mapping`, which name `source`."""
    data, lines = _parse_yaml(text, source)
    try:
        return make(Reader({} if data is None else data, source))
    except SpecError as error:
        raise error.with_line(lines) from None


def read_text(path: str | Path, expected: str) -> str:
    """Read a file's text, at most `LARGEST_BYTES` of it; `expected` names its kind in remedies.

    Raises
    ------
    SpecError
        The file cannot be read, is larger, or is no UTF-8.
    """
    source = str(path)
    try:
        with open(path, "rb") as handle:
            raw = handle.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(source, "", None, f"cannot be read ({reason})", f"give the path of {expected}") from None
    if len(raw) > LARGEST_BYTES:
        raise _too_large(source, expected)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(source, "", None, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None


def _too_large(source: str, expected: str = "a query file") -> SpecError:
    return SpecError(source, "", None, f"is larger than {LARGEST_BYTES} bytes", f"is this {expected}?")


def _parse_spec(data: object, source: str) -> Spec:
    if data is None:
        raise SpecError(source, "", None, "is empty", "start from a file that `latecomer init` writes")
    reader = Reader(data, source)
    kind = reader.take("kind", schema=choice(KINDS))
    if kind not in KINDS:
        raise reader.fail("kind", kind, "is not a query kind", did_you_mean(str(kind), KINDS))
    name = reader.take("name", schema=fullmatch(NAME.pattern))
    if not isinstance(name, str) or not NAME.fullmatch(name):
        remedy = "use a-z, 0-9 and _, a letter first, at most 63 characters"
        raise reader.fail("name", name, "is not a query name", remedy)
    parse: Callable[[Reader, str], Spec] = import_module(f"latecomer.specs.{kind}").parse
    return parse(reader, name)


def _parse_yaml(text: str, source: str) -> tuple[object, dict[str, int]]:
    """Return the file's value and the line of every dotted key."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    loader = YAML(typ="safe", pure=True)
    loader.version = (1, 2)
    loader.allow_duplicate_keys = False
    try:
        events, lines = _parse_events(loader, text, source)
        quoted = quote_calls(text, events)
        if quoted != text:
            _, lines = _parse_events(loader, quoted, source)
        return loader.load(io.StringIO(quoted)), lines
    except SpecError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or "cannot be read").split())
        remedy = next((remedy for part, remedy in _YAML_REMEDIES.items() if part in problem), "correct that line")
        if "expected ':'" in problem:  # the parser notices it after the key that lacks the colon
            mark = error.context_mark or mark
        line = None if mark is None else mark.line + 1
        raise SpecError(source, "", None, f"is not valid YAML: {problem}", remedy, line) from None
    except Exception as error:  # whatever a foreign parser raises for arbitrary bytes is the file's fault
        problem = (str(error).splitlines() or ["cannot be read"])[0]
        raise SpecError(source, "", None, f"is not valid YAML: {problem}", "correct the file") from None


_YAML_REMEDIES = {
    "could not find expected ':'": "write `key: value`, with a colon and a space",
    "that cannot start any token": "put the value in quotes",
    "expected ',' or": "put an expression that holds quotes or commas in double quotes, or close the bracket",
}
"""Parts of the parser's messages -> remedies."""


@dataclass(slots=True)
class _Collection:
    """A collection that is being read; `key` is the key whose value comes next, None where a key comes next."""

    path: str
    is_mapping: bool
    key: str | None = None
    items: int = 0


def _parse_events(loader: YAML, text: str, source: str) -> tuple[list[Event], dict[str, int]]:
    """Return the file's events, all of them allowed, and the line of every dotted key."""
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent

    events: list[Event] = []
    lines: dict[str, int] = {}
    stack: list[_Collection] = []
    documents = 0
    for event in loader.parse(io.StringIO(text)):
        line = event.start_mark.line + 1
        events.append(event)
        documents += isinstance(event, DocumentStartEvent)
        fault = _fault(event, len(events), documents)
        if fault is not None:
            raise SpecError(source, "", None, *fault, line)
        if isinstance(event, CollectionEndEvent):
            stack.pop()
        if not isinstance(event, NodeEvent):
            continue
        path = _dotted_path(event, stack, source, line)
        lines.setdefault(path, line)
        reason = _date_fault(loader, event)
        if reason is not None:
            remedy = "write one that exists, as 2013-01-31, or quote it if it is text"
            raise SpecError(source, path, getattr(event, "value", None), f"is not a date ({reason})", remedy, line)
        if isinstance(event, CollectionStartEvent):
            stack.append(_Collection(path, "Mapping" in type(event).__name__))
            if len(stack) > DEEPEST:
                problem = f"is nested more than {DEEPEST} levels deep"
                raise SpecError(source, "", None, problem, "write fewer levels", line)
    return events, lines


def _fault(event: Event, events: int, documents: int) -> tuple[str, str] | None:
    """Return problem and remedy of an event that no query file needs; `events` and `documents` count those so far."""
    from ruamel.yaml.events import AliasEvent, DocumentStartEvent, NodeEvent

    if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
        return "uses a YAML anchor or alias", "write the value itself, in quotes if it begins with * or &"
    if isinstance(event, DocumentStartEvent) and (event.tags or event.version not in (None, (1, 2))):
        return "has a YAML directive", "remove the line that starts with %"
    if isinstance(event, NodeEvent) and getattr(event, "ctag", None):
        return "uses a YAML tag (!)", "write the plain value, in quotes if it starts with !"
    if events > MOST_EVENTS or documents > 1:
        return "holds more than one query, or too many values", "write one query per file"
    value = getattr(event, "value", None) or ""
    if any("\ud800" <= char <= "\udfff" or char == "\x00" for char in value):
        return "holds a NUL or half of a surrogate pair", "remove that character"
    return None


def _date_fault(loader: YAML, event: Event) -> str | None:
    """Return why a plain value that YAML takes for a date or time is not one; None where there is no such fault."""
    from ruamel.yaml.events import ScalarEvent
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.util import create_timestamp, timestamp_regexp

    if not isinstance(event, ScalarEvent) or event.style is not None or not event.value[:1].isdigit():
        return None
    if not str(loader.resolver.resolve(ScalarNode, event.value, event.implicit)).endswith(":timestamp"):
        return None
    try:
        create_timestamp(**timestamp_regexp.match(event.value).groupdict())
    except (ValueError, OverflowError) as error:
        return str(error).rstrip(".")
    return None


def _dotted_path(event: Event, stack: list[_Collection], source: str, line: int) -> str:
    """Return the dotted path of the key or value of an event, and advance the innermost collection."""
    if not stack:
        return ""
    inner = stack[-1]
    if not inner.is_mapping:
        inner.items += 1
        return f"{inner.path}[{inner.items - 1}]"
    if inner.key is not None:
        path = f"{inner.path}.{inner.key}" if inner.path else inner.key
        inner.key = None
        return path
    key: str | None = getattr(event, "value", None)
    if key is None or (key == "<<" and getattr(event, "style", None) is None):
        raise SpecError(source, inner.path, key, "is not a valid key", "write keys as plain words", line)
    inner.key = key
    return f"{inner.path}.{key}" if inner.path else key
