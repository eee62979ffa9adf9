"""Join, data plane: range-bucketed band joins over Delta tables, told by the control plane what is retained.

One micro-batch, arrivals ``[seq_from, seq_to)``:

1. *Scan* the new rows: running maxima, stream time, and with them the adaptation interval of every arrival.
2. *Count* the pairs they form with one another and with the rows still held, by interval and required retention. Only
   the columns that decide a match are read. Left out where the strategy does not look at pairs.
3. *Decide*: :class:`latecomer.core.join.JoinControl` turns the counts into one short table of horizons.
4. *Join* again, now with every selected column, keeping ``x.ts > H_X(seq_y)``. New rows whose window
   reaches behind the opposite horizon are registered as late.

Held rows are no copy: they are a range of the stored events (``H_X < ts``, ``seq < seq_from``), found by file
statistics. `repair` joins registered late rows with the part of their window that was gone; the two conditions
exclude each other and together are the exact join.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.core.histogram import IntervalStats, SideStats, UNCENSORED, delay_bucket
from latecomer.core.join import Horizons, IntervalSummary, JoinControl, held_bucket_us
from latecomer.core.policies import retention_policy
from latecomer.core.time import FOREVER, NEVER
from latecomer.lake.location import Lake
from latecomer.spark import tables
from latecomer.spark.bands import Grid, band_join
from latecomer.spark.results import JoinColumns
from latecomer.spark.scan import Chunks, running_maxima
from latecomer.spark.stage import FORMAT, Batch, Outcome, RepairBatch, Settled
from latecomer.specs.join import JoinSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Int64 = np.ndarray
