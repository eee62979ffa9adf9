"""The run's half of a windowed kind's ledger: answers published, waits, rows held, slack, by period.

A window belongs to the period that holds its last microsecond; arrivals, rows held and slack to the period of stream time
they fell into, an interval's to that in which it begins. A period is written when every shard's watermark has reached its end and its
interval at hand begins after it, so its row does not depend on where micro-batches were cut; at a flush the open periods are written too. What was late, and how complete answers were, is
joined at read time (:mod:`latecomer.ledger.window_ledger`): late rows may concern periods that were written long ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.interfaces import SlackAccount
from latecomer.lake.delta import TIMESTAMP

LEDGER = pa.schema(
    [
        ("period_start", TIMESTAMP),
        ("period_end", TIMESTAMP),
        ("rows", pa.int64()),
        ("published", pa.int64()),
        ("target", pa.float64()),
        ("rows_held_mean", pa.float64()),
        ("rows_held_max", pa.int64()),
        ("wait_mean_us", pa.float64()),
        ("slack_mean_us", pa.float64()),
        ("tested", pa.int64()),
        ("candidates", pa.int64()),
        ("confirmed", pa.int64()),
        ("filter_bytes", pa.int64()),
        ("moved_bytes", pa.int64()),
        ("exact_bytes", pa.int64()),
        ("emission", pa.int32()),
    ]
)


@dataclass
class Published:
    """Sums over one period's answers: result rows and their waits in us."""

    rows: int = 0
    wait_us: int = 0
    emitted: int = 0
    extra: dict[str, int] | None = None


@dataclass(frozen=True)
class Left:
    """No row of the ledger before `until_us` changes any more; `accounts` are those of its periods (start in us), one per shard."""

    until_us: int
    accounts: dict[int, list[SlackAccount]]


def leave(controls: list[WindowControl]) -> Left:
    """Take the accounts of periods that every shard has left behind out of the controls."""
    until = min(control.left_until() for control in controls)
    starts = {start for control in controls for start in control.accounts if start + control.period_us <= until}
    return Left(until, {start: [each.accounts.pop(start, SlackAccount()) for each in controls] for start in starts})


class WindowBooks:
    """Counts of every period that is still open."""

    def __init__(self, period_us: int, target: float) -> None:
        self.period_us, self.target = period_us, target
        self.periods: dict[int, Published] = {}
        self.totals = {"rows_read": 0, "on_time": 0, "late": 0}

    def add(self, published: dict[int, tuple[int, int]], rows_read: int, late: int) -> None:
        """Take in one micro-batch: period start in us -> (result rows, their waits), rows read, late rows."""
        for period, (rows, wait) in published.items():
            found = self.periods.setdefault(period, Published())
            found.rows += rows
            found.wait_us += wait
            self.totals["on_time"] += rows
        self.totals["rows_read"] += rows_read
        self.totals["late"] += late

    def note(self, extras: dict[int, dict[str, int]]) -> None:
        """Add what a kind counts besides, per period: names of ledger columns with int64 sums."""
        for period, counts in extras.items():
            found = self.periods.setdefault(period, Published())
            before = found.extra or {}
            found.extra = before | {name: before.get(name, 0) + count for name, count in counts.items()}

    def close(self, left: Left, controls: list[WindowControl]) -> pa.Table | None:
        """Rows of the periods that every shard has left behind; at a flush, given `controls`, of the open ones too.

        Call it before the controls are told of the flush: what a flush closes is no natural end of a period.
        """
        rows = []
        for start in sorted(set(self.periods).union(left.accounts, *(control.accounts for control in controls))):
            if start + self.period_us <= left.until_us:
                rows.append(self._row(start, left.accounts.get(start, [])))
                self.periods.pop(start, None)
            elif controls:
                rows.append(self._row_now(start, controls))
                self.periods.setdefault(start, Published()).emitted += 1
        return pa.Table.from_pylist(rows, schema=LEDGER) if rows else None

    def open(self, controls: list[WindowControl]) -> pa.Table:
        """Rows of the periods that are still open, as they stand; also where there are none they say which columns a ledger has."""
        starts = sorted(set(self.periods).union(*(control.accounts for control in controls)))
        return pa.Table.from_pylist([self._row_now(start, controls) for start in starts], schema=LEDGER)

    def _row_now(self, start: int, controls: list[WindowControl]) -> dict[str, Any]:
        return self._row(start, [control.account(start, now=True) for control in controls])

    def _row(self, start: int, accounts: list[SlackAccount]) -> dict[str, Any]:
        counts = self.periods.get(start, Published())
        slack = [a.slack_area / a.slack_weight_us for a in accounts if a.slack_weight_us]
        return {
            "period_start": start,
            "period_end": start + self.period_us,
            "rows": sum(a.rows for a in accounts),
            "published": counts.rows,
            "target": self.target,
            "rows_held_mean": sum(_mean(a) for a in accounts),
            "rows_held_max": sum(a.held_max for a in accounts),
            "wait_mean_us": counts.wait_us / counts.rows if counts.rows else 0.0,
            "slack_mean_us": sum(slack) / len(slack) if slack else None,
            "emission": counts.emitted,
        } | (counts.extra or {})

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        periods = {str(start): list(vars(counts).values()) for start, counts in self.periods.items()}
        return {"periods": periods, "totals": dict(self.totals)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.periods = {int(start): Published(*values) for start, values in state["periods"].items()}
        self.totals = {name: state["totals"][name] for name in self.totals}


def _mean(account: SlackAccount) -> float:
    return account.held_area / account.weight_us if account.weight_us else 0.0
