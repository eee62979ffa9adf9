"""Classify Spark's types by their names in SQL, in one place, so that no two stages classify a column differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latecomer.specs.column_types import quoted_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

WHOLE = ("tinyint", "smallint", "int", "bigint")
"""Whole-number types, the narrowest first."""
FLOATING = ("float", "double")
WHOLE_OR_FLOATING = (*WHOLE, *FLOATING)
"""Numbers of fixed width. Decimals are compared differently and are not among them."""


def types_of(rows: DataFrame) -> dict[str, str]:
    """Return columns and their types as SQL that Spark can parse again.

    ``dtypes`` leaves names inside structs unquoted.
    """
    return {field.name: sql_of(field.dataType) for field in rows.schema}


def sql_of(kind: DataType) -> str:
    """Return a type as SQL that Spark can parse again."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        parts = (f"{quoted_field(field.name)}:{sql_of(field.dataType)}" for field in kind)
        return f"struct<{','.join(parts)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{sql_of(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{sql_of(kind.keyType)},{sql_of(kind.valueType)}>"
    return kind.simpleString()
