"""Which stage answers which query kind. One line per kind; a stage's module is imported when its kind is run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from latecomer.lake.lake import Lake
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.spark.stage import Stage

_STAGES = {
    "join": ("join.stage", "JoinStage"),
    "aggregate": ("aggregate.stage", "AggregateStage"),
    "topk": ("topk.stage", "TopKStage"),
    "theta_join": ("theta_join.stage", "ThetaJoinStage"),
    "membership": ("membership.stage", "MembershipStage"),
}
_REORDERING_JOIN = ("join.k_slack_stage", "SlackJoinStage")


def stage_of(spec: Spec, spark: SparkSession, lake: Lake) -> Stage:
    """The stage for a query; its events are those that are there once it first asks for them."""
    reorders = isinstance(spec, JoinSpec) and spec.strategy.reorders
    module, name = _REORDERING_JOIN if reorders else _STAGES[spec.kind]
    stage: Stage = getattr(import_module(f"latecomer.spark.{module}"), name)(spec, spark, lake.snapshot())
    return stage
