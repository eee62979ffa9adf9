"""What every stage checks before it reads a row: the streams are there, columns exist, like is compared with like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from latecomer.lake import stream_schemas
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.types import WHOLE, is_number
from latecomer.specs import expressions as ex
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AnySpec = TypeVar("AnySpec", bound=Spec)


def open_streams(spec: Spec, spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Stream name -> no events of it, with its columns; in the order of the query.

    Raises
    ------
    SpecError
        A stream is not in the lake.
    """
    found: dict[str, DataFrame] = {}
    for _, stream in spec.streams:
        if stream in found:
            continue
        try:
            found[stream] = tables.no_events(spark, lake, stream)
        except FileNotFoundError:
            raise stream_schemas.unknown(lake, spec, stream) from None
    return found


def check_columns(spec: Spec, events: dict[str, DataFrame]) -> None:
    """Check the query's expressions against the streams' columns; errors as for :meth:`latecomer.specs.spec.Spec.check_columns`."""
    spec.check_columns({stream: {name: kind_of(kind) for name, kind in rows.dtypes} for stream, rows in events.items()})


def calculated(spec: AnySpec, events: dict[str, DataFrame]) -> AnySpec:
    """The query as the engine is asked it: columns of few bits are calculated with as ``bigint``, times without a zone compared as UTC.

    Spark's product of two ``int`` columns is an ``int``, and null from 2^31 on, which nobody who wrote ``price * count`` means.
    """
    read_as = {kind: "bigint" for kind in WHOLE if kind != "bigint"} | {"timestamp_ntz": "timestamp"}
    kinds = {ex.Column(alias, name): kind for alias, stream in spec.streams for name, kind in events[stream].dtypes}
    casts = {column: read_as[kind] for column, kind in kinds.items() if kind in read_as}
    decimals = {column for column, kind in kinds.items() if kind.startswith("decimal")}

    def of(value: Any) -> Any:
        if isinstance(value, ex.NODES):
            return ex.widen(value, casts, decimals)
        if isinstance(value, tuple):
            return tuple(map(of, value))
        if is_dataclass(value) and not isinstance(value, type):
            found = {each.name: of(getattr(value, each.name)) for each in fields(value)}
            return replace(value, **found) if any(found[name] is not getattr(value, name) for name in found) else value
        return value

    return cast(AnySpec, of(spec)) if casts else spec


def kind_of(spark_type: str) -> str:
    """``number``, ``string``, ``bool``, ``timestamp``, or the type itself."""
    if is_number(spark_type):
        return "number"
    base = spark_type.split("(")[0]
    return {"string": "string", "boolean": "bool", "timestamp": "timestamp", "timestamp_ntz": "timestamp"}.get(
        base, base
    )


def passes(where: ex.Expr | None) -> str:
    """SQL of whether a row passes a condition over its own columns: yes or no, never null."""
    return "true" if where is None else f"coalesce({sql(where)}, false)"


def any_passes(wheres: Sequence[ex.Expr | None]) -> str:
    """SQL of whether a row passes one condition at least."""
    return "true" if None in wheres else " or ".join(dict.fromkeys(map(passes, wheres)))


def of_passing(where: ex.Expr | None, value: str) -> str:
    """SQL of a value, null where the row does not pass a condition."""
    return value if where is None else f"case when {passes(where)} then {value} end"


def sql(expression: ex.Expr) -> str:
    """An expression over one stream's own column names."""
    return ex.to_spark_sql(expression, lambda column: quoted(column.name))
