"""What every query kind's Spark stage offers to the runner, and nothing more.

A stage is handed a micro-batch (a range of the arrival order) and the state its predecessor left; it answers with rows
to write and, once they are written, with the next state. It never commits: the runner does, in one order, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 1
"""Version of the state's layout. A lake written with another one is refused, never misread."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: arrivals ``[seq_from, seq_to)``; `flush` says that nothing comes after them."""

    number: int
    seq_from: int
    seq_to: int
    flush: bool = False


@dataclass(frozen=True)
class Settled:
    """What a micro-batch leaves behind: rows for the ledger, the next state, and counts for people."""

    ledger: pa.Table | None
    state: dict[str, Any]
    counts: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """What a micro-batch produced.

    Attributes
    ----------
    on_time, late
        Rows to append, None where there are none.
    settle
        Called once both are committed, with the number of committed on-time rows per period (start in us).
    release
        Frees what the stage cached.
    """

    on_time: DataFrame | None
    late: DataFrame | None
    settle: Callable[[dict[int, int]], Settled]
    release: Callable[[], None]


class Stage(Protocol):
    """One query kind on Spark."""

    def process(self, batch: Batch, state: dict[str, Any] | None) -> Outcome:
        """Answer one micro-batch. `state` is None at the first."""

    def repair(self, late: DataFrame, repaired_in: pa.Table) -> DataFrame:
        """Corrections for rows of the query's late table.

        `repaired_in` holds ``seq`` and ``repaired_in`` (int64): which rows to repair, and the arrival that closed
        the Gamma batch of each.
        """
