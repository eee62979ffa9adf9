"""The accounts of a join: results, arrivals, late rows, rows held and waits, per period of stream time.

The accounts of a query whose recall is guaranteed contain its recall budget, which knows how many pairs were due.
`repair` writes the other half of the ledger (``repairs/<query>``), and :mod:`latecomer.ledger.join_ledger` puts the two
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from latecomer.core.join.control import JoinControl
from latecomer.core.join.recall_budget import PeriodBudget, RecallBudget
from latecomer.lake.delta import TIMESTAMP
from latecomer.ledger.accounts import PeriodAccounts
from latecomer.specs.join import JoinSpec
from latecomer.strategies.join import guarantees, retention_parameters, retention_policy


@dataclass
class JoinCounts:
    """Sums over one period of a join. The state stores the fields in this order."""

    on_time: int = 0
    rows: int = 0
    late_rows: int = 0
    late_seq_max: int = -1
    wait_us: int = 0
    emitted: int = 0


LateCounts = dict[int, tuple[int, int]]
"""Period start (us) -> (late rows, the last arrival among them)."""


def late_counts(late: pa.Table) -> LateCounts:
    """Count registered late rows per period; a row that is late in both roles of a self join counts once."""
    periods = late["period_start"].cast(pa.int64())
    groups = pa.table({"period": periods, "seq": late["seq"]}).group_by("period")
    counts = groups.aggregate([("seq", "count_distinct"), ("seq", "max")])
    columns = (counts[name].to_pylist() for name in ("period", "seq_count_distinct", "seq_max"))
    return {period: (rows, last) for period, rows, last in zip(*columns, strict=True)}


class JoinAccounts(PeriodAccounts[JoinCounts]):
    """The accounts of a join's open periods. `aliases` name its two streams; `budget` is None without a guarantee."""

    counts_type = JoinCounts

    def __init__(
        self, period_us: int, target: float, aliases: tuple[str, ...], budget: RecallBudget | None = None
    ) -> None:
        super().__init__(period_us, target)
        self.aliases, self.budget = aliases, budget

    def add(
        self,
        published: dict[int, int],
        late: LateCounts,
        rows: dict[int, int],
        unplaced: int,
        waits: dict[int, int],
        recalled: dict[int, int] | None = None,
    ) -> None:
        """Add a micro-batch.

        Parameters
        ----------
        published, rows, waits
            Published results, arrivals, and sums of waits in us, by period start (us).
        late
            As :func:`late_counts` returns it.
        unplaced
            Arrivals before all streams were seen, which belong to no period.
        recalled
            Those of the published results that were recalled, by period start (us).
        """
        for period, count in published.items():
            self.counts(period).on_time += count - (recalled or {}).get(period, 0)
        for period, (count, last) in late.items():
            counts = self.counts(period)
            counts.late_rows += count
            counts.late_seq_max = max(counts.late_seq_max, last)
        for period, count in rows.items():
            self.counts(period).rows += count
        for period, wait in waits.items():
            self.counts(period).wait_us += wait
        late_rows = sum(count for count, _ in late.values())
        self.add_totals(sum(rows.values()) + unplaced, sum(published.values()), late_rows)

    def close(self, control: JoinControl, *, flush: bool) -> pa.Table | None:
        """Close the periods that stream time has left and return their rows.

        With `flush`, also rows of the open ones.
        """
        closed = control.closed_periods()
        completed = set(closed) | {start for start in self.periods if closed and start <= closed[-1]}
        rows = []
        for start in sorted(completed):
            rows.append(self._row(start, control, as_of_now=False))
            self.periods.pop(start, None)
            control.accounts.pop(start, None)
            if self.budget is not None:
                self.budget.periods.pop(start, None)
        if flush:
            for start in sorted(self.periods):
                rows.append(self._row(start, control, as_of_now=True))
                self.periods[start].emitted += 1
        return pa.Table.from_pylist(rows, schema=self.schema) if rows else None

    def open(self, control: JoinControl) -> pa.Table:
        """Return the rows of the open periods as of now; where there are none, the columns of a ledger."""
        rows = [self._row(start, control, as_of_now=True) for start in sorted(self.periods)]
        return pa.Table.from_pylist(rows, schema=self.schema)

    def to_dict(self) -> dict[str, Any]:
        """Return the accounts as a JSON document."""
        recall = {} if self.budget is None else {"recall": self.budget.to_dict()}
        return super().to_dict() | recall

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query's ``ledger/<query>``."""
        return ledger_schema(self.aliases, guarantee=self.budget is not None)

    def _row(self, start: int, control: JoinControl, *, as_of_now: bool) -> dict[str, float | None]:
        counts, account = self.periods.get(start, JoinCounts()), control.account(start, as_of_now=as_of_now)
        span_us = account.retention_weight_us
        budget = PeriodBudget() if self.budget is None else self.budget.account(start)
        published = counts.on_time + budget.recalled
        return {
            "period_start": start,
            "period_end": start + self.period_us,
            "on_time": counts.on_time,
            "rows": counts.rows,
            "late_rows": counts.late_rows,
            "late_seq_max": counts.late_seq_max if counts.late_rows else None,
            "target": self.target,
            "rows_held_mean": account.held_area / account.weight_us if account.weight_us else 0.0,
            "rows_held_max": account.held_max,
            "wait_mean_us": (counts.wait_us + budget.wait_us) / published if published else 0.0,
            "emission": counts.emitted,
            **{
                f"retention_{alias}_us": account.retention_area[side] // span_us if span_us else None
                for side, alias in enumerate(self.aliases)
            },
            "due": budget.due,
            "recalled": budget.recalled,
            "repaired_early": budget.repaired_early,
            "rows_recalled_mean": budget.recalled_area / account.weight_us if account.weight_us else 0.0,
        }


