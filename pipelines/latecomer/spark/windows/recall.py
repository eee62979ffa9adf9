"""Recall on Spark: count what late rows of open periods changed, and publish it as the budget decides.

The rule is :mod:`latecomer.core.windows.recall_budget`. It needs the results that were published on time, which are
counted in the table, and so it is applied once they and the late rows are committed: recalled results are a commit of
their own. A micro-batch that dies before its state is carried out again, with the same decisions.

Late rows are looked at where a step is complete in which one came for an open period. Without such a row Spark has
nothing to do. Else the stored rows of its windows are read as `repair` reads them, and the results of late rows are
counted by step; a second read forms the results of the periods that are recalled. Where answers are replaced, the kind
answers these windows again after every step, and those answers that have moved are published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.core.time import FOREVER
from latecomer.core.windows.recall_budget import Amount, LateWindows, RecallBudget, Steps
from latecomer.spark.engine.columns import floor_to_sql
from latecomer.spark.stage import Batch
from latecomer.spark.windows.due_rows import DueRows
from latecomer.spark.windows.kind import WindowKind
from latecomer.spark.windows.query import WindowQuery
from latecomer.spark.windows.repair import WindowRepair
from latecomer.spark.windows.rows import listed, result_rows
from latecomer.specs.spec import Answers
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Int64 = NDArray[np.int64]


@dataclass
class WindowRecall:
    """The recall of one micro-batch.

    Attributes
    ----------
    query, kind, repair
        The query, what its kind computes, and how windows are answered again.
    budget
        The query's budget before the micro-batch; :meth:`rows` advances it.
    batch, steps
        The micro-batch, and the steps that begin in it.
    some_on_time, some_late
        Whether it may have published results on time, and registered late rows.
    counts
        Once the budget is advanced: what is to be added to the accounts of periods (us), by ledger column.
    """

    query: WindowQuery[WindowedSpec]
    kind: WindowKind[WindowedSpec]
    repair: WindowRepair
    budget: RecallBudget
    batch: Batch
    steps: Steps
    some_on_time: bool
    some_late: bool
    counts: dict[int, dict[str, int]] = field(default_factory=dict)

    def rows(self) -> DataFrame | None:
        """Advance the budget, once on-time and late rows are committed, and return the results to recall, if any."""
        budget, repaired_to = self.budget, self.batch.repaired_to
        early: dict[int, dict[str, int]] = {}
        if repaired_to >= budget.decided_to:
            early = budget.take_repaired(repaired_to, self._late(repaired_to + 1, self.batch.seq_from))
        seq_to = self.batch.seq_to
        late = self._late(budget.step_from, seq_to) if self.some_late or budget.decided_to < FOREVER else _none()
        is_open, completion = budget.open_rows(late, self.steps), budget.completions(late, self.steps)
        moved = self._moved(late, completion) if budget.replaces else None
        missed = self._missed(late, completion) if not budget.replaces else _counted(moved)
        late_from = {start: period.late_from for start, period in budget.periods.items() if period.late_from >= 0}
        step_from = budget.step_from
        recalls, self.counts = budget.advance(self.steps, self._on_time(), late.where(is_open), missed)
        for start, sums in early.items():
            self.counts[start] = self.counts.get(start, {}) | sums
        if not recalls or budget.replaces:
            return moved if recalls else None
        since = {start: late_from.get(start, step_from) for start in recalls}
        return self._recalled(recalls, since)

    # ------------------------------------------------------------------------------------------------ what is counted

    def _on_time(self) -> list[Amount]:
        """Count the results that the micro-batch published on time, by the arrival that published them and period."""
        if not self.some_on_time:
            return []
        batch, spec = self.batch, self.query.spec
        published = pc.field("published_seq")
        last = batch.seq_to if batch.flush else batch.seq_to - 1
        chosen = (published >= batch.seq_from) & (published <= last) & (pc.field("provenance") == "on_time")
        matches = ["matches"] if spec.answers is Answers.REVISED and not self.budget.replaces else []
        totals: dict[tuple[int, int], int] = {}
        table = self.query.lake.table("on_time", spec.name)
        for rows in table.batches(["published_seq", "period_start", *matches], chosen):
            aggregates: list[Any] = [("matches", "sum")] if matches else [([], "count_all")]
            groups = pa.Table.from_batches([rows]).group_by(["published_seq", "period_start"]).aggregate(aggregates)
            seqs, starts = groups["published_seq"].to_pylist(), groups["period_start"].cast(pa.int64()).to_pylist()
            amounts = groups[f"{matches[0]}_sum" if matches else "count_all"].to_pylist()
            for key, amount in zip(zip(seqs, starts, strict=True), amounts, strict=True):
                totals[key] = totals.get(key, 0) + (amount or 0)
        for start, results in self.budget.flushed.items():  # these carry the number of the first arrival
            totals[batch.seq_from, start] -= results
        return [Amount(seq, start, results) for (seq, start), results in totals.items() if results]

    def _late(self, seq_from: int, seq_to: int) -> LateWindows:
        """Read the late rows among the arrivals ``[seq_from, seq_to)``, with the windows that missed them."""
        grid, lake, spec = self.query.grid, self.query.lake, self.query.spec
        awaiting = (pc.field("seq") >= seq_from) & (pc.field("seq") < seq_to)
        rows = lake.table("late", spec.name).read(["seq", "windows_from", "windows_to"], awaiting)
        if rows is None or not rows.num_rows:
            return _none()
        first = rows["windows_from"].cast(pa.int64()).to_numpy() // grid.slide_us
        last = (rows["windows_to"].cast(pa.int64()).to_numpy() - grid.size_us) // grid.slide_us
        return LateWindows.of(rows["seq"].to_numpy(), first, last, grid, spec.period_us)

    def _missed(self, late: LateWindows, completion: Int64) -> list[Amount]:
        """Count the results that late rows added, by the completion of their step and period.

        Rows whose step is not complete, or whose period was closed, have the completion `FOREVER`. They are among the
        rows of the windows too, and what they added must not be counted.
        """
        counted = completion < FOREVER
        if not counted.any():
            return []
        of_interest = np.isin(late.period_us, late.period_us[counted])
        due = self._due(late.where(of_interest), completion[of_interest])
        period = floor_to_sql(
            f"_m * {self.query.grid.slide_us}L + {self.query.grid.size_us - 1}L", self.query.spec.period_us
        )
        added = self.kind.added(due).where(f"repaired_in < {FOREVER}L")
        groups = added.groupBy("repaired_in", _column(f"{period} as period")).agg(_column("sum(results) as results"))
        rows = groups.toArrow().to_pydict()
        columns = (rows[name] for name in ("repaired_in", "period", "results"))
        return [Amount(last + 1, start, int(results)) for last, start, results in zip(*columns, strict=True)]

    # ------------------------------------------------------------------------------------------- what is published

    def _moved(self, late: LateWindows, completion: Int64) -> DataFrame | None:
        """Answer the windows of late rows again after each of their steps; return the answers that have moved, if any.

        A micro-batch that is carried out again may find its own recalls in the table, and does not count them as
        published.
        """
        counted = completion < FOREVER
        if not counted.any():
            return None
        published = {
            "on_time": f"provenance = 'on_time' or published_seq < {self.batch.seq_from}L",
            "corrections": f"published_seq <= {self.batch.repaired_to}L",
        }
        answers = self.kind.revised(self._due(late.where(counted), completion[counted]), published)
        if answers is None:
            return None
        return self.query.cache.detach(result_rows(self.query, answers, "recalled", "repaired_in + 1L"))

    def _recalled(self, recalls: dict[int, list[int]], since: dict[int, int]) -> DataFrame:
        """Return the results that periods have missed, each at the first recall that knows all of its rows.

        `recalls` are the completions per period (us), and `since` the arrival from which on its late rows were not
        recalled before.
        """
        late = self._late(min(since.values()), self.batch.seq_to)
        late = late.where(np.isin(late.period_us, list(recalls)))
        completion, not_before = np.full(len(late.seq), FOREVER), np.zeros(len(late.seq), np.int64)
        for start, completions in recalls.items():
            of_period = late.period_us == start
            not_before[of_period] = since[start]
            place = np.searchsorted(completions, late.seq[of_period], side="right")
            completion[of_period] = np.append(np.array(completions, np.int64), FOREVER)[place]
        chosen = late.seq >= not_before
        due = self._due(late.where(chosen), completion[chosen])
        known = sorted({completion for completions in recalls.values() for completion in completions})
        times = [self.steps.time_at(completion) for completion in known]
        publications = pa.table({"repaired_in": [seq - 1 for seq in known], "_time": times})
        rows = self.kind.corrected(due).join(listed(self.query.spark, publications), "repaired_in")
        end = f"(_m * {self.query.grid.slide_us}L + {self.query.grid.size_us}L)"
        rows = rows.withColumn("wait_us", _column(f"greatest(_time - {end}, 0L)")).drop("_time")
        return result_rows(self.query, rows, "recalled", "repaired_in + 1L")

    def _due(self, late: LateWindows, completion: Int64) -> DueRows:
        """Return late rows as if they were repaired by the last arrival before a completion."""
        seq = pa.chunked_array([late.seq])
        repaired_in = np.where(completion < FOREVER, completion - 1, FOREVER)
        columns = {"seq": seq, "m_from": late.first, "m_to": late.last, "repaired_in": repaired_in}
        closes = np.unique(repaired_in[completion < FOREVER])
        return self.repair.due(listed(self.query.spark, pa.table(columns)), seq, closes)


def _counted(moved: DataFrame | None) -> list[Amount]:
    """Count the rows of answers that have moved, by the completion of their step and period."""
    if moved is None:
        return []
    rows = moved.groupBy("published_seq", "period_start").count().toArrow()
    starts = rows["period_start"].cast(pa.int64())
    columns = (column.to_pylist() for column in (rows["published_seq"], starts, rows["count"]))
    return [Amount(*amount) for amount in zip(*columns, strict=True)]


def _none() -> LateWindows:
    return LateWindows(*(np.empty(0, np.int64) for _ in range(4)))


def _column(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)
