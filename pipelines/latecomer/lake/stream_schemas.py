"""Check a query against the columns of a lake's streams, before a JVM is started."""

from __future__ import annotations

import pyarrow as pa

from latecomer.lake import ingest_log
from latecomer.lake.lake import Lake
from latecomer.specs.errors import SpecError, did_you_mean
from latecomer.specs.expressions import Kind, Nested
from latecomer.specs.spec import Spec


def check(lake: Lake, spec: Spec) -> None:
    """Check the query's streams and columns against what was ingested.

    Raises
    ------
    SpecError
        A stream or column does not exist, or values of unlike types are compared or computed with.
    """
    kinds = {}
    for stream in spec.stream_names:
        columns = ingest_log.columns(lake, stream)
        if not columns:
            raise unknown(lake, spec, stream)
        kinds[stream] = {field.name: _kind(field.type) for field in columns}
    spec.check_columns(kinds)


def unknown(lake: Lake, spec: Spec, stream: str) -> SpecError:
    """Return the error of a stream that is not in the lake."""
    alias = next(alias for alias, name in spec.streams if name == stream)
    known = ingest_log.streams(lake)
    remedy = f"ingest some first; {did_you_mean(stream, known)}" if known else "ingest some first"
    return spec.fail(
        f"streams.{alias}", stream, f"is not a stream of {lake.uri}: no row of it was ever ingested", remedy
    )


def _kind(column: pa.DataType) -> Kind:
    """Return the kind of a column's type, as ``kind_of`` of :mod:`latecomer.spark.engine.query_columns` does."""
    types = pa.types
    if types.is_struct(column):
        return Nested(str(column), {field.name: _kind(field.type) for field in column.fields})
    if types.is_map(column):
        return Nested(str(column), values=_kind(column.item_type))
    if types.is_integer(column) or types.is_floating(column) or types.is_decimal(column):
        return "number"
    if types.is_string(column) or types.is_large_string(column) or types.is_string_view(column):
        return "string"
    if types.is_boolean(column):
        return "bool"
    if types.is_timestamp(column):
        return "timestamp"
    return "date" if types.is_date(column) else "binary" if "binary" in str(column) else str(column)