def ledger_schema(aliases: tuple[str, ...], *, guarantee: bool) -> pa.Schema:
    """Return the columns of a join's ``ledger/<query>``; a guarantee adds some."""
    added = [("due", pa.int64()), ("recalled", pa.int64()), ("repaired_early", pa.int64())]
    return pa.schema(
        [
            ("period_start", TIMESTAMP),
            ("period_end", TIMESTAMP),
            ("on_time", pa.int64()),
            ("rows", pa.int64()),
            ("late_rows", pa.int64()),
            ("late_seq_max", pa.int64()),
            ("target", pa.float64()),
            ("rows_held_mean", pa.float64()),
            ("rows_held_max", pa.int64()),
            ("wait_mean_us", pa.float64()),
            ("emission", pa.int32()),
            *((f"retention_{alias}_us", pa.int64()) for alias in aliases),
            *([*added, ("rows_recalled_mean", pa.float64())] if guarantee else []),
        ]
    )


def restore_join(
    spec: JoinSpec, state: dict[str, Any] | None, parameters: dict[str, Any] | None = None
) -> tuple[JoinControl, JoinAccounts]:
    """Restore a join's control plane and period accounts from a micro-batch's state.

    Parameters
    ----------
    state
        State after the micro-batch; None: both are initial, as before the first micro-batch.
    parameters
        Parameters that `adapt` wrote since; they replace the policy of the state. None: it wrote none.
    """
    guarantee = guarantees(spec, state)
    settings = retention_parameters(spec, guarantee=guarantee)
    policy = retention_policy(settings, None if state is None else state["control"]["policy"], parameters)
    if state is None:
        control = JoinControl(policy, **settings.spans)
    else:
        control = JoinControl.from_dict(state["control"], policy, **settings.spans)
    budget = None
    if guarantee:
        spans = {"period_us": settings.period_us, "interval_us": settings.interval_us}
        if state is None:
            budget = RecallBudget(spec.target, **spans)
        else:
            budget = RecallBudget.from_dict(state["books"]["recall"], spec.target, **spans)
    accounts = JoinAccounts(spec.period_us, spec.target, tuple(alias for alias, _ in spec.streams), budget)
    if state is not None:
        accounts.restore(state["books"])
    return control, accounts
