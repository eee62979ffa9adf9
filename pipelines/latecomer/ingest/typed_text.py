"""Give staged rows of CSV their types in the process that parsed them, so that Spark hands no text to Python.

The rows are staged as text with their times (:mod:`latecomer.ingest.read_text`). Spark judges their times, and hands
over the rows that cannot be used. The texts of the others are counted here, and once the types of the columns follow,
all rows are staged a second time, with types.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from latecomer.ingest.arrow_rows import one_chunk
from latecomer.ingest.event_times import ARRIVAL, EVENT, LATER
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.read_text import StagedPart
from latecomer.ingest.staging import Staging
from latecomer.ingest.validate import convert_columns
from latecomer.ingest.values.inference import TextProfile, merge, profile
from latecomer.spark.engine.session import usable_cores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Result = TypeVar("_Result")
_COMMON = ("_file", "_row", "_line", "_raw", "_problem", EVENT, ARRIVAL)
_FILE_BITS = 40
"""A row's place has its number in this many bits, and above them the number of its file."""


@dataclass(frozen=True)
class UnusableRows:
    """The rows that cannot be used, sorted by their places, with their problems."""

    places: NDArray[np.int64]
    problems: pa.Array

    @classmethod
    def of(cls, rows: pa.Table) -> UnusableRows:
        """Return rows with the columns ``_file``, ``_row`` and ``_problem``."""
        places = _places(rows)
        order = np.argsort(places)
        return cls(places[order], one_chunk(rows, "_problem").take(pa.array(order)))

    def among(self, rows: pa.Table) -> pa.Array:
        """Return the problem of each of some rows; null for a row that can be used."""
        if not len(self.places):
            return pa.nulls(rows.num_rows, pa.string())
        places = _places(rows)
        at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
        return self.problems.take(pa.array(at, mask=self.places[at] != places))


def _places(rows: pa.Table) -> NDArray[np.int64]:
    files, numbers = (np.asarray(rows[name].to_numpy(), np.int64) for name in ("_file", "_row"))
    return (files << _FILE_BITS) | numbers


def have_repeated_hours(parts: Iterable[StagedPart]) -> bool:
    """Return whether rows have an event time that occurs twice, which other rows are needed to resolve."""
    for part in parts:
        with pq.ParquetFile(part.path, filesystem=part.filesystem) as file:
            column = file.schema_arrow.get_field_index(LATER)
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                statistics = group.column(column).statistics
                if statistics is None or statistics.null_count < group.num_rows:
                    return True
    return False


def count_staged(
    parts: Iterable[StagedPart],
    unusable: UnusableRows,
    names: list[str],
    kinds: Mapping[str, str],
    options: IngestOptions,
) -> dict[str, TextProfile]:
    """Count the texts of columns over the rows that can be used; `kinds` are the types to have, where known."""

    def count(table: pa.Table) -> dict[str, TextProfile]:
        problems = unusable.among(table)
        if problems.null_count < len(problems):
            table = table.filter(problems.is_null())
        comma = options.layout.decimal_comma
        return {
            name: profile(one_chunk(table, name), kinds.get(name), options.timezone, comma)
            for name in names
            if name in table.column_names
        }

    counted: dict[str, list[TextProfile]] = {name: [] for name in names}
    for part in parts:
        for counts in _map_groups(part, ["_file", "_row", *names], count):
            for name, of_group in counts.items():
                counted[name].append(of_group)
    return {name: merge(of_column) for name, of_column in counted.items()}


def stage_typed(
    spark: SparkSession,
    parts: Iterable[StagedPart],
    staging: Staging,
    unusable: UnusableRows,
    types: Mapping[str, str],
    options: IngestOptions,
) -> list[DataFrame]:
    """Stage the rows with their types; a row whose value does not fit its column's type gets a problem.

    Parameters
    ----------
    types
        Types of the columns that are kept.
    """
    keeps_raw = options.on_duplicate == "quarantine" and bool(options.key)
    to_convert = {name: kind for name, kind in types.items() if kind != "string"}
    names = [*_COMMON, *([options.by] if options.by is not None else []), *types]

    def convert(table: pa.Table) -> pa.Table:
        held = {name: kind for name, kind in to_convert.items() if name in table.column_names}
        place = table.column_names.index("_problem")
        table = table.set_column(place, "_problem", unusable.among(table))
        table = convert_columns(table, held, options.timezone, options.layout.decimal_comma)
        if keeps_raw:
            return table
        raw = pc.if_else(table["_problem"].is_valid(), table["_raw"], pa.scalar(None, pa.string()))
        return table.set_column(table.column_names.index("_raw"), "_raw", raw)

    frames = []
    for part in parts:
        filesystem, folder, place = staging.folder()
        writer = None
        for table in _map_groups(part, names, convert):
            if writer is None:
                writer = pq.ParquetWriter(f"{folder}/rows.parquet", table.schema, filesystem=filesystem)
            writer.write_table(table)
        if writer is not None:
            writer.close()
            frames.append(spark.read.parquet(place))
    return frames


def _map_groups(part: StagedPart, names: list[str], function: Callable[[pa.Table], _Result]) -> Iterator[_Result]:
    """Yield what a function returns for the row groups of a staged file, in order; a core each works on them."""
    with (
        pq.ParquetFile(part.path, filesystem=part.filesystem) as file,
        ThreadPoolExecutor(usable_cores()) as pool,
    ):
        held = [name for name in names if name in file.schema_arrow.names]
        waiting: deque[Future[_Result]] = deque()
        for number in range(file.num_row_groups):
            waiting.append(pool.submit(function, file.read_row_group(number, columns=held)))
            if len(waiting) > usable_cores():
                yield waiting.popleft().result()
        if not file.num_row_groups:
            yield function(file.schema_arrow.empty_table().select(held))
        while waiting:
            yield waiting.popleft().result()
