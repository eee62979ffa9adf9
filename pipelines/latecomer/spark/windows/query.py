"""A windowed query over one lake: its spec, its session, and the streams that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from latecomer.core.windows.grid import Grid
from latecomer.lake.lake import Lake
from latecomer.spark.engine.query_columns import open_streams, with_wide_columns
from latecomer.spark.stage import StageCache
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

S = TypeVar("S", bound=WindowedSpec)
S_co = TypeVar("S_co", bound=WindowedSpec, covariant=True)


@dataclass(frozen=True)
class WindowQuery(Generic[S_co]):
    """A windowed query over one lake.

    Attributes
    ----------
    asked
        The query as its file has it, for messages.
    spec
        The query as Spark computes it (:func:`latecomer.spark.engine.query_columns.with_wide_columns`).
    spark, lake
        The session, and a snapshot of the lake.
    cache
        Rows and values that are kept in Spark until the stage is released.
    events
        Stream name -> no events of it, with its columns; in the order of the query.
    """

    asked: S_co
    spec: S_co
    spark: SparkSession
    lake: Lake
    cache: StageCache
    events: dict[str, DataFrame]

    @property
    def grid(self) -> Grid:
        """The windows that result rows identify."""
        return self.spec.window

    @cached_property
    def sources(self) -> list[str]:
        """The streams that are read, each once; a row's ``side`` is a place in this list."""
        return list(self.events)

    @cached_property
    def groups(self) -> list[str]:
        """Names of the group columns inside the stage: ``g{i}``."""
        return [f"g{i}" for i in range(len(self.spec.group_by))]


def open_query(spec: S, spark: SparkSession, lake: Lake, cache: StageCache) -> WindowQuery[S]:
    """Open the streams of a query.

    Raises
    ------
    SpecError
        A stream is not in the lake.
    """
    events = open_streams(spec, spark, lake)
    return WindowQuery(spec, with_wide_columns(spec, events), spark, lake, cache, events)
