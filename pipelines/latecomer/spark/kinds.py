"""Which stage answers which query kind. One line per kind; a stage's module is imported when its kind is run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.spark.stage import Stage

_STAGES = {
    "aggregate": ("aggregate", "AggregateStage"),
    "topk": ("topk", "TopKStage"),
    "theta_join": ("theta_join", "ThetaJoinStage"),
    "membership": ("membership", "MembershipStage"),
}
_SLACK = ("mp_k_slack", "k_slack", "aq_k_slack")


def stage_of(spec: Any, spark: SparkSession, lake: Lake, parameters: dict[str, Any] | None = None) -> Stage:
    """The stage for a query."""
    if spec.kind == "join":
        if spec.strategy.name in _SLACK:
            return import_module("latecomer.spark.join_slack").SlackJoinStage(spec, spark, lake)
        return import_module("latecomer.spark.join").JoinStage(spec, spark, lake, parameters)
    module, name = _STAGES[spec.kind]
    stage: Stage = getattr(import_module(f"latecomer.spark.{module}"), name)(spec, spark, lake, parameters)
    return stage


def open_ledger(spec: Any, state: dict[str, Any]) -> pa.Table | None:
    """Ledger rows of periods that are still open, from the state alone."""
    return import_module(f"latecomer.spark.{spec.kind}").open_ledger(spec, state)
