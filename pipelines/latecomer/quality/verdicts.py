"""The verdicts about a query's periods, as `check` stores them in ``verdicts/<query>``.

`check` is the one writer, under the lease ``check-<query>``. It holds the lease while it commits, and not while it
looks. So two checks may run at once: a check that has seen less of the query than the last stored verdicts leaves its
own out, and one that finds the lease held tries again for a moment and then leaves them to the next check. Each commit
appends the verdicts that one check has added, as one Delta transaction. A check that is killed before it has reported
them does not make them old: the last reported commit is in ``checks/<query>``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray

from latecomer.lake import crash_points, journal
from latecomer.lake.delta import TIMESTAMP, timestamp
from latecomer.lake.errors import InputError, LatecomerError, LeaseHeld
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.quality import promise
from latecomer.specs.spec import Spec

SCHEMA = pa.schema(
    [
        ("period_start", TIMESTAMP),
        ("period_end", TIMESTAMP),
        ("judgement", pa.int32()),
        ("judged", TIMESTAMP),
        ("kept", pa.bool_()),
        ("due", pa.int64()),
        ("on_time", pa.int64()),
        ("answers", pa.int64()),
        ("answers_off", pa.int64()),
        ("achieved", pa.float64()),
        ("needed", pa.float64()),
        ("target", pa.float64()),
        ("rows", pa.int64()),
        ("rows_ahead", pa.int64()),
        ("rule", pa.int32()),
        ("commit", pa.int64()),
        ("seq_to", pa.int64()),
        ("repaired_to", pa.int64()),
    ]
)
"""Columns of ``verdicts/<query>``; docs/tables.md says what they hold."""
FAST_US = 60_000_000
"""A row that is further ahead of its arrival has a suspected clock."""
TRIES, PAUSE_S = 5, 0.3
"""Attempts to take the lease, and seconds between two."""


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of a query, as one check knows them.

    Attributes
    ----------
    last
        The last verdict of each period, by start, in the columns of `SCHEMA`.
    added
        Those of them that this check has added; their ``commit`` is the one that will hold them.
    """

    last: pd.DataFrame
    added: pd.DataFrame

    def is_new(self, reported: int) -> NDArray[np.bool_]:
        """Return which of the last verdicts came after the commit `reported`, the last that a check has reported."""
        return np.asarray(self.last["commit"].to_numpy(np.int64) > reported)

    @property
    def commit(self) -> int:
        """The last commit that holds verdicts, or will; -1: none."""
        return int(self.last["commit"].max()) if len(self.last) else -1


def find(lake: Lake, spec: Spec, ledger: pd.DataFrame, complete_to_us: int, seq_to: int, repaired_to: int) -> Verdicts:
    """Judge the periods that can be judged and whose counts are not those of their stored verdict.

    A query that promises nothing has no verdicts.

    Parameters
    ----------
    ledger, complete_to_us
        As for :func:`latecomer.quality.promise.verdicts`.
    seq_to, repaired_to
        The arrivals that `run` and `repair` had committed when the ledger was read.
    """
    if not spec.promises:
        empty = SCHEMA.empty_table().to_pandas()
        return Verdicts(empty, empty)
    stored = _read(lake, spec.name)
    before = promise.merged(stored, stored[:0])
    added = promise.changed(before, promise.verdicts(spec, ledger, complete_to_us, before["period_start"]))
    counts = _count_fast_rows(lake, spec, added, seq_to)
    added = added.assign(
        judged=pd.Timestamp(datetime.now(UTC)).floor("us"),
        rows=counts[0],
        rows_ahead=counts[1],
        rule=promise.RULE,
        commit=(int(stored["commit"].max()) + 1) if len(stored) else 0,
        seq_to=seq_to,
        repaired_to=repaired_to,
    )
    return Verdicts(promise.merged(before, added), added)


def store(lake: Lake, query: str, verdicts: Verdicts) -> bool:
    """Commit the verdicts that a check has added.

    Returns
    -------
    bool
        False if they are left to the next check: the lake cannot be written, the query was forgotten meanwhile, or
        another check is at work or has seen more of the query.
    """
    added = verdicts.added
    if not len(added):
        return True
    if lake.unwritable() is not None:
        return False
    table = lake.table("verdicts", query)
    for attempt in range(TRIES):
        try:
            with Lease(lake, f"check-{query}") as lease:
                number, seq_to, repaired_to = (int(added[name].iloc[0]) for name in ("commit", "seq_to", "repaired_to"))
                if not holds(lake, query, seq_to) or table.last_version("check") != (number - 1 if number else None):
                    return False
                seen = table.read(columns=["seq_to", "repaired_to"])
                if seen is not None and (
                    pc.max(seen["seq_to"]).as_py() > seq_to or pc.max(seen["repaired_to"]).as_py() > repaired_to
                ):
                    return False
                rows = pa.Table.from_pandas(added[SCHEMA.names], schema=SCHEMA, preserve_index=False)
                lease.confirm()
                table.append(rows, "check", number)
                compact_and_vacuum([table])
        except LeaseHeld:
            if attempt + 1 < TRIES:
                time.sleep(PAUSE_S)
            continue
        except (DeltaError, InputError):  # another check was first, or the store is only readable
            return False
        crash_points.point("check:verdicts")
        return True
    return False


def holds(lake: Lake, query: str, seq_to: int) -> bool:
    """Tell whether the lake still holds the query, in a state that has read the arrivals before `seq_to`."""
    try:
        state = journal.load_state(lake, query)
    except LatecomerError:
        return False
    return state is not None and state.seq_to >= seq_to


def history(lake: Lake, query: str) -> pd.DataFrame:
    """Return every verdict, also if a later one has replaced it, by period and judgement."""
    rows = _read(lake, query)
    return rows.sort_values(["period_start", "judgement"]).reset_index(drop=True)


def _read(lake: Lake, query: str) -> pd.DataFrame:
    rows = lake.table("verdicts", query).read()
    frame = (SCHEMA.empty_table() if rows is None else rows.select(SCHEMA.names)).to_pandas()
    return frame.astype({"answers": "Int64", "answers_off": "Int64"})


def _count_fast_rows(lake: Lake, spec: Spec, periods: pd.DataFrame, seq_to: int) -> tuple[NDArray[np.int64], ...]:
    """Count the rows with event times in each period, and those of them that are ahead of their arrivals.

    Streams without arrival times count as nothing. Of the events, the files that may hold such rows are read, in
    batches, two columns of them.
    """
    rows, fast = np.zeros(len(periods), np.int64), np.zeros(len(periods), np.int64)
    if not len(periods):
        return rows, fast
    starts = promise.microseconds(periods["period_start"])
    last_end = int(starts[-1]) + spec.period_us
    event = pc.field("event_ts")
    inside = (pc.field("seq") < seq_to) & (event >= timestamp(int(starts[0]))) & (event < timestamp(last_end))
    for stream in spec.stream_names:
        table = lake.table("events", stream)
        if "arrival_ts" not in table.schema().names:
            continue
        for batch in table.batches(["event_ts", "arrival_ts"], inside & pc.field("arrival_ts").is_valid()):
            event_us, arrival_us = (batch.column(name).cast(pa.int64()).to_numpy() for name in range(2))
            place = np.searchsorted(starts, event_us, side="right") - 1
            here = event_us < starts[place] + spec.period_us
            rows += np.bincount(place[here], minlength=len(starts))
            fast += np.bincount(place[here & (event_us - arrival_us > FAST_US)], minlength=len(starts))
    return rows, fast
