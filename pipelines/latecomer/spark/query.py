"""What every stage checks before it reads a row: the streams are there, columns exist, like is compared with like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from latecomer.lake.errors import InputError
from latecomer.lake.location import Lake
from latecomer.spark import tables
from latecomer.spark.columns import quoted
from latecomer.spark.types import WHOLE, is_number
from latecomer.specs import expressions as ex
from latecomer.specs.common import SpecError
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AnySpec = TypeVar("AnySpec", bound=Spec)


def open_streams(spec: Spec, spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Stream name -> no events of it, with its columns; in the order of the query.

    Raises
    ------
    InputError
        A stream is not in the lake.
    """
    found: dict[str, DataFrame] = {}
    for _, stream in spec.streams:
        if stream in found:
            continue
        if not lake.exists("events", stream):
            known = ", ".join(lake.names("events")) or "none"
            raise InputError(
                f"query {spec.name}: streams",
                stream,
                f"is not a stream of {lake.uri}: no row of it was ever ingested",
                f"ingest some first, or use one of its streams: {known}",
            )
        found[stream] = tables.shape(spark, lake, stream)
    return found


def check_expressions(
    spec: Spec, events: dict[str, DataFrame], expressions: Iterable[tuple[str, ex.Expr, str | None]]
) -> None:
    """Check expressions against the streams' columns.

    Parameters
    ----------
    expressions
        Triples of key (for messages), expression, and the kind it must have: ``number``, ``bool``, ``plain`` (no list,
        struct or map), None for any.

    Raises
    ------
    SpecError
        With key, value and remedy.
    """
    schemas = {alias: events[stream].columns for alias, stream in spec.streams}
    kinds = {(alias, name): kind_of(kind) for alias, stream in spec.streams for name, kind in events[stream].dtypes}
    for key, expression, wanted in expressions:
        ex.check_columns(expression, schemas, source=spec.source, key=key)
        kind = ex.check_types(expression, kinds, source=spec.source, key=key)
        if wanted == "plain":
            if kind is not None and "<" in kind:
                remedy = "use a column of single values"
                raise SpecError(spec.source, key, ex.to_text(expression), f"is a {kind}, not a single value", remedy)
        elif wanted is not None and kind not in (wanted, None):
            wanted = "condition" if wanted == "bool" else wanted
            raise SpecError(
                spec.source, key, ex.to_text(expression), f"is a {kind}, not a {wanted}", f"use a {wanted} here"
            )


def calculated(spec: AnySpec, events: dict[str, DataFrame]) -> AnySpec:
    """The query as the engine is asked it: columns of few bits are calculated with as ``bigint``.

    Spark's product of two ``int`` columns is an ``int``, and null from 2^31 on, which nobody who wrote ``price * count`` means.
    """
    narrow = {
        ex.Column(alias, name)
        for alias, stream in spec.streams
        for name, kind in events[stream].dtypes
        if kind in WHOLE and kind != "bigint"
    }

    def of(value: Any) -> Any:
        if isinstance(value, ex.NODES):
            return ex.widened(value, narrow)
        if isinstance(value, tuple):
            return tuple(map(of, value))
        if is_dataclass(value) and not isinstance(value, type):
            found = {each.name: of(getattr(value, each.name)) for each in fields(value)}
            return replace(value, **found) if any(found[name] is not getattr(value, name) for name in found) else value
        return value

    return cast(AnySpec, of(spec)) if narrow else spec


def kind_of(spark_type: str) -> str:
    """``number``, ``string``, ``bool``, ``timestamp``, or the type itself."""
    if is_number(spark_type):
        return "number"
    base = spark_type.split("(")[0]
    return {"string": "string", "boolean": "bool", "timestamp": "timestamp", "timestamp_ntz": "timestamp"}.get(
        base, base
    )


def sql(expression: ex.Expr) -> str:
    """An expression over one stream's own column names."""
    return ex.to_spark_sql(expression, lambda column: quoted(column.name))
