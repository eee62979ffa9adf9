"""From the bytes of a query file to its spec: YAML 1.2, read safely, bounded in size and depth.

Refused besides what is no YAML: repeated keys, anchors and aliases (a short file can stand for a huge one), merge keys, tags
(they construct things), keys that are no text, other YAML versions and more than one document.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from latecomer.specs.errors import SpecError, did_you_mean
from latecomer.specs.expressions.yaml_calls import quote_calls
from latecomer.specs.names import NAME
from latecomer.specs.reader import Reader
from latecomer.specs.spec import Spec

KINDS = ("join", "aggregate", "topk", "theta_join", "membership")
LARGEST_BYTES = 64 * 1024
DEEPEST = 12
MOST_NODES = 10_000


def load_query(path: str | Path) -> Spec:
    """The spec of a query file.

    Raises
    ------
    SpecError
        Whatever is wrong with the file: one line with file, key, value and remedy. Nothing else, for any bytes.
    """
    return parse_query(_text(path, "a query file"), str(path))


def parse_query(text: str, source: str = "<string>") -> Spec:
    """The spec in a query file's text; errors as for `load_query`."""
    if len(text) > LARGEST_BYTES:
        raise _too_large(source)
    data, lines = _read(text, source)
    try:
        return replace(_spec(data, source), lines=lines)
    except SpecError as error:
        raise error.located(lines) from None


def load_mapping(path: Path, make: Callable[[Reader], dict[str, Any]]) -> dict[str, Any]:
    """What `make` makes of another file's keys; of one that holds none, or only comments, too. Errors as for `load_query`."""
    data, lines = _read(_text(path, "a file of keys and values"), str(path))
    try:
        return make(Reader({} if data is None else data, str(path)))
    except SpecError as error:
        raise error.located(lines) from None


def _text(path: str | Path, what: str) -> str:
    """A file's text."""
    source = str(path)
    try:
        with open(path, "rb") as handle:
            raw = handle.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(source, "", None, f"cannot be read ({reason})", f"give the path of {what}") from None
    if len(raw) > LARGEST_BYTES:
        raise _too_large(source, what)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(source, "", None, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None


def _too_large(source: str, what: str = "a query file") -> SpecError:
    return SpecError(source, "", None, f"is larger than {LARGEST_BYTES} bytes", f"is this {what}?")


def _spec(data: Any, source: str) -> Spec:
    if data is None:
        raise SpecError(source, "", None, "is empty", "start from a file that `latecomer init` writes")
    reader = Reader(data, source)
    kind = reader.take("kind")
    if kind not in KINDS:
        raise reader.fail("kind", kind, "is not a query kind", did_you_mean(str(kind), KINDS))
    name = reader.text("name")
    if not NAME.fullmatch(name):
        raise reader.fail(
            "name", name, "is not a query name", "use a-z, 0-9 and _, a letter first, at most 63 characters"
        )
    return import_module(f"latecomer.specs.{kind}").parse(reader, name)


def _read(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """The file's values, and the line of every dotted key."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    loader = YAML(typ="safe", pure=True)
    loader.version = (1, 2)  # type: ignore[assignment]
    loader.allow_duplicate_keys = False
    try:
        events, lines = _bounded(loader, text, source)
        quoted = quote_calls(text, events)
        if quoted != text:
            _, lines = _bounded(loader, quoted, source)
        return loader.load(io.StringIO(quoted)), lines
    except SpecError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or "cannot be read").split())
        remedy = next((remedy for piece, remedy in _MENDED.items() if piece in problem), "correct that line")
        if "expected ':'" in problem:  # it was missed where the key began, and found out later
            mark = error.context_mark or mark
        line = None if mark is None else mark.line + 1
        raise SpecError(source, "", None, f"is not valid YAML: {problem}", remedy, line) from None
    except Exception as error:  # whatever a foreign parser makes of arbitrary bytes is the file's fault
        problem = (str(error).splitlines() or ["cannot be read"])[0]
        raise SpecError(source, "", None, f"is not valid YAML: {problem}", "correct the file") from None


_MENDED = {
    "could not find expected ':'": "write `key: value`, with a colon and a space",
    "that cannot start any token": "put the value in quotes",
    "expected ',' or": "put an expression that holds quotes or commas in double quotes, or close the bracket",
}
"""What to do about the parser's problems, by what they say."""


@dataclass(slots=True)
class _Open:
    """A collection that is being read; `key` is the key whose value comes next, None: a key comes next."""

    path: str
    mapping: bool
    key: str | None = None
    place: int = 0


def _bounded(loader: Any, text: str, source: str) -> tuple[list[Any], dict[str, int]]:
    """The file's events, none of them refused, and the line of every dotted key."""
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent

    events: list[Any] = []
    lines: dict[str, int] = {}
    stack: list[_Open] = []
    documents = 0
    for event in loader.parse(io.StringIO(text)):
        line = event.start_mark.line + 1
        events.append(event)
        documents += isinstance(event, DocumentStartEvent)
        refused = _refused(event, len(events), documents)
        if refused:
            raise SpecError(source, "", None, *refused, line)
        if isinstance(event, CollectionEndEvent):
            stack.pop()
        if not isinstance(event, NodeEvent):
            continue
        path = _place(event, stack, source, line)
        lines.setdefault(path, line)
        wrong = _no_date(loader, event)
        if wrong is not None:
            remedy = "write one that exists, as 2013-01-31, or quote it if it is text"
            raise SpecError(source, path, getattr(event, "value", None), f"is not a date ({wrong})", remedy, line)
        if isinstance(event, CollectionStartEvent):
            stack.append(_Open(path, "Mapping" in type(event).__name__))
            if len(stack) > DEEPEST:
                raise SpecError(
                    source, "", None, f"is nested more than {DEEPEST} levels deep", "write fewer levels", line
                )
    return events, lines


def _refused(event: Any, count: int, documents: int) -> tuple[str, str] | None:
    """Problem and remedy of an event that no query file needs."""
    from ruamel.yaml.events import AliasEvent, DocumentStartEvent, NodeEvent

    if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
        return "uses a YAML anchor or alias", "write the value itself, in quotes if it begins with * or &"
    if isinstance(event, DocumentStartEvent) and (event.tags or event.version not in (None, (1, 2))):
        return "has a YAML directive", "remove the line that starts with %"
    if isinstance(event, NodeEvent) and getattr(event, "ctag", None):
        return "uses a YAML tag (!)", "write the plain value, in quotes if it starts with !"
    if count > MOST_NODES or documents > 1:
        return "holds more than one query, or too many values", "write one query per file"
    value = getattr(event, "value", None) or ""
    if any("\ud800" <= char <= "\udfff" or char == "\x00" for char in value):
        return "holds a NUL or half of a surrogate pair", "remove that character"
    return None


def _no_date(loader: Any, event: Any) -> str | None:
    """Why a plain value that YAML takes for a date or time is none; None: it is one, or something else."""
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


def _place(event: Any, stack: list[_Open], source: str, line: int) -> str:
    """Dotted path of the key or value an event stands for."""
    if not stack:
        return ""
    inner = stack[-1]
    if not inner.mapping:
        inner.place += 1
        return f"{inner.path}[{inner.place - 1}]"
    if inner.key is not None:
        path = f"{inner.path}.{inner.key}" if inner.path else inner.key
        inner.key = None
        return path
    key = getattr(event, "value", None)
    if key is None or (key == "<<" and event.style is None):
        raise SpecError(source, inner.path, key, "is not a valid key", "write keys as plain words", line)
    inner.key = key
    return f"{inner.path}.{key}" if inner.path else key
