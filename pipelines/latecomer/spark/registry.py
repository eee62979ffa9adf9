"""Which stage answers which query kind. One line per kind; the module of a kind is imported when the kind is run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from latecomer.lake.lake import Lake
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.spark.stage import Stage
    from latecomer.spark.windows.stage import WindowedStage

_WINDOWED = {
    "aggregate": ("aggregate.windows", "AggregateWindows"),
    "topk": ("topk.windows", "TopKWindows"),
    "theta_join": ("theta_join.windows", "ThetaJoinWindows"),
    "membership": ("membership.windows", "MembershipWindows"),
}
_JOIN = ("join.stage", "JoinStage")
_REORDERING_JOIN = ("join.k_slack_stage", "SlackJoinStage")


def stage_of(spec: Spec, spark: SparkSession, lake: Lake) -> Stage:
    """Make the stage of a query. It reads the events that are stored when it first reads any."""
    if isinstance(spec, WindowedSpec):
        return windowed_stage(spec, spark, lake)
    assert isinstance(spec, JoinSpec)
    stage: Stage = _imported(*(_REORDERING_JOIN if spec.strategy.reorders else _JOIN))(spec, spark, lake.snapshot())
    return stage


def windowed_stage(spec: WindowedSpec, spark: SparkSession, lake: Lake) -> WindowedStage:
    """Make the stage of a windowed query, with what its kind computes."""
    from latecomer.spark.windows.stage import WindowedStage

    return WindowedStage(spec, spark, lake.snapshot(), _imported(*_WINDOWED[spec.kind]))


def _imported(module: str, name: str) -> Any:
    return getattr(import_module(f"latecomer.spark.{module}"), name)
