"""Convert texts to a type, exactly: a text that says more than the type holds does not fit it.

Blanks around a value are no part of it. A whole number may be written with a point or an exponent where its value is
whole (``9.0``, ``1e3``); a decimal may have more zeros at its end than its type. Digits in groups, hexadecimal digits
and underscores are no numbers. A floating-point number is the nearest to the text, and infinite or zero only where the
text is. A date may have a time of day if that is 00:00. A number is no time: only the two time columns of a stream have
a unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.ingest.values import text_kernels
from latecomer.ingest.values.arrow_types import arrow_type
from latecomer.ingest.values.times import parse_times

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_POWERS: dict[str, NDArray[Any]] = {
    "double": np.array([float(f"1e{power}") for power in range(23)], np.float64),
    "float": np.array([float(f"1e{power}") for power in range(11)], np.float32),
}
"""The powers of ten that a type holds exactly."""
_EXACT = {"double": 1 << 53, "float": 1 << 24}
"""The greatest whole number below which a type holds them all."""
_DATED = r"^\s*[0-9]{4}-"
"""A text that begins with a year: a number counts a unit that a column's type does not tell."""


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
        Of :func:`latecomer.ingest.values.arrow_types.arrow_type`; null where the text is null or does not fit.
    fits : bool[n]
        Whether the text is null or fits.
    """
    text, target = _strings(text), arrow_type(kind)
    if kind in ("string", "binary"):
        return text.cast(target), np.ones(len(text), np.bool_)
    if kind in ("timestamp", "timestamp_ntz"):
        times = parse_times(text, zone)
        dated = pc.fill_null(pc.match_substring_regex(text, _DATED), False).to_numpy(zero_copy_only=False)
        valid = times.valid & dated
        return pa.array(times.us, pa.int64(), mask=~valid).cast(target), valid | _nulls(text)
    if pa.types.is_decimal(target):
        return _decimals(text, target.precision, target.scale, _point(decimal_comma))
    if kind in _POWERS:
        return _floating(text, kind, decimal_comma)
    fits = np.zeros(len(text), np.bool_)
    if kind in _WHOLE:
        whole = np.zeros(len(text), np.int64)
        most = (1 << (target.bit_width - 1)) - 1
        text_kernels.read_whole(*text_kernels.buffers(text), _point(decimal_comma), most, whole, fits)
        return _masked(text, pa.array(whole.astype(target.to_pandas_dtype()), mask=~fits), fits)
    if kind == "date":
        days = np.zeros(len(text), np.int32)
        text_kernels.read_date(*text_kernels.buffers(text), days, fits)
        return _masked(text, pa.array(days, mask=~fits).cast(target), fits)
    if kind == "boolean":
        truth = np.zeros(len(text), np.bool_)
        text_kernels.read_boolean(*text_kernels.buffers(text), truth, fits)
        return _masked(text, pa.array(truth, mask=~fits), fits)
    return pa.nulls(len(text), target), _nulls(text)


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
        nearest = rest.cast(arrow_type(kind)).to_numpy(zero_copy_only=False)
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
