"""Sentences about what an ingestion assumed where nothing was stated, each with what to state instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from latecomer.ingest.options import IngestOptions
from latecomer.specs.durations import UNITS_US, format_duration
from latecomer.specs.names import fold_case

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHOWN = 10
"""Most names that a sentence shows."""
_MOST_TEXTS = 1_000
"""Most rows whose event times are searched for ones without a zone."""
_MOST_NAMED = 100_000
"""Most rows whose names of streams are compared."""
_WITHOUT_ZONE = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}[0-9:.]*)?\s*$"
_FOLDER = re.compile(r"(?<=/)([A-Za-z_][A-Za-z0-9_]*)=([^/]*)(?=/)")


def several(names: Sequence[str]) -> str:
    """Return names as text, the first ones alone where they are many.

    >>> several(["a", "b"])
    'a, b'
    """
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def inferred_types(types: Mapping[str, str]) -> list[str]:
    """Return a sentence about columns whose types their values told."""
    if not types:
        return []
    shown = several([f"{name} {kind}" for name, kind in types.items()])
    return [f"types as the values tell them: {shown}; to fix a type, state it under columns in the stream file"]


def without_values(names: Sequence[str]) -> list[str]:
    """Return a sentence about columns and fields that have no type yet."""
    if not names:
        return []
    verb = "is" if len(names) == 1 else "are"
    return [
        f"{several(names)} {verb} left out, because no row has a value from which a type follows; state types under "
        "columns in the stream file to store them"
    ]


def remedy_of_text(column: str, kind: str, stream: str | None) -> str:
    """Return what to do about a column that is text because of a few values."""
    return (
        f"name marks of no value under null_values, or state a type under columns; later: latecomer ingest --retype "
        f"{stream or 'STREAM'} {column}={kind}"
    )


def bounds_of_age(ages_us: Mapping[str, int], usual_us: Mapping[str, int], max_future_us: int) -> list[str]:
    """Return sentences about the ages that were derived for streams, one for each age.

    Parameters
    ----------
    ages_us
        The bound by stream.
    usual_us
        The lateness from which it follows, by stream.
    """
    sentences = []
    for age_us in sorted(set(ages_us.values())):
        streams = sorted(stream for stream, derived in ages_us.items() if derived == age_us)
        usual = max(usual_us[stream] for stream in streams)
        why = "ten times that" if age_us == 10 * usual and len(streams) == 1 else "the least, or ten times that"
        sentences.append(
            f"{several(streams)}: 90% of the rows arrived within {_about(usual)} of their events; max_age is "
            f"{_about(age_us)}, {why}, and max_future {format_duration(max_future_us)}: events that are older at their "
            "arrival, or later than it, go to quarantine"
        )
    return sentences


def _about(duration_us: int) -> str:
    """Format a duration in the largest unit that it has twice, rounded up."""
    units = sorted(UNITS_US.items(), key=lambda item: -item[1])
    unit, size_us = next((item for item in units if duration_us >= 2 * item[1]), units[-1])
    return f"{-(-max(duration_us, 0) // size_us):,} {unit}"


def times_without_zone(given: DataFrame, event: Column, options: IngestOptions) -> list[str]:
    """Return a sentence about event times that name no zone, where none was stated.

    Parameters
    ----------
    event
        The event time as text.
    """
    if options.timezone_stated or (options.time_format is not None and "%z" in options.time_format):
        return []
    texts = given.select(event.alias("text")).limit(_MOST_TEXTS).toArrow()["text"].drop_null()
    form = ".*" if options.time_format is not None else _WITHOUT_ZONE
    local = texts.filter(pc.and_(pc.match_substring_regex(texts, form), pc.match_substring_regex(texts, "[0-9]")))
    if not len(local):
        return []
    return [
        f"event times without a zone, such as {local[0].as_py().strip()}, were read as {options.timezone}, because no "
        "zone was stated: timezone (--timezone)"
    ]


def names_in_paths(paths: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return a sentence about values that names of folders tell and no column has.

    >>> names_in_paths(["/landing/day=2024-05-01/a.csv"], ["event_ts"])[0][:67]
    'the folder day=2024-05-01 names a value that the rows do not have: '
    """
    known = {fold_case(name) for name in columns}
    first: dict[str, str] = {}
    for path in paths:
        for name, value in _FOLDER.findall(path):
            if fold_case(name) not in known:
                first.setdefault(name, f"{name}={value}")
    if not first:
        return []
    shown = several(list(first.values()))
    if len(first) == 1:
        return [f"the folder {shown} names a value that the rows do not have: it is not stored; write it in a column"]
    return [f"the folders {shown} name values that the rows do not have: they are not stored; write them in columns"]


def names_of_streams(rows: DataFrame, given: Column, stored: Column) -> dict[str, list[str]]:
    """Return how the first rows call their streams: the names in the column, in order, by the name of the stream.

    Parameters
    ----------
    given
        The name in the column, without blanks around it.
    stored
        The name of the stream.
    """
    from pyspark.sql import functions as F

    named = rows.limit(_MOST_NAMED).select(given.alias("given"), stored.alias("stored")).where("stored is not null")
    names = named.groupBy("stored").agg(F.array_sort(F.collect_set("given")).alias("names")).sort("stored")
    return {row["stored"]: row["names"] for row in names.collect()}


def joined_names(names_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return sentences about streams whose rows the column calls by several names, of :func:`names_of_streams`."""
    several_names = [(stream, names) for stream, names in names_of.items() if len(names) > 1]
    return [
        f"stream {stream} has the rows that the column calls {several([repr(name) for name in names])}"
        for stream, names in several_names[:SHOWN]
    ]
