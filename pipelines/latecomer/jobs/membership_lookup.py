"""One element of a membership query: in which windows is it in every stream?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.lake import ingest_log, result_views
from latecomer.lake.errors import InputError
from latecomer.lake.lake import Lake

if TYPE_CHECKING:
    from latecomer.specs.membership import MembershipSpec


def typed(lake: Lake, spec: MembershipSpec, text: str) -> pa.Scalar:
    """The element as its column in the query's first stream has it; as text where that is not in the lake.

    Raises
    ------
    InputError
        No value of the column is written like that.
    """
    column = spec.elements[0].name
    schema = ingest_log.columns(lake, spec.streams[0][1])
    if column not in schema.names:
        return pa.scalar(text)
    kind = schema.field(column).type
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        problem = f"cannot be read as {kind}, the type of column {column} of stream {spec.streams[0][1]}"
        raise InputError("--element", text, problem, "write it as it stands in that column") from None


def windows_of(lake: Lake, spec: Any, element: pa.Scalar) -> list[str]:
    """Starts of the windows in which the element is in every stream, ascending, ISO 8601."""
    rows = result_views.results(lake, spec)
    if not rows.num_rows:
        return []
    kind = rows["element"].type
    try:  # to a decimal by text: Arrow asks how many digits the type has, not the number
        sought = (pa.scalar(str(element.as_py())) if pa.types.is_decimal(kind) else element).cast(kind)
    except pa.ArrowInvalid:  # more digits than elements of all streams can have
        return []
    found = rows.filter(pc.equal(rows["element"], sought))
    return [each.isoformat() for each in found["window_start"].sort().to_pylist()]
