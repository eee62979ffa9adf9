"""Which stage answers which query kind. One line per kind; a stage's module is imported when its kind is run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.lake.location import Lake
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.windows import WindowedSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.spark.stage import Stage

_STAGES = {
    "join": ("join", "JoinStage"),
    "aggregate": ("aggregate", "AggregateStage"),
    "topk": ("topk", "TopKStage"),
    "theta_join": ("theta_join", "ThetaJoinStage"),
    "membership": ("membership", "MembershipStage"),
}
_SLACK = ("mp_k_slack", "k_slack", "aq_k_slack")


def stage_of(spec: Spec, spark: SparkSession, lake: Lake) -> Stage:
    """The stage for a query; its events are those that are there once it first asks for them."""
    stage: Stage = _class(spec)(spec, spark, lake.holding())
    return stage


def open_ledger(spec: Spec, state: dict[str, Any]) -> pa.Table:
    """Ledger rows of periods that are still open, from the state alone."""
    found: pa.Table = _class(spec).open_ledger(spec, state)
    return found


def joined_to(spec: JoinSpec, state: dict[str, Any]) -> int:
    """Event time (us) up to which a join has joined every row that arrived; later rows still wait in the reorder buffer. From the state alone."""
    found: int = _class(spec).joined_to(state)
    return found


def last_closed(spec: WindowedSpec, state: dict[str, Any]) -> int:
    """Number of the last window up to which none is open in any shard, of a windowed kind, from the state alone."""
    found: int = _class(spec).last_closed(spec, state)
    return found


def _class(spec: Spec) -> Any:
    module, name = _STAGES[spec.kind]
    if spec.kind == "join" and spec.strategy.name in _SLACK:
        module, name = "join_slack", "SlackJoinStage"
    return getattr(import_module(f"latecomer.spark.{module}"), name)
