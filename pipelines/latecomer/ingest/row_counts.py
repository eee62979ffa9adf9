"""Count the validated rows of a call by stream and part: in the driver where they are few, else in Spark.

Both ways count the same; Spark's own aggregation would take most of the time of a small call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.core.time import LATENESS_BOUNDS_US
from latecomer.ingest.arrow_rows import one_chunk
from latecomer.ingest.order_ranges import Bounds, range_of
from latecomer.spark.engine.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_CLASSES = len(LATENESS_BOUNDS_US) + 1


@dataclass(frozen=True)
class PartCounts:
    """The rows of a stream in one part of a call.

    Attributes
    ----------
    read, rows, duplicates, quarantined
        Numbers of all rows, of rows to store, of rows that repeat an event, and of rows for quarantine.
    first, last, arrived_from, arrived_to
        Least and largest event time and arrival time of rows to store, us; None without any.
    lateness
        Numbers of rows to store by their lateness, in the classes of :data:`latecomer.core.time.LATENESS_BOUNDS_US`.
    """

    stream: str
    part: int
    read: int
    rows: int
    duplicates: int
    quarantined: int
    first: int | None
    last: int | None
    arrived_from: int | None
    arrived_to: int | None
    lateness: list[int]


def count_in_spark(rows: DataFrame, bounds: Bounds = ()) -> tuple[list[PartCounts], dict[int, int]]:
    """Count rows of :func:`latecomer.ingest.validate.validated` with ``_repeated``.

    Returns
    -------
    parts
        The counts by stream and part.
    sizes
        Numbers of rows to store by the number of their range in the arrival order, which `bounds` tell.
    """
    from pyspark.sql import functions as F

    lateness = "unix_micros(arrival_ts) - unix_micros(event_ts)"
    classes = " ".join(f"when {lateness} < {bound}L then {place}" for place, bound in enumerate(LATENESS_BOUNDS_US))
    late_class = f"case when {lateness} is null then {_CLASSES} {classes} else {_CLASSES - 1} end"
    state = f"case when _problem is not null then {_UNUSABLE} when _repeated then {_REPEATED} else {late_class} end"
    groups = rows.groupBy("_stream", "_file", F.expr(state).alias("state"), range_of(rows, bounds).alias("range"))
    sums = groups.agg(
        F.count("*").alias("rows"),
        *(
            F.expr(f"{function}(unix_micros({time}))").alias(name)
            for function, time, name in (
                ("min", "event_ts", "first"), ("max", "event_ts", "last"), ("min", "arrival_ts", "arrived_from"),
                ("max", "arrival_ts", "arrived_to"),
            )
        ),
    )  # fmt: skip
    sizes: Counter[int] = Counter()
    by_part: dict[tuple[str, int], list[Row]] = {}
    for row in sums.collect():
        by_part.setdefault((row["_stream"], row["_file"]), []).append(row)
        sizes[row["range"]] += row["rows"] if row["state"] >= 0 else 0
    return [_sum_of_states(*part, states) for part, states in by_part.items()], dict(sizes)


_UNUSABLE, _REPEATED = -2, -1
"""States of rows that are not stored; those of other rows are the classes of their lateness."""


def _sum_of_states(stream: str, part: int, states: list[Row]) -> PartCounts:
    """Add the counts of the rows of a part that have different states."""

    def number(first: int, last: int) -> int:
        return sum(row["rows"] for row in states if first <= row["state"] <= last)

    stored = [row for row in states if row["state"] >= 0]
    values: dict[str, int | None] = {
        "read": number(_UNUSABLE, _CLASSES),
        "rows": number(0, _CLASSES),
        "duplicates": number(_REPEATED, _REPEATED),
        "quarantined": number(_UNUSABLE, _UNUSABLE),
    }
    for name, least_or_largest in (("first", min), ("last", max), ("arrived_from", min), ("arrived_to", max)):
        values[name] = least_or_largest((row[name] for row in stored if row[name] is not None), default=None)
    return _part_counts(stream, part, values, [number(place, place) for place in range(_CLASSES)])


def _part_counts(stream: str, part: int, values: Mapping[str, int | None], lateness: list[int]) -> PartCounts:
    return PartCounts(
        stream=stream,
        part=part,
        read=values["read"] or 0,
        rows=values["rows"] or 0,
        duplicates=values["duplicates"] or 0,
        quarantined=values["quarantined"] or 0,
        first=values["first"],
        last=values["last"],
        arrived_from=values["arrived_from"],
        arrived_to=values["arrived_to"],
        lateness=lateness,
    )


def count_in_driver(rows: pa.Table) -> list[PartCounts]:
    """Count the same rows, collected."""
    group = one_chunk(rows, "_stream").dictionary_encode()
    part = one_chunk(rows, "_file").to_numpy(zero_copy_only=False).astype(np.int64)
    code = group.indices.to_numpy(zero_copy_only=False).astype(np.int64) + len(group.dictionary) * part
    unusable = rows["_problem"].is_valid().to_numpy()
    repeated = rows["_repeated"].to_numpy().astype(bool)
    event, has_event = _times(rows, "event_ts")
    arrival, has_arrival = _times(rows, "arrival_ts")
    stored = ~unusable & ~repeated
    late_class = np.searchsorted(np.array(LATENESS_BOUNDS_US, np.int64), arrival - event, side="right")
    counts = []
    for value in np.unique(code).tolist():
        here = code == value
        held = here & stored
        both = held & has_event & has_arrival
        number, stream = divmod(value, len(group.dictionary))
        values = {
            "read": int(here.sum()),
            "rows": int(held.sum()),
            "duplicates": int((here & repeated & ~unusable).sum()),
            "quarantined": int((here & unusable).sum()),
            **_bounds("first", "last", event[held & has_event]),
            **_bounds("arrived_from", "arrived_to", arrival[held & has_arrival]),
        }
        lateness = np.bincount(late_class[both], minlength=_CLASSES).tolist()
        counts.append(_part_counts(group.dictionary[stream].as_py(), number, values, lateness))
    return counts


def _times(rows: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a time column in us, 0 where it is null, and where it is not."""
    column = rows[name]
    us = pc.fill_null(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 0).to_numpy()
    return us, column.is_valid().to_numpy()


