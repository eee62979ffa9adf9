"""Period accounts: the counts that `run` keeps of every period that is still open.

An account belongs to one period of stream time. It is closed, and written as a row of the ledger, once nothing can be
added to it, so the row does not depend on where micro-batches are cut. A flush writes the open accounts too, and once
more (``emission`` 1, 2, ...) should arrivals follow after all.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

TOTALS = ("rows_read", "on_time", "late")


CountsType = TypeVar("CountsType")


class PeriodAccounts(Generic[CountsType]):
    """The accounts of a query's open periods; its kinds add what they count and the columns of their row.

    Attributes
    ----------
    periods : dict of int to counts
        The open periods by their start in us.
    totals : dict of str to int
        Rows read, results on time and late rows since the query began.
    """

    counts_type: ClassVar[type[Any]]
    """Dataclass of a period's counts. Its fields, in their order, are what the state stores of a period."""

    def __init__(self, period_us: int, target: float) -> None:
        self.period_us, self.target = period_us, target
        self.periods: dict[int, CountsType] = {}
        self.totals = dict.fromkeys(TOTALS, 0)

    def counts(self, period: int) -> CountsType:
        """Return the counts of a period, which is opened where it is new."""
        if period not in self.periods:
            self.periods[period] = self.counts_type()
        return self.periods[period]

    def add_totals(self, rows_read: int, on_time: int, late: int) -> None:
        """Add the counts of a micro-batch to the totals."""
        for name, count in zip(TOTALS, (rows_read, on_time, late), strict=True):
            self.totals[name] += count

    def to_dict(self) -> dict[str, Any]:
        """Return the accounts as a JSON document."""
        periods = {str(start): list(vars(counts).values()) for start, counts in self.periods.items()}
        return {"periods": periods, "totals": dict(self.totals)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a document of :meth:`to_dict`."""
        self.periods = {int(start): self.counts_type(*values) for start, values in state["periods"].items()}
        self.totals = {name: state["totals"][name] for name in TOTALS}
