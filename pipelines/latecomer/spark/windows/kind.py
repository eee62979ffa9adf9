"""The interface of the query kinds that answer per window.

:class:`latecomer.spark.windows.stage.WindowedStage` scans, decides, closes windows and commits, alike for all kinds. A
:class:`WindowKind` says what it computes of the rows. It holds no state between calls: what a method learns it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from latecomer.spark.engine.query_columns import check_columns
from latecomer.spark.windows.assigner import WindowAssigner
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.lateness import ObservedSpans, ObservedWindows, RowsWithLateness
from latecomer.spark.windows.query import S_co, WindowQuery
from latecomer.spark.windows.rows import ClosedWindowTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class WindowAnswers:
    """Answers of windows.

    Attributes
    ----------
    rows
        Result columns with ``shard``, ``_m`` (window number) and ``closed_seq``, ``wait_us``.
    ledger_counts
        What the kind counted besides, per period (us): names of ledger columns with int64 sums.
    """

    rows: DataFrame
    ledger_counts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


class WindowKind(ABC, Generic[S_co]):
    """The computations of a query kind on the rows of its windows.

    Raises
    ------
    SpecError
        The query's streams cannot answer it.

    Attributes
    ----------
    counts_results
        True where a contribution is a result, made of rows that may have waited differently long; then its `observed`
        counts results by wait (:meth:`latecomer.spark.windows.lateness.RowsWithLateness.observations`).
    """

    counts_results = False

    def __init__(self, query: WindowQuery[S_co], assigner: WindowAssigner | None = None) -> None:
        self.query, self.spec = query, query.spec
        self.assigner = assigner or WindowAssigner(query.grid)
        self.check()

    def check(self) -> None:
        """Refuse a query that its streams cannot answer: its columns are there, and have the types that it needs.

        Raises
        ------
        SpecError
            With the place in the query.
        """
        check_columns(self.query.asked, self.query.events)

    @property
    def answer_rows(self) -> int:
        """Most result rows of a window and group; 0: any number."""
        return 0

    @abstractmethod
    def payload(self, source: int) -> dict[str, str]:
        """Return the columns that the kind works with, name to SQL over a source's columns.

        ``ok`` says whether the row counts.
        """

    def shard_sql(self) -> str:
        """Return the SQL of a row's shard over payload columns."""
        return "0"

    def reduced(self, rows: DataFrame, marked: DataFrame | None, density: int) -> tuple[DataFrame, bool]:
        """Leave out rows that no answer can hold.

        Parameters
        ----------
        rows
            Payload, ``seq``, ``ts``, ``side``, ``shard`` among others; ``ok`` may be false.
        marked
            ``seq`` of rows that came too late for a window of theirs, among other columns; None where there are none.
        density
            About how many rows a pane has.

        Returns
        -------
        DataFrame
            The rows that are left, with the same columns.
        bool
            True where every row is known to count (``ok``).
        """
        return rows, False

    @abstractmethod
    def observed(self, rows: RowsWithLateness, spans: ObservedSpans, *, per_answer: bool = False) -> ObservedWindows:
        """Count what the contributions to observed windows required.

        `per_answer`: a contribution is an answer, also where the strategy's controller counts rows.
        """

    @abstractmethod
    def answers(self, rows: DataFrame, closed: ClosedWindowTable, *, many_answers: bool = False) -> WindowAnswers:
        """Answer closed windows.

        Parameters
        ----------
        rows
            Payload, ``seq``, ``ts``, ``side``, ``shard`` and ``c``: windows up to this number were closed when the
            row came (null: none that holds it); see
            :meth:`latecomer.spark.windows.assigner.WindowAssigner.open_from`.
        many_answers
            Many answers are expected: a pass over the rows may save more than it costs.
        """

    @abstractmethod
    def corrected(self, due: DueRows) -> DataFrame:
        """Return corrections: result columns with ``_m``, ``revision`` and ``repaired_in``."""

    def revised(self, due: DueRows, published: Mapping[str, str]) -> DataFrame | None:
        """Return new answers that late rows moved, where answers are replaced; columns as of :meth:`corrected`.

        `published` is the SQL condition of the results that are published, by table. None: there is surely none.
        """
        raise NotImplementedError

    def added(self, due: DueRows) -> DataFrame:
        """Count the results that late rows add, where results only grow: ``_m``, ``repaired_in`` and ``results``.

        A result counts at the latest ``repaired_in`` of its late rows.
        """
        raise NotImplementedError

    def most_corrections(self, late: int) -> int:
        """Return an upper bound of the corrections that so many late rows bring; 0 where none is known."""
        return 0
