"""Stream files: the contract of a stream, stated once for everyone who ingests it.

``<folder>/clicks.yaml`` is the file of stream ``clicks``. ``<folder>/_by_type.yaml`` is that of landing files whose
column ``type`` names each row's stream. A key says where the rows come from, how they are read, which types their
columns have, which times are believed, or which rows are one event. What breaks the contract goes to quarantine with a
reason. Without a stream file the command's options hold.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from latecomer.specs.column_types import ColumnTypeError, normal_type
from latecomer.specs.errors import SpecError
from latecomer.specs.fragments import MAPPING, TEXT, TEXTS, any_of
from latecomer.specs.loading import load_mapping, parse_mapping_text
from latecomer.specs.names import BY_COLUMN, STREAM, STREAM_REMEDY, duplicates
from latecomer.specs.reader import Reader

SOURCES = ("files", "delta", "kafka")
FORMATS = ("csv", "parquet", "json")
TIME_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""Units of numbers in the two time columns, which count since 1970 -> their lengths in microseconds."""
ON_DUPLICATE = ("first", "quarantine")
ON_CHANGE = ("refuse", "insert_only", "skip")
KAFKA_VALUES = ("json", "avro")
RESET = ("refuse", "earliest")
_SUFFIXES = (".yaml", ".yml")
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".filepart", "._copying_")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"([A-Z_]+://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_KINDS_OF_SOURCE = {
    "delta": ("table", "on_change"),
    "kafka": ("topic", "servers", "value", "schema", "max_offsets_per_call", "on_gap", "connection"),
}


@dataclass(frozen=True)
class TextLayout:
    """How text files are written. The defaults are CSV as RFC 4180 has it, and JSON with one object a line.

    Attributes
    ----------
    separator
        The character between the fields of CSV.
    quote
        The character around fields of CSV that hold separators or line breaks; empty: fields are never quoted.
    decimal_comma
        Whether a comma stands before the fraction of a number (``1,5``). The point is then no part of a number.
    encoding
        The encoding of the text, by a name that Python knows; a byte order mark takes precedence.
    null_values
        Texts that mean "no value", beside the empty field.
    skip_rows
        Lines above the header of CSV.
    records
        Where the array of records is in a JSON document, as a dotted path (``data.records``); empty: the document is
        the array; None: the file holds one object a line.
    """

    separator: str = ","
    quote: str = '"'
    decimal_comma: bool = False
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    skip_rows: int = 0
    records: str | None = None


@dataclass(frozen=True)
class DeltaTableSource:
    """A Delta table whose appended rows are a stream.

    Attributes
    ----------
    table
        A folder, ``s3://BUCKET/KEY``, or the name of a table in Spark's catalog.
    on_change
        What a version does that changes or deletes rows: ``refuse`` the ingestion, take its inserted rows alone
        (``insert_only``, by the change data feed), or ``skip`` the version.
    """

    table: str
    on_change: str = "refuse"


@dataclass(frozen=True)
class KafkaTopicSource:
    """A Kafka topic whose records are a stream.

    Attributes
    ----------
    topic
        Name of the topic.
    servers
        ``HOST:PORT``, separated by commas.
    value
        How values are written: ``json`` or ``avro``.
    schema
        Path of the Avro schema (``.avsc``); the stream file has it relative to its own folder.
    max_offsets_per_call
        Most records that one call reads; None: all there are.
    on_gap
        What happens if the topic no longer holds the next records: ``refuse`` the ingestion, or go on at the
        ``earliest`` record that it holds. Either way the gap is reported.
    connection
        The Airflow connection whose login the tasks of DAGs use; None: that of the environment, as commands always do.
    """

    topic: str
    servers: str
    value: str = "json"
    schema: str | None = None
    max_offsets_per_call: int | None = None
    on_gap: str = "refuse"
    connection: str | None = None


StreamSource = DeltaTableSource | KafkaTopicSource
"""Where the rows of a stream come from, other than files."""


def is_zone(name: str) -> bool:
    """Return whether a name is a time zone that the JVM knows too."""
    return name in _zones()


@cache
def _zones() -> frozenset[str]:
    from zoneinfo import available_timezones

    return frozenset(available_timezones() - {"localtime", "Factory"})


def is_unfinished(name: str) -> bool:
    """Return whether the name of a landing file says that it is still written.

    >>> [is_unfinished(name) for name in ("a.csv", "a.csv.part", "a.csv._COPYING_")]
    [False, True, True]
    """
    return name.lower().endswith(_UNFINISHED)


