"""A spec adapts exactly if its strategy's policies learn: `adapt` and the DAGs rely on the spec. Starts no Spark."""

from __future__ import annotations

import pytest
from latecomer.core.join.least_rows import LeastRows
from latecomer.core.join.retention_policies import CalibratedRetention, QJoinRetention
from latecomer.specs import aggregate as aggregates
from latecomer.specs import join as joins
from latecomer.specs import topk as topks
from latecomer.specs.loading import parse_query
from latecomer.strategies.join import retention_parameters, retention_policy
from latecomer.strategies.windows import slack_policies

WINDOWED = {
    "aggregate": ("streams: {s: a}\nwindow: 1 s\nselect: {n: count()}\n"
                  "quality: {error: 0.1, probability: 0.9, period: 1 s}", aggregates),
    "topk": ("streams: {s: a}\nwindow: 1 s\nscore: v\nk: 2\nquality: {hit_rate: 0.9, period: 1 s}", topks),
}  # fmt: skip


def strategy_yaml(name: str) -> str:
    return f"{{name: {name}, slack: 1 s}}" if name == "k_slack" else name


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (_, specs) in WINDOWED.items() for name in specs.STRATEGIES]
)
def test_a_windowed_strategy_adapts_if_its_policies_need_observations(kind: str, name: str) -> None:
    text, _ = WINDOWED[kind]
    spec = parse_query(f"name: q\nkind: {kind}\n{text}\nstrategy: {strategy_yaml(name)}\n")
    policies = slack_policies(spec)
    assert {policy.needs_observation for policy in policies} == {spec.adapts}


@pytest.mark.parametrize("recall", [0.9, 1])
@pytest.mark.parametrize(
    "name", [*joins.STRATEGIES, *(f"{{name: qjoin, estimator: {estimator}}}" for estimator in joins.ESTIMATORS)]
)
def test_a_join_adapts_if_its_policy_learns(name: str, recall: float) -> None:
    text = f"name: q\nkind: join\nstreams: {{l: a, r: b}}\nwindow: 1 s\nquality: {{recall: {recall}, period: 1 s}}"
    spec = parse_query(f"{text}\nstrategy: {strategy_yaml(name)}\n")
    policy = retention_policy(retention_parameters(spec), None, None)
    assert isinstance(policy, (CalibratedRetention, LeastRows, QJoinRetention)) == spec.adapts
