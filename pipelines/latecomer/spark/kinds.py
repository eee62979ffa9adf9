"""Which stage answers which query kind. One line per kind; a stage's module is imported when its kind is run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latecomer.spark.stage import Stage

_SLACK = ("mp_k_slack", "k_slack", "aq_k_slack")


def stage_of(spec: Any, spark: SparkSession, lake: Lake, parameters: dict[str, Any] | None = None) -> Stage:
    """The stage for a query.

    Raises
    ------
    InputError
        The kind cannot be run by this version.
    """
    from latecomer.lake.errors import InputError

    if spec.kind == "join":
        if spec.strategy.name in _SLACK:
            return import_module("latecomer.spark.join_slack").SlackJoinStage(spec, spark, lake)
        return import_module("latecomer.spark.join").JoinStage(spec, spark, lake, parameters)
    raise InputError(f"query {spec.name}: kind", spec.kind, "cannot be run by this version yet", "see the CHANGELOG")


def open_ledger(spec: Any, state: dict[str, Any]) -> pa.Table | None:
    """Ledger rows of periods that are still open, from the state alone."""
    return import_module(f"latecomer.spark.{spec.kind}").open_ledger(spec, state)
