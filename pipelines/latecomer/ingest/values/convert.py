"""Convert texts to a type, exactly: a text that says more than the type holds does not fit it.

Blanks around a value are no part of it. A whole number may be written with a point or an exponent where its value is
whole (``9.0``, ``1e3``); a decimal may have more zeros at its end than its type. Digits in groups, hexadecimal digits
and underscores are no numbers. A floating-point number is the nearest to the text, and infinite or zero only where the
text is. A date may have a time of day if that is 00:00. A number is no time: only the two time columns of a stream have
a unit.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.ingest.values import text_kernels
from latecomer.ingest.values.times import parse_times
from latecomer.specs.column_types import element_types

TIMESTAMP = pa.timestamp("us", tz="UTC")
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
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_POWERS: dict[str, NDArray[Any]] = {
    "double": np.array([float(f"1e{power}") for power in range(23)], np.float64),
    "float": np.array([float(f"1e{power}") for power in range(11)], np.float32),
}
"""The powers of ten that a type holds exactly."""
_EXACT = {"double": 1 << 53, "float": 1 << 24}
"""The greatest whole number below which a type holds them all."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_DATED = r"^\s*[0-9]{4}-"
"""A text that begins with a year: a number counts a unit that a column's type does not tell."""


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
        return f"struct<{','.join(f'{_quoted(field.name)}:{spark_type(field.type)}' for field in kind)}>"
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


def _quoted(name: str) -> str:
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


def convert(text: pa.Array, kind: str, zone: str, decimal_comma: bool = False) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert each text to a type.

    Parameters
    ----------
    text : string[n]
        Values as they are written.
    kind
        Spark's name of a type. No text fits an array, struct or map.
    zone
        The zone of times that name none.
    decimal_comma
        Whether a comma stands before the fraction of a number.

    Returns
    -------
    values : array[n]
        Of :func:`arrow_type`; null where the text is null or does not fit.
    fits : bool[n]
        Whether the text is null or fits.
    """
    text = _strings(text)
    if kind in ("string", "binary"):
        return text.cast(_SIMPLE[kind]), np.ones(len(text), np.bool_)
    if kind in ("timestamp", "timestamp_ntz"):
        times = parse_times(text, zone)
        dated = pc.fill_null(pc.match_substring_regex(text, _DATED), False).to_numpy(zero_copy_only=False)
        valid = times.valid & dated
        return pa.array(times.us, pa.int64(), mask=~valid).cast(_SIMPLE[kind]), valid | _nulls(text)
    digits = _DECIMAL.fullmatch(kind)
    if digits is not None:
        return _decimals(text, int(digits[1]), int(digits[2]), _point(decimal_comma))
    if kind in _POWERS:
        return _floating(text, kind, decimal_comma)
    fits = np.zeros(len(text), np.bool_)
    if kind in _WHOLE:
        whole = np.zeros(len(text), np.int64)
        target = _SIMPLE[kind]
        most = (1 << (target.bit_width - 1)) - 1
        text_kernels.read_whole(*text_kernels.buffers(text), _point(decimal_comma), most, whole, fits)
        return _masked(text, pa.array(whole.astype(target.to_pandas_dtype()), mask=~fits), fits)
    if kind == "date":
        days = np.zeros(len(text), np.int32)
        text_kernels.read_date(*text_kernels.buffers(text), days, fits)
        return _masked(text, pa.array(days, mask=~fits).cast(pa.date32()), fits)
    if kind == "boolean":
        truth = np.zeros(len(text), np.bool_)
        text_kernels.read_boolean(*text_kernels.buffers(text), truth, fits)
        return _masked(text, pa.array(truth, mask=~fits), fits)
    return pa.nulls(len(text), arrow_type(kind)), _nulls(text)


def _strings(text: pa.Array) -> pa.Array:
    """Return texts as one array of strings, which a pass can read."""
    if isinstance(text, pa.ChunkedArray):
        text = text.combine_chunks()
    kind = text.type
    return text if pa.types.is_string(kind) or pa.types.is_large_string(kind) else text.cast(pa.string())


def _point(decimal_comma: bool) -> int:
    return ord("," if decimal_comma else ".")


def _nulls(text: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(text).to_numpy(zero_copy_only=False))


def _masked(text: pa.Array, values: pa.Array, fits: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return values with whether a text fits, where `fits` is false for nulls."""
    return values, fits | _nulls(text) if text.null_count else fits


def _floating(text: pa.Array, kind: str, decimal_comma: bool) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert to the nearest float or double: where one operation does not give it, by Arrow's exact parser."""
    powers = _POWERS[kind]
    values = np.zeros(len(text), powers.dtype)
    fits, left = np.zeros(len(text), np.bool_), np.zeros(len(text), np.bool_)
    parts = text_kernels.buffers(text)
    text_kernels.read_floating(*parts, _point(decimal_comma), powers, _EXACT[kind], values, fits, left)
    if left.any():
        rest = pc.ascii_trim_whitespace(text.filter(pa.array(left)))
        rest = pc.replace_substring(rest, ",", ".") if decimal_comma else rest
        nearest = rest.cast(_SIMPLE[kind]).to_numpy(zero_copy_only=False)
        values[left] = nearest
        fits[left] = np.isfinite(nearest) & (nearest != 0)
    return _masked(text, pa.array(values, mask=~fits), fits)


def _decimals(text: pa.Array, precision: int, scale: int, point: int) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert to decimals, from the digits to 128-bit integers."""
    halves, fits = np.zeros((len(text), 2), np.uint64), np.zeros(len(text), np.bool_)
    text_kernels.read_decimal(*text_kernels.buffers(text), point, precision, scale, halves, fits)
    bitmap = None if fits.all() else pa.array(fits).buffers()[1]
    kind = pa.decimal128(precision, scale)
    return _masked(text, pa.Array.from_buffers(kind, len(text), [bitmap, pa.py_buffer(halves)]), fits)
