"""A join's ledger as `run` writes it: per period, results published, rows that came late, rows held, and how long results waited.

`repair` writes the other half (``repairs/<query>``), and :mod:`latecomer.lake.result_views` puts the two together. A period is written when
stream time has left it, so its row does not depend on where micro-batches were cut; at a flush the open periods are
written too, and once more (``emission`` 1, 2, ...) should arrivals follow after all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from latecomer.core.join.control import JoinControl
from latecomer.lake.delta import TIMESTAMP


@dataclass
class Counts:
    """Sums over one period."""

    on_time: int = 0
    rows: int = 0
    late_rows: int = 0
    late_seq_max: int = -1
    wait_us: int = 0
    emitted: int = 0


LateCounts = dict[int, tuple[int, int]]
"""Period start in us -> (late rows, the largest seq among them)."""


def late_counts(late: pa.Table) -> LateCounts:
    """Count registered late rows per period; a row that is late in both roles of a self join counts once."""
    periods = late["period_start"].cast(pa.int64())
    table = pa.table({"period": periods, "seq": late["seq"]}).group_by("period")
    found = table.aggregate([("seq", "count_distinct"), ("seq", "max")])
    columns = (found[name].to_pylist() for name in ("period", "seq_count_distinct", "seq_max"))
    return {period: (rows, last) for period, rows, last in zip(*columns, strict=True)}


class JoinBooks:
    """Counts of every period that is still open."""

    def __init__(self, period_us: int, target: float, aliases: tuple[str, ...]) -> None:
        self.period_us, self.target, self.aliases = period_us, target, aliases
        self.periods: dict[int, Counts] = {}
        self.totals = {"rows_read": 0, "on_time": 0, "late": 0}

    def add(
        self, on_time: dict[int, int], late: LateCounts, rows: dict[int, int], unplaced: int, waits: dict[int, int]
    ) -> None:
        """Take in one micro-batch. `rows` are arrivals per period, `unplaced` those before every stream had spoken."""
        for period, count in on_time.items():
            self._of(period).on_time += count
        for period, (count, last) in late.items():
            found = self._of(period)
            found.late_rows += count
            found.late_seq_max = max(found.late_seq_max, last)
        for period, count in rows.items():
            self._of(period).rows += count
        for period, wait in waits.items():
            self._of(period).wait_us += wait
        self.totals["rows_read"] += sum(rows.values()) + unplaced
        self.totals["on_time"] += sum(on_time.values())
        self.totals["late"] += sum(count for count, _ in late.values())

    def _of(self, period: int) -> Counts:
        return self.periods.setdefault(period, Counts())

    def close(self, control: JoinControl, *, flush: bool) -> pa.Table | None:
        """Rows of the periods that stream time has left; with `flush`, of the open ones too."""
        closed = control.closed_periods()
        gone = set(closed) | {start for start in self.periods if closed and start <= closed[-1]}
        rows = []
        for start in sorted(gone):
            rows.append(self._row(start, control, now=False))
            self.periods.pop(start, None)
            control.accounts.pop(start, None)
        if flush:
            for start in sorted(self.periods):
                rows.append(self._row(start, control, now=True))
                self.periods[start].emitted += 1
        return self._table(rows) if rows else None

    def open(self, control: JoinControl) -> pa.Table:
        """Rows of the periods that are still open, as they stand; also where there are none they say which columns a ledger has."""
        return self._table([self._row(start, control, now=True) for start in sorted(self.periods)])

    def _row(self, start: int, control: JoinControl, *, now: bool) -> dict[str, Any]:
        counts, account = self.periods.get(start, Counts()), control.account(start, as_of_now=now)
        span = account.retention_weight_us
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
            "wait_mean_us": counts.wait_us / counts.on_time if counts.on_time else 0.0,
            "emission": counts.emitted,
        } | {
            f"retention_{alias}_us": account.retention_area[side] // span if span else None
            for side, alias in enumerate(self.aliases)
        }

    def _table(self, rows: list[dict[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist(rows, schema=ledger_schema(self.aliases))

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return {
            "periods": {str(start): list(vars(counts).values()) for start, counts in self.periods.items()},
            "totals": dict(self.totals),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.periods = {int(start): Counts(*values) for start, values in state["periods"].items()}
        self.totals = {name: state["totals"][name] for name in self.totals}


def ledger_schema(aliases: tuple[str, ...]) -> pa.Schema:
    """Columns of ``ledger/<query>`` for a join."""
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
        ]
    )