def stream_file(folder: Path, name: str) -> Path | None:
    """Return the stream file of a stream, or of ``_by_<column>``; None where there is none."""
    return next((path for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)


def stream_files(folder: Path) -> list[Path]:
    """Return all stream files of a folder, sorted."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if path.suffix in _SUFFIXES and path.is_file())


def load_stream(path: Path) -> dict[str, Any]:
    """Read a stream file.

    Returns
    -------
    dict
        The stated options, by their names in :class:`latecomer.ingest.options.IngestOptions`; durations in
        microseconds, paths as they are written.

    Raises
    ------
    SpecError
        For any fault of the file or its name: one line with file, key, value, problem and remedy.
    """
    is_column = BY_COLUMN.fullmatch(path.stem) is not None
    if not is_column and not STREAM.fullmatch(path.stem):
        raise SpecError(str(path), "", path.stem, "is no name of a stream", f"{STREAM_REMEDY}; or _by_ and a column")
    if (other := stream_file(path.parent, path.stem)) != path:
        raise SpecError(str(path), "", None, f"is of the same stream as {other}", "remove one of them")
    return load_mapping(path, _parse_column_options if is_column else parse_options)


def parse_stream(name: str, text: str) -> dict[str, Any]:
    """Read the text of the stream file of a stream, or of ``_by_<column>``; values and errors as of `load_stream`.

    >>> parse_stream("views", "time_unit: ms")
    {'time_unit': 'ms'}
    """
    is_column = BY_COLUMN.fullmatch(name) is not None
    return parse_mapping_text(text, _parse_column_options if is_column else parse_options, f"{name}.yaml")


def _parse_column_options(reader: Reader) -> dict[str, Any]:
    """Read the file of a column that names streams, which only files have."""
    options = parse_options(reader)
    if "source" in options:
        problem = "is of one stream, and this file is of a column that names streams"
        raise reader.fail("source", None, problem, "name the file after its stream")
    return options


def parse_options(reader: Reader) -> dict[str, Any]:
    """Read the keys of a stream file; see `load_stream`."""
    options: dict[str, Any] = {
        "source": _parse_source(reader),
        "format": reader.optional_choice("format", FORMATS),
        **_parse_event_column(reader),
        "arrival_column": reader.text("arrival_column", None),
        "timezone": _parse_zone(reader),
        "time_unit": reader.optional_choice("time_unit", TIME_UNITS),
        "time_format": _parse_time_format(reader),
        "max_future_us": reader.duration("max_future", None),
        "max_age_us": reader.duration("max_age", None),
        "max_quarantined": reader.number("max_quarantined", None, low=0, high=1),
        "recursive": reader.flag("recursive"),
        "columns": _parse_columns(reader),
        "strict": reader.flag("strict"),
        "layout": _parse_layout(reader),
        **_parse_key(reader),
    }
    options = {key: value for key, value in options.items() if value is not None}
    if options.get("strict") and "columns" not in options:
        raise reader.fail("strict", True, "refuses columns that are not named, and none is", "name them under columns")
    if "source" in options and "format" in options:
        remedy = "remove it" if isinstance(options["source"], DeltaTableSource) else "say how values are written: value"
        raise reader.fail("format", options["format"], "is for files, and the source is none", remedy)
    reader.done()
    return options


def _parse_source(reader: Reader) -> StreamSource | None:
    kind = reader.choice("source", SOURCES, "files")
    for other, keys in _KINDS_OF_SOURCE.items():
        for key in keys:
            if other != kind:
                reader.refuse(key, f"belongs to source: {other}", f"write source: {other}, or remove it")
    if kind == "delta":
        return DeltaTableSource(reader.text("table"), reader.choice("on_change", ON_CHANGE, "refuse"))
    if kind == "kafka":
        value, schema = reader.choice("value", KAFKA_VALUES, "json"), reader.text("schema", None)
        if (value == "avro") != (schema is not None):
            problem = "is needed to read Avro" if value == "avro" else "is for value: avro"
            raise reader.fail("schema", schema, problem, "give the path of an .avsc file with value: avro")
        topic, servers = reader.text("topic"), reader.text("servers")
        if not _TOPIC.fullmatch(topic):
            raise reader.fail("topic", topic, "is no name of a topic", "use letters, digits, '_', '-' and '.'")
        if not all(_SERVER.fullmatch(server.strip()) for server in servers.split(",")):
            raise reader.fail("servers", servers, "names no broker", "write HOST:PORT, separated by commas")
        return KafkaTopicSource(
            topic,
            servers,
            value,
            schema and str(Path(reader.source).parent / schema),
            reader.whole_number("max_offsets_per_call", None, low=1, high=1 << 40),
            reader.choice("on_gap", RESET, "refuse"),
            reader.text("connection", None),
        )
    return None


def _parse_event_column(reader: Reader) -> dict[str, Any]:
    """Read one column of times, or a column of dates and one of times of day."""
    value = reader.take("event_column", None, schema=any_of(TEXT, TEXTS | {"minItems": 2, "maxItems": 2}))
    if isinstance(value, (list, tuple)):
        if len(value) != 2 or not all(isinstance(name, str) and name.strip() for name in value):
            raise reader.fail("event_column", value, "must name one column, or two", "write [DATE_COLUMN, TIME_COLUMN]")
        return {"event_column": value[0], "event_clock_column": value[1]}
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise reader.fail("event_column", value, "must be text", "write text, in quotes where YAML needs them")
    return {"event_column": value}


def _parse_zone(reader: Reader) -> str | None:
    zone = reader.text("timezone", None)
    if zone is not None and not is_zone(zone):
        raise reader.fail("timezone", zone, "is not a time zone", "write one such as Europe/Berlin")
    return zone


_FORMAT_LETTERS = "YmdHMSfzyjbBpI%"


def _parse_time_format(reader: Reader) -> str | None:
    """Read a pattern of times, of the letters of C's strptime that stand for one thing in every language."""
    pattern = reader.text("time_format", None)
    if pattern is None:
        return None
    letters = [pattern[place + 1 : place + 2] for place in _percents(pattern)]
    wrong = next((letter for letter in letters if letter not in _FORMAT_LETTERS or not letter), None)
    if wrong is not None:
        remedy = f"use %{', %'.join(_FORMAT_LETTERS[:-1])}, as in '%d.%m.%Y %H:%M:%S'"
        raise reader.fail("time_format", pattern, f"has a letter that is not known here, '%{wrong}'", remedy)
    year = {"Y", "y"} & set(letters)
    if not year or not (({"m", "b", "B"} & set(letters) and "d" in letters) or "j" in letters):
        raise reader.fail("time_format", pattern, "tells no day", "write at least %Y, %m and %d")
    if "I" in letters and "p" not in letters:
        raise reader.fail("time_format", pattern, "tells the hour of half a day", "write %H, or add %p to %I")
    return pattern


def _percents(pattern: str) -> list[int]:
    """Return the places of the signs that begin a directive."""
    places, place = [], 0
    while (place := pattern.find("%", place)) >= 0:
        places.append(place)
        place += 2
    return places


def _parse_columns(reader: Reader) -> tuple[tuple[str, str], ...] | None:
    """Read ``columns: {name: type}``; the types become Spark's names for them."""
    kinds = MAPPING | {"minProperties": 1, "additionalProperties": TEXT}
    inner = reader.optional_mapping("columns", kinds)
    if inner is None:
        return None
    columns: list[tuple[str, str]] = []
    for name, kind in inner.items():
        try:
            columns.append((name, normal_type(kind)))
        except ColumnTypeError as error:
            raise inner.fail(name, kind, error.problem, error.remedy) from None
    if not columns:
        raise reader.fail("columns", {}, "names no column", "write {name: type}, or remove it")
    twice = duplicates([name for name, _ in columns])
    if twice:
        raise inner.fail(twice[0], None, "is named more than once (case does not tell columns apart)", "remove one")
    return tuple(columns)


def _parse_layout(reader: Reader) -> TextLayout | None:
    default = TextLayout()
    layout = TextLayout(
        separator=_parse_sign(reader, "separator", default.separator),
        quote=_parse_sign(reader, "quote", default.quote, empty=True),
        decimal_comma=reader.flag("decimal_comma") or False,
        encoding=_parse_encoding(reader),
        null_values=_parse_null_values(reader),
        skip_rows=reader.whole_number("skip_rows", 0, low=0, high=1_000_000),
        records=_parse_records(reader),
    )
    if layout.separator == layout.quote:
        raise reader.fail("separator", layout.separator, "is the quote too", "choose another sign for one of them")
    return None if layout == default else layout


def _parse_sign(reader: Reader, name: str, default: str, empty: bool = False) -> str:
    value = reader.take(name, default, schema={"type": "string", "minLength": 0 if empty else 1, "maxLength": 3})
    if value == "" and empty:
        return ""
    value = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n\0" or value.isalnum():
        raise reader.fail(name, value, "must be one character, and no letter or digit", "write one such as ';' or tab")
    return value


def _parse_encoding(reader: Reader) -> str:
    name = reader.text("encoding", "utf-8")
    try:
        codec = codecs.lookup(name)
        codec.incrementaldecoder("replace").decode(b"a")  # some codecs are no encodings of text
    except (LookupError, TypeError, ValueError):
        raise reader.fail("encoding", name, "is no encoding of text", "write one such as utf-8 or latin-1") from None
    return codec.name


def _parse_null_values(reader: Reader) -> tuple[str, ...]:
    value = reader.take("null_values", None, schema={"type": "array", "items": {"type": "string"}})
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise reader.fail("null_values", value, "must be a list of texts", "write [nil, 'N/A'], numbers in quotes")
    return tuple(dict.fromkeys(text for text in value if text))  # the empty field always is


def _parse_records(reader: Reader) -> str | None:
    value = reader.take("records", None, schema={"type": "string"})
    if value is not None and not isinstance(value, str):
        raise reader.fail("records", value, "must be text", "write the path of the array, such as data.records")
    return value


def _parse_key(reader: Reader) -> dict[str, Any]:
    """Read what tells an event from another one: its key, and how far apart in event time one event may be."""
    key, within = reader.optional_texts("key") or None, reader.duration("within", None, zero=True)
    on_duplicate = reader.optional_choice("on_duplicate", ON_DUPLICATE)
    if key is None:
        for name, value in (("within", within), ("on_duplicate", on_duplicate)):
            if value is not None:
                raise reader.fail(name, value, "needs a key", "write key: [COLUMN, ...]")
    elif twice := duplicates(key):
        raise reader.fail("key", twice[0], "is named more than once", "name it once")
    return {"key": key, "within_us": within, "on_duplicate": on_duplicate}
