"""Look up the windows of a membership query in which one element is in every stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import event_scan, ingest_log, result_views
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake
from latecomer.specs.expressions import to_text

if TYPE_CHECKING:
    from latecomer.specs.membership import MembershipSpec


def typed(lake: Lake, spec: MembershipSpec, text: str) -> pa.Scalar:
    """Parse an element as a value of its column in the query's first stream; as text if the lake has no such column.

    Raises
    ------
    InputError
        The text is not a value of the column's type.
    """
    column = spec.elements[0]
    schema = ingest_log.columns(lake, spec.streams[0][1])
    if column.name not in schema.names:
        return pa.scalar(text)
    kind = event_scan.values_at((column.name, *column.fields), schema.empty_table()).type
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        problem = f"cannot be read as {kind}, the type of column {to_text(column)} of stream {spec.streams[0][1]}"
        raise InputError("--element", text, problem, "write it as that column has it") from None


def windows_of(lake: Lake, spec: MembershipSpec, element: pa.Scalar) -> list[str]:
    """Return the starts of the windows in which the element is in every stream, ascending, in ISO 8601."""
    rows = result_views.results(lake, spec)
    if not rows.num_rows:
        return []
    kind = rows["element"].type
    try:  # to a decimal by text: Arrow goes by the digits of the type, not of the number
        value = (pa.scalar(str(element.as_py())) if pa.types.is_decimal(kind) else element).cast(kind)
    except pa.ArrowInvalid:  # it has more digits than an element of all streams can have
        return []
    starts = rows.filter(pc.equal(rows["element"], value))["window_start"]
    return [start.isoformat() for start in starts.sort().to_pylist()]
