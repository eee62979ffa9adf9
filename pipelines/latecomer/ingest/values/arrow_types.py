"""Arrow's types and Spark's names for them, of the columns that tables have."""

from __future__ import annotations

import re

import pyarrow as pa

from latecomer.specs.column_types import element_types, quoted_field

_SIMPLE = {
    "string": pa.string(),
    "binary": pa.binary(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a Spark type, named in SQL. Times are microseconds, UTC.

    >>> arrow_type("array<struct<id:bigint,tags:map<string,decimal(5,2)>>>")
    ListType(list<element: struct<id: int64, tags: map<string, decimal128(5, 2)>>>)

    Raises
    ------
    ValueError
        There is no such type.
    """
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    digits = _DECIMAL.fullmatch(kind)
    if digits is not None:
        return pa.decimal128(int(digits[1]), int(digits[2]))
    inner = element_types(kind)
    if inner is None:
        raise ValueError(f"no such type: {kind}")
    word, parts = inner
    if word == "array":
        return pa.list_(pa.field("element", arrow_type(parts[0][1])))
    if word == "map":
        return pa.map_(arrow_type(parts[0][1]), arrow_type(parts[1][1]))
    return pa.struct([pa.field(name, arrow_type(part)) for name, part in parts])


def spark_type(kind: pa.DataType) -> str:
    """Return Spark's name of an Arrow type that a table has; see :func:`arrow_type`.

    Raises
    ------
    ValueError
        Tables have no such type.
    """
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{quoted_field(field.name)}:{spark_type(field.type)}' for field in kind)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    name = next((name for name, simple in _SIMPLE.items() if simple.equals(kind)), None)
    if name is None:
        raise ValueError(f"no such type in tables: {kind}")
    return name
