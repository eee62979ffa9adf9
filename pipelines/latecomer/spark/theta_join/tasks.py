"""Answers of a theta join as Arrow batches: a Spark task answers its windows, or its pieces of windows.

Each `emit` is a class. It says which columns its answers have and how a join finds them, for one window or piece and
for many small windows at once. Spark's Python workers import this module, so it imports no more than a task needs:
the imports of the stage would cost each of them 0.1 s.

Ordering: none. Cost: that of the join.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latecomer.core.theta_join.window_task import RANGES, SMALL_ROWS, WindowJoin
from latecomer.spark.theta_join import skew_partitions as pieces

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Answer(ABC):
    """Base of the answers; each `emit` is a subclass.

    Attributes
    ----------
    join
        The join of one window.
    keys
        Columns in which the rows of one answer agree (its window, and as of when); the answer has them too.
    kinds
        The rows' columns and their SQL types.
    """

    join: WindowJoin
    keys: list[str]
    kinds: dict[str, str]

    @property
    @abstractmethod
    def columns(self) -> list[tuple[str, str]]:
        """The columns of an answer beside `keys`: name and SQL type."""

    @abstractmethod
    def _alone(self, join: WindowJoin, table: pa.Table, piece: int) -> Iterator[pa.Table]:
        """Answer one window, or the piece of that number: yields `columns`, in their order."""

    @abstractmethod
    def _together(self, join: WindowJoin, table: pa.Table, windows: int) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Answer several windows, which `pieces.WINDOW` numbers: yields the window of each answer, and `columns`."""

    @property
    def _most_shared(self) -> int:
        """Most rows of a window that shares a join with others."""
        return SMALL_ROWS if self.join.can_join_many_windows else 0

    @property
    def schema(self) -> StructType:
        """The schema of the batches that `of_windows` and `of_pieces` yield."""
        from pyspark.sql import types as T

        fields = [(key, self.kinds[key]) for key in self.keys] + self.columns
        return T.StructType([T.StructField(name, T._parse_datatype_string(kind)) for name, kind in fields])

    def of_windows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer the rows of a task that has whole windows, sorted by `keys`."""
        shared = self.join.for_many_windows(pieces.WINDOW)
        for table in pieces.whole_windows(batches, self.keys):
            small, windows, large = pieces.by_size(table, self.keys, self._most_shared)
            for window in large:
                yield from self._of_one(self.join, window, 0)
            if windows.num_rows:
                for which, answers in self._together(shared, small, windows.num_rows):
                    yield from self._batches(windows, which, answers)

    def of_pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer the rows of a task that has pieces, as `pieces.shipped` ships them."""
        given = list(batches)
        if not sum(batch.num_rows for batch in given):
            return
        for table, piece in pieces.parts_of(pa.Table.from_batches(given), self.keys):
            join = self.join if piece < 0 else self.join.for_piece(bool(piece & 1))
            yield from self._of_one(join, table, max(piece, 0) >> 1)

    def _of_one(self, join: WindowJoin, table: pa.Table, piece: int) -> Iterator[pa.RecordBatch]:
        for answers in self._alone(join, table, piece):
            yield from self._batches(table, pa.array(np.zeros(answers.num_rows, np.int64)), answers)

    def _batches(self, windows: pa.Table, which: pa.Array, answers: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield `answers` with the keys of the rows `which` of `windows`."""
        same = windows.select(self.keys).take(which).columns
        names = [*self.keys, *answers.column_names]
        yield from pa.table([*same, *answers.columns], names=names).combine_chunks().to_batches()


@dataclass(frozen=True)
class Rows(Answer):
    """Result rows; with `new`, a column of -1 for old rows, only those with a new row."""

    new: str | None

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns of `WindowJoin.rows`, with an ``a`` before the number of the alias."""
        columns = []
        for place, payload in enumerate(self.join.payload):
            columns += [(f"a{place}_seq", "bigint"), *((f"a{place}_{name}", self.kinds[name]) for name in payload)]
        return columns + ([("_new", "bigint")] if self.new else [])

    def _alone(self, join: WindowJoin, table: pa.Table, piece: int) -> Iterator[pa.Table]:
        return map(self._named, join.rows(table, self.new))

    def _together(self, join: WindowJoin, table: pa.Table, windows: int) -> Iterator[tuple[pa.Array, pa.Table]]:
        for results in join.rows(table, self.new):
            yield results[f"0_{pieces.WINDOW}"], self._named(results)

    def _named(self, results: pa.Table) -> pa.Table:
        return pa.table({name: results[name.removeprefix("a")] for name, _ in self.columns})


def _decimals(numbers: list[int]) -> pa.Array:
    """Return numbers as a column with room for the sum of very many.

    A sum beyond 64 bits is null in the end, so larger numbers may be cut.
    """
    return pa.array([Decimal(min(number, 10**30)) for number in numbers], pa.decimal128(38, 0))


@dataclass(frozen=True)
class Counts(Answer):
    """The number of results."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The count, in a type wider than 64 bits."""
        return [("matches", "decimal(38,0)")]

    def _alone(self, join: WindowJoin, table: pa.Table, piece: int) -> Iterator[pa.Table]:
        yield self._table([join.count(table)])

    def _together(self, join: WindowJoin, table: pa.Table, windows: int) -> Iterator[tuple[pa.Array, pa.Table]]:
        numbers = join.counts_by_window(table, pieces.WINDOW, windows)
        yield pa.array(np.arange(windows)), self._table(numbers.tolist())

    @staticmethod
    def _table(numbers: list[int]) -> pa.Table:
        return pa.table({"matches": _decimals(numbers)})


@dataclass(frozen=True)
class Increments(Answer):
    """The growth of the number of results by each value of `new`, a column of -1 for old rows, where it is not 0."""

    new: str

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The growth and the value; pieces of a window may have the same value, and their growths add up."""
        return [("matches", "decimal(38,0)"), ("_new", "bigint")]

    def _alone(self, join: WindowJoin, table: pa.Table, piece: int) -> Iterator[pa.Table]:
        yield self._grown(join, table, None)[1]

    def _together(self, join: WindowJoin, table: pa.Table, windows: int) -> Iterator[tuple[pa.Array, pa.Table]]:
        yield self._grown(join, table, pieces.WINDOW)

    def _grown(self, join: WindowJoin, table: pa.Table, key: str | None) -> tuple[pa.Array, pa.Table]:
        which, value, count = join.increments(table, self.new, key)
        return pa.array(which), pa.table({"matches": _decimals(count), "_new": value})


@dataclass(frozen=True)
class Ranges(Answer):
    """The factorised result, of each window by itself: none shares a join."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns of `RANGES`."""
        kinds = {"int32": "int", "int64": "bigint"}
        return [(field.name, kinds.get(str(field.type), str(field.type))) for field in RANGES]

    @property
    def _most_shared(self) -> int:
        return 0

    def _alone(self, join: WindowJoin, table: pa.Table, piece: int) -> Iterator[pa.Table]:
        yield join.ranges(table, piece)

    def _together(self, join: WindowJoin, table: pa.Table, windows: int) -> Iterator[tuple[pa.Array, pa.Table]]:
        raise AssertionError("ranges of several windows share no join")
