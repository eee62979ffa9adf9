"""JSON Schemas of query files and stream files, for editors that complete and check them.

They are made of the notes that the readers of these files take (:mod:`latecomer.specs.fragments`): one small file per
kind and strategy, or per source of a stream, is read, and the keys that were taken or refused become a schema. The
package ships the result as ``query.schema.json`` and ``stream.schema.json``.

A schema refuses less than a reader: it knows no expressions, and few relations between two keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from latecomer.specs.errors import SpecError
from latecomer.specs.fragments import MAPPING, Fragment, Taken, noting
from latecomer.specs.loading import KINDS, parse_mapping
from latecomer.specs.reader import Reader
from latecomer.specs.streams import SOURCES, parse_options

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES = {"query": "query.schema.json", "stream": "stream.schema.json"}
"""The kinds of files -> the names of their schemas."""
_SPECIMENS: dict[str, Fragment] = {
    "join": {"streams": {"l": "a", "r": "b"}, "window": "1 s", "quality": {"recall": 0.9, "period": "1 min"}},
    "aggregate": {"streams": {"s": "a"}, "window": {"size": "1 s"}, "select": {"n": "count()"}, "quality": {}},
    "topk": {"streams": {"s": "a"}, "window": {"size": "1 s"}, "score": "v", "k": 1, "quality": {}},
    "theta_join": {
        "streams": {"l": "a", "r": "b"},
        "window": {"size": "1 s"},
        "conditions": ["l.v < r.v"],
        "quality": {"recall": 0.9},
    },
    "membership": {
        "streams": {"l": "a", "r": "b"},
        "window": {"size": "1 s"},
        "element": "v",
        "quality": {"recall": 0.9},
    },
}
"""A query of each kind, with every mapping whose keys are to be noted."""
_EXCLUDED = [{"from": "2024-01-01", "to": "2024-01-02", "why": "a reason"}]
_SOURCES: dict[str, Fragment] = {"files": {}, "delta": {"table": "t"}, "kafka": {"topic": "t", "servers": "host:9092"}}


def text(kind: str) -> str:
    """Return the text of a schema, ``query`` or ``stream``, as the package ships it."""
    return (Path(__file__).parent / FILES[kind]).read_text(encoding="utf-8")


def generated(kind: str) -> str:
    """Return the text of a schema, made anew from the readers."""
    schema = query_schema() if kind == "query" else stream_schema()
    title = {"query": "A query of Latecomer", "stream": "A stream of Latecomer"}[kind]
    return json.dumps({"$schema": DIALECT, "title": title, **schema}, indent=1) + "\n"


def query_schema() -> Fragment:
    """Return the schema of query files: by ``kind``, that of the kind."""
    kinds = {kind: _kind_schema(kind) for kind in KINDS}
    cases = [
        {"if": MAPPING | {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": schema}
        for kind, schema in kinds.items()
    ]
    shared = {name: schema for name, schema in kinds["join"]["properties"].items() if name in ("kind", "name")}
    return {"type": "object", "properties": shared, "required": ["kind", "name"], "allOf": cases}


def stream_schema() -> Fragment:
    """Return the schema of stream files: by ``source``, the keys of the source beside those of every stream."""
    notes = {}
    for source, keys in _SOURCES.items():
        with noting() as notes[source]:
            parse_options(Reader({"source": source, **keys}, "schema"))
    schema = _merged(notes.values())
    schema["allOf"] = [
        {"if": _has("source", source, SOURCES[0]), "then": then}
        for source, taken in notes.items()
        if (then := _difference(schema, taken))
    ]
    return {"type": ["object", "null"], **{key: value for key, value in schema.items() if key != "type"}}


def keys(schema: Fragment, path: str = "") -> set[str]:
    """Return the dotted keys that a schema has, those of nested mappings too."""
    names: set[str] = set()
    for part in (schema, *schema.get("anyOf", ())):
        for name, inner in part.get("properties", {}).items():
            dotted = f"{path}.{name}" if path else name
            names |= {dotted, *keys(inner, dotted)}
    return names


def _kind_schema(kind: str) -> Fragment:
    """Return the schema of one kind, with a case for each strategy that refuses or needs further keys."""
    module = import_module(f"latecomer.specs.{kind}")
    notes: dict[str, list[Taken]] = {}
    for strategy in module.STRATEGIES:
        for slack in ({}, {"slack": "1 s"}):  # where it is needed
            specimen = _SPECIMENS[kind] | {"schedule": {}, "publish": {"when": "checked"}}
            specimen["quality"] = specimen["quality"] | {"exclude": _EXCLUDED}
            specimen |= {"kind": kind, "name": "q", "strategy": {"name": strategy, **slack}}
            with noting() as notes[strategy]:
                try:
                    parse_mapping(specimen, "schema")
                except SpecError:
                    continue
            break
    schema = _merged(notes.values())
    default = module.DEFAULT_STRATEGY
    schema["allOf"] = [
        {"if": _has_strategy(strategy, default), "then": then}
        for strategy, taken in notes.items()
        if (then := _difference(schema, taken))
    ]
    return schema


def _has(key: str, value: str, default: str) -> Fragment:
    """Return the condition that a key has a value; a file without the key has the default."""
    if value != default:
        return MAPPING | {"properties": {key: {"const": value}}, "required": [key]}
    return MAPPING | {"properties": {key: {"enum": [value, None]}}}


def _has_strategy(name: str, default: str) -> Fragment:
    inner = _has("name", name, default)
    absent = [{"type": "null"}] if name == default else []
    condition: Fragment = {"properties": {"strategy": {"anyOf": [{"const": name}, inner, *absent]}}}
    return condition if name == default else condition | {"required": ["strategy"]}


def _merged(notes: Iterable[list[Taken]]) -> Fragment:
    """Return the schema of the keys that one of the readings took or more; a key is needed if all of them need it."""
    readings = [{taken.key: taken for taken in notes_} for notes_ in map(_effective, notes)]
    taken = {key: entry for reading in readings for key, entry in reading.items() if entry.schema is not None}
    required = {key for key in taken if all(key in reading and reading[key].required for reading in readings)}
    return _object(taken, required, "")


def _effective(notes: list[Taken]) -> list[Taken]:
    """Return one note per key: refused if it ever was, else needed if it ever was."""
    by_key: dict[str, Taken] = {}
    for note in notes:
        known = by_key.get(note.key, note)
        refused = known.schema is None or note.schema is None
        schema = None if refused else known.schema
        by_key[note.key] = Taken(note.key, schema, not refused and (known.required or note.required))
    return list(by_key.values())


def _object(taken: Mapping[str, Taken], required: set[str], path: str) -> Fragment:
    """Return the schema of the mapping at a dotted path."""
    prefix = f"{path}." if path else ""
    names = [key for key in taken if key.startswith(prefix) and "." not in key[len(prefix) :]]
    properties = {}
    for key in sorted(names):
        schema = taken[key].schema
        assert schema is not None
        inner = f"{key}[0]" if any(other.startswith(f"{key}[0].") for other in taken) else key
        if any(other.startswith(f"{inner}.") for other in taken):
            schema = _filled(schema, _object(taken, required, inner))
        properties[key[len(prefix) :]] = schema if key in required else _or_null(schema)
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(key[len(prefix) :] for key in names if key in required),
        "additionalProperties": False,
    }


def _filled(schema: Fragment, mapping: Fragment) -> Fragment:
    """Return a schema with `mapping` where it says that there is one."""

    def fill(part: object) -> object:
        if part == MAPPING:
            return mapping
        if isinstance(part, dict):
            return {key: fill(value) for key, value in part.items()}
        return [fill(item) for item in part] if isinstance(part, list) else part

    filled = fill(schema)
    assert isinstance(filled, dict)
    return filled


def _or_null(schema: Fragment) -> Fragment:
    """Return the schema of a key that may also stand without a value."""
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    return schema | {"type": [schema["type"], "null"]}


def _difference(schema: Fragment, notes: list[Taken]) -> Fragment:
    """Return what one reading refuses or needs beyond the schema of all; empty if nothing."""
    case: Fragment = {}
    for note in _effective(notes):
        if "[" in note.key or (note.schema is not None and not note.required):
            continue
        *parents, name = note.key.split(".")
        known, place = schema, case
        for parent in parents:
            known = next(
                part
                for part in (known["properties"][parent], *known["properties"][parent].get("anyOf", ()))
                if "properties" in part
            )
        if name not in known["properties"] or (note.required and name in known["required"]):
            continue
        for parent in parents:
            place = place.setdefault("properties", {}).setdefault(parent, {})
        if note.schema is None:
            place.setdefault("properties", {})[name] = False
        else:
            place.setdefault("required", []).append(name)
            place |= {"type": "object"}
            given = place.setdefault("properties", {}).setdefault(name, {})
            given |= {"type": "object"} if note.schema == MAPPING else {"not": {"type": "null"}}
    return case


if __name__ == "__main__":
    for kind, name in FILES.items():
        (Path(__file__).parent / name).write_text(generated(kind), encoding="utf-8")
