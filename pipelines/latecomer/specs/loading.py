"""From the bytes of a query file to its spec: YAML 1.2, read safely, bounded in size and depth."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import Any

from latecomer.specs.common import NAME, Reader, SpecError, did_you_mean

KINDS = ("join", "aggregate", "topk", "theta_join", "membership")
LARGEST_BYTES = 64 * 1024
DEEPEST = 12
MOST_NODES = 10_000


def load_query(path: str | Path) -> Any:
    """The spec of a query file.

    Raises
    ------
    SpecError
        Whatever is wrong with the file: one line with file, key, value and remedy.
    """
    source = str(path)
    try:
        with open(path, "rb") as handle:
            raw = handle.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(source, "", None, f"cannot be read ({reason})", "name a query file") from None
    if len(raw) > LARGEST_BYTES:
        raise SpecError(
            source, "", None, f"is larger than {LARGEST_BYTES} bytes", "a query file is short: is this one?"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(source, "", None, f"is not UTF-8 (byte {error.start})", "save it as UTF-8") from None
    return parse_query(text, source)


def parse_query(text: str, source: str = "<string>") -> Any:
    """The spec in a query file's text; errors as for `load_query`."""
    data = _yaml(text, source)
    if data is None:
        raise SpecError(source, "", None, "is empty", "start from one of `latecomer init`'s files")
    reader = Reader(data, source)
    kind = reader.take("kind")
    if kind not in KINDS:
        raise reader.fail("kind", kind, f"is not one of {', '.join(KINDS)}", did_you_mean(str(kind), KINDS))
    name = reader.text("name")
    if not NAME.fullmatch(name):
        raise reader.fail("name", name, "is not a query name", "use a-z, 0-9 and _, a letter first, at most 63")
    return import_module(f"latecomer.specs.{kind}").parse(reader, name)


def _yaml(text: str, source: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="safe", pure=True)
    loader.version = (1, 2)  # type: ignore[assignment]
    loader.allow_duplicate_keys = False
    try:
        _bounded(loader, text, source)
        data = loader.load(io.StringIO(text))
    except SpecError:
        raise
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        problem = (error.problem or "cannot be read").splitlines()[0]
        raise SpecError(f"{source}:{line}", "", None, f"is not valid YAML: {problem}", "mend that line") from None
    except (
        YAMLError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        problem = (str(error).splitlines() or ["cannot be read"])[0]
        raise SpecError(source, "", None, f"is not valid YAML: {problem[:200]}", "mend the file") from None
    return data


def _bounded(loader: Any, text: str, source: str) -> None:
    """Refuse anchors (a short file can stand for a huge one), depth, many nodes and more than one document."""
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent, NodeEvent

    depth = nodes = documents = 0
    for event in loader.parse(io.StringIO(text)):
        line = f"{source}:{event.start_mark.line + 1}"
        nodes += isinstance(event, NodeEvent)
        documents += isinstance(event, DocumentStartEvent)
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise SpecError(line, "", None, "uses an anchor or alias", "write the value out")
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise SpecError(line, "", None, f"is nested deeper than {DEEPEST}", "a query file is flat")
        if nodes > MOST_NODES or documents > 1:
            raise SpecError(line, "", None, "holds more than one query or too many values", "one query a file")
