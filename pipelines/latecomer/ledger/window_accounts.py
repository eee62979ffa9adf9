"""The accounts of a windowed kind: answers published, waits, rows held and slack, per period.

A window belongs to the period that holds its last microsecond. Arrivals, rows held and slack belong to the period of
stream time they fell into, an interval's to the one in which it begins. A period is complete once every shard's
watermark has reached its end and the shard's current interval begins after it. Lateness and completeness are joined
when the ledger is read (:mod:`latecomer.ledger.window_ledger`), since late rows may concern periods that were written
long ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.interfaces import SlackAccount
from latecomer.lake.delta import TIMESTAMP
from latecomer.ledger.accounts import PeriodAccounts
from latecomer.specs.windows import WindowedSpec
from latecomer.strategies.windows import learns_safely, recall_budget

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
LEARNS = pa.schema([("learning", pa.bool_())])
"""A further column where the slack says whether it is still learning."""
GUARANTEED = ("recalled", "repaired_early", "due", "unpublished")
"""Further columns where `run` recalls: results that it recalled, and those that a flush of `repair` published before
the period closed; results that the period's rows implied when it closed, and those of them that were not published
then."""


@dataclass
class WindowCounts:
    """Sums over one period's answers: result rows, their waits in us, and the further counts of the kind.

    The state stores the fields in this order.
    """

    rows: int = 0
    wait_us: int = 0
    emitted: int = 0
    extra: dict[str, int] | None = None


@dataclass(frozen=True)
class CompletedPeriods:
    """Periods whose ledger rows cannot change any more.

    Attributes
    ----------
    until_us
        They end at this time (us) or before.
    accounts
        Their accounts in the control planes, one per shard, by period start (us).
    """

    until_us: int
    accounts: dict[int, list[SlackAccount]]


def take_completed_periods(controls: list[WindowControl], *, guaranteed: bool = False) -> CompletedPeriods:
    """Take the accounts of the periods that every shard has left out of the control planes.

    `guaranteed`: with a recall guarantee a period is open for as long again as it is
    (:mod:`latecomer.core.windows.recall_budget`).
    """
    until = min(control.final_until() for control in controls)
    if guaranteed:
        until = min(until, *(control.base - control.period_us for control in controls))
    starts = {start for control in controls for start in control.accounts if start + control.period_us <= until}
    accounts = {start: [control.accounts.pop(start, SlackAccount()) for control in controls] for start in starts}
    return CompletedPeriods(until, accounts)


class WindowAccounts(PeriodAccounts[WindowCounts]):
    """The accounts of a windowed query's open periods.

    `guaranteed`: `run` recalls results of late rows; `replaces`: these are answers that were published before, whose
    wait is that of the first one. `learns`: the query's slack says whether it is learning.
    """

    counts_type = WindowCounts

    def __init__(
        self,
        period_us: int,
        target: float,
        *,
        guaranteed: bool = False,
        replaces: bool = False,
        learns: bool = False,
    ) -> None:
        super().__init__(period_us, target)
        self.guaranteed, self.replaces, self.learns = guaranteed, replaces, learns

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query's ``ledger/<query>``."""
        more = [(name, pa.int64()) for name in GUARANTEED] if self.guaranteed else []
        return pa.schema([*LEDGER, *more, *(LEARNS if self.learns else ())])

    def add(self, published: dict[int, tuple[int, int]], rows_read: int, late: int) -> None:
        """Add a micro-batch: result rows and the sum of their waits (us) by period start (us), rows read, late rows."""
        for period, (rows, wait) in published.items():
            counts = self.counts(period)
            counts.rows += rows
            counts.wait_us += wait
        self.add_totals(rows_read, sum(rows for rows, _ in published.values()), late)

    def note(self, extras: Mapping[int, Mapping[str, int]]) -> None:
        """Add what a kind counts besides: sums by ledger column, by period start (us)."""
        for period, sums in extras.items():
            counts = self.counts(period)
            before = counts.extra or {}
            counts.extra = before | {name: before.get(name, 0) + count for name, count in sums.items()}

    def close(self, completed: CompletedPeriods, controls: list[WindowControl]) -> pa.Table | None:
        """Close the completed periods and return their rows; at a flush, given `controls`, also rows of the open ones.

        Call it before the control planes process the flush, since the end of a flush is no natural end of a period.
        """
        rows = []
        for start in sorted(set(self.periods).union(completed.accounts, *(control.accounts for control in controls))):
            if start + self.period_us <= completed.until_us:
                rows.append(self._row(start, completed.accounts.get(start, [])))
                self.periods.pop(start, None)
            elif controls:
                rows.append(self._row_now(start, controls))
                self.counts(start).emitted += 1
        return pa.Table.from_pylist(rows, schema=self.schema) if rows else None

    def open(self, controls: list[WindowControl]) -> pa.Table:
        """Return the rows of the open periods as of now; where there are none, the columns of a ledger."""
        starts = sorted(set(self.periods).union(*(control.accounts for control in controls)))
        return pa.Table.from_pylist([self._row_now(start, controls) for start in starts], schema=self.schema)

    def _row_now(self, start: int, controls: list[WindowControl]) -> dict[str, float | bool | None]:
        return self._row(start, [control.account(start, as_of_now=True) for control in controls])

    def _row(self, start: int, accounts: list[SlackAccount]) -> dict[str, float | bool | None]:
        counts = self.periods.get(start, WindowCounts())
        answered = counts.rows - ((counts.extra or {}).get("recalled", 0) if self.replaces else 0)
        slacks = [account.slack_area / account.slack_weight_us for account in accounts if account.slack_weight_us]
        return {
            "period_start": start,
            "period_end": start + self.period_us,
            "rows": sum(account.rows for account in accounts),
            "published": counts.rows,
            "target": self.target,
            "rows_held_mean": sum(map(_mean_held, accounts)),
            "rows_held_max": sum(account.held_max for account in accounts),
            "wait_mean_us": counts.wait_us / answered if answered else 0.0,
            "slack_mean_us": sum(slacks) / len(slacks) if slacks else None,
            "emission": counts.emitted,
            **({"learning": any(account.learning == 1 for account in accounts)} if self.learns else {}),
            **(counts.extra or {}),
        }


def restore_window_accounts(spec: WindowedSpec, state: dict[str, Any] | None) -> WindowAccounts:
    """Restore the period accounts of a windowed query from a micro-batch's state; None: before the first."""
    budget, learns = recall_budget(spec, state), learns_safely(spec, state)
    guaranteed, replaces = budget is not None, budget is not None and budget.replaces
    accounts = WindowAccounts(spec.period_us, spec.target, guaranteed=guaranteed, replaces=replaces, learns=learns)
    if state is not None:
        accounts.restore(state["books"])
    return accounts


def _mean_held(account: SlackAccount) -> float:
    return account.held_area / account.weight_us if account.weight_us else 0.0