def _bounds(low: str, high: str, times: np.ndarray) -> dict[str, int | None]:
    return {low: int(times.min()), high: int(times.max())} if len(times) else {low: None, high: None}


def text_bytes(rows: DataFrame | pa.Table) -> int:
    """Return the bytes of text and binary values."""
    from pyspark.sql import functions as F

    if isinstance(rows, pa.Table):
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
        texts = [rows[item.name] for item in rows.schema if any(is_kind(item.type) for is_kind in kinds)]
        return sum(pc.sum(pc.binary_length(text)).as_py() or 0 for text in texts)
    names = [quoted(name) for name, kind in rows.dtypes if kind in ("string", "binary")]
    sizes = [F.expr(f"coalesce(sum(octet_length({name})), 0L)") for name in names]
    return sum(rows.agg(*sizes).collect()[0]) if sizes else 0


def reasons_in_spark(rows: DataFrame) -> dict[str, dict[str, int]]:
    """Count rows for quarantine by stream and reason, without the values; the most frequent reason first."""
    from pyspark.sql import functions as F

    reason = F.substring_index("_problem", ": ", 1).alias("reason")
    counts = rows.where(F.col("_problem").isNotNull()).groupBy("_stream", reason).count().collect()
    return _by_stream([(row["_stream"], row["reason"], row["count"]) for row in counts])


def reasons_in_driver(rows: pa.Table) -> dict[str, dict[str, int]]:
    """Count the same rows, collected."""
    rows = rows.select(["_stream", "_problem"]).filter(rows["_problem"].is_valid())
    reason = pc.list_element(pc.split_pattern(rows["_problem"].combine_chunks(), ": ", max_splits=1), 0)
    counts = (
        pa.table({"stream": rows["_stream"], "reason": reason})
        .group_by(["stream", "reason"])
        .aggregate([([], "count_all")])
    )
    return _by_stream([(row["stream"], row["reason"], row["count_all"]) for row in counts.to_pylist()])


def _by_stream(counts: list[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    by_stream: dict[str, dict[str, int]] = {}
    for stream, reason, count in sorted(counts, key=lambda item: (item[0], -item[2], item[1])):
        by_stream.setdefault(stream, {})[reason] = count
    return by_stream
