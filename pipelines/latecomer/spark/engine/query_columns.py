"""Check a query against its streams' columns before a stage reads a row, and render its expressions for Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from latecomer.lake import stream_schemas
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.types import WHOLE
from latecomer.specs import expressions as ex
from latecomer.specs.column_types import is_number
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

AnySpec = TypeVar("AnySpec", bound=Spec)


def open_streams(spec: Spec, spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Return an empty DataFrame with the columns of each stream, by stream name, in the order of the query.

    Raises
    ------
    SpecError
        A stream is not in the lake.
    """
    events: dict[str, DataFrame] = {}
    for stream in spec.stream_names:
        try:
            events[stream] = tables.no_events(spark, lake, stream)
        except FileNotFoundError:
            raise stream_schemas.unknown(lake, spec, stream) from None
    return events


def check_columns(spec: Spec, events: dict[str, DataFrame]) -> None:
    """Check the query's expressions against the streams' columns.

    Raises
    ------
    SpecError
        As for :meth:`latecomer.specs.spec.Spec.check_columns`.
    """
    spec.check_columns(
        {stream: {field.name: kind_of(field.dataType) for field in rows.schema} for stream, rows in events.items()}
    )


def with_wide_columns(spec: AnySpec, events: dict[str, DataFrame]) -> AnySpec:
    """Return the query with casts: narrow whole numbers are calculated with as ``bigint``, times without a zone as UTC.

    Spark's product of two ``int`` columns is an ``int``, and null from 2^31 on, which ``price * count`` does not mean.
    """
    read_as = {kind: "bigint" for kind in WHOLE if kind != "bigint"} | {"timestamp_ntz": "timestamp"}
    schemas = {alias: events[stream].schema for alias, stream in spec.streams}
    columns = {column for _, expression, _ in spec.expressions() for column in ex.columns(expression)}
    kinds = {column: type_inside(schemas[column.alias], column) for column in columns}
    casts = {column: read_as[kind] for column, kind in kinds.items() if kind in read_as}
    decimals = {column for column, kind in kinds.items() if kind.startswith("decimal")}

    def widened(value: Any) -> Any:
        if isinstance(value, ex.NODES):
            return ex.widen(value, casts, decimals)
        if isinstance(value, tuple):
            return tuple(map(widened, value))
        if is_dataclass(value) and not isinstance(value, type):
            new = {field.name: widened(getattr(value, field.name)) for field in fields(value)}
            return replace(value, **new) if any(new[name] is not getattr(value, name) for name in new) else value
        return value

    return cast(AnySpec, widened(spec)) if casts else spec


def type_inside(schema: StructType, column: ex.Column) -> str:
    """Return Spark's name of the type of a column, or of the field inside one; empty where there is none."""
    from pyspark.sql import types as T

    kind: T.DataType = schema
    for name in (column.name, *column.fields):
        if isinstance(kind, T.StructType) and name in kind.names:
            kind = kind[name].dataType
        elif isinstance(kind, T.MapType):
            kind = kind.valueType
        else:
            return ""
    return kind.simpleString()


def kind_of(spark_type: DataType) -> ex.Kind:
    """Return the kind of a Spark type: ``number``, ``string``, ``bool``, ``timestamp``, or the type itself."""
    from pyspark.sql import types as T

    name = spark_type.simpleString()
    if isinstance(spark_type, T.StructType):
        return ex.Nested(name, {field.name: kind_of(field.dataType) for field in spark_type})
    if isinstance(spark_type, T.MapType):
        return ex.Nested(name, values=kind_of(spark_type.valueType))
    if is_number(name):
        return "number"
    base = name.split("(")[0]
    return {"string": "string", "boolean": "bool", "timestamp": "timestamp", "timestamp_ntz": "timestamp"}.get(
        base, base
    )


def passes(where: ex.Expr | None) -> str:
    """Return the SQL of whether a row passes a condition over its own columns: true or false, never null."""
    # the literal null has no type of its own
    return "true" if where is None else f"coalesce({sql(where)}, false)"


def any_passes(wheres: Sequence[ex.Expr | None]) -> str:
    """Return the SQL of whether a row passes at least one of the conditions."""
    return "true" if None in wheres else " or ".join(dict.fromkeys(map(passes, wheres)))


def of_passing(where: ex.Expr | None, value: str) -> str:
    """Return the SQL of a value that is null where the row does not pass a condition."""
    return value if where is None else f"case when {passes(where)} then {value} end"


def sql(expression: ex.Expr) -> str:
    """Return the SQL of an expression over the column names of one stream."""
    return ex.to_spark_sql(expression, lambda column: quoted(column.name))
