"""The quick benchmark of memberships: figures, goals, and rates within their bounds."""

import json
from pathlib import Path

from latecomer.bench import membership as bench


def test_benchmark_runs_and_its_rates_keep_their_bounds(tmp_path: Path) -> None:
    lines: list[str] = []
    summary = bench.run(None, tmp_path, lines.append, quick=True)
    assert json.loads(json.dumps(summary)) == summary and lines
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".csv"}
    assert len(list(tmp_path.glob("*.png"))) >= 7
    for name, line in summary["one_filter"].items():
        if name.startswith("cuckoo"):
            assert line["lost"] == 0 and line["load_factor_at_first_failure"] >= 0.95
            bound = line["false_positive_bound"]
            assert line["false_positive_rate"] <= bound + 4 * (bound / summary["one_filter"]["rows"]) ** 0.5
    assert summary["tables_4_1_to_4_4"]["filters 1"]["standing"][0]["success"] == 1.0
    assert summary["tables_4_1_to_4_4"]["filters 1"]["rebuilt"][0]["success"] == 1.0
    for group in summary["tables_4_1_to_4_4"]["filters 1"].values():
        assert all(queries["success"] == 1.0 for queries in group), "the element was drawn from the one stream asked"
    goals = {goal["name"]: goal for goal in summary["goals"]}
    for name in (
        "elements lost",
        "false-positive rate, largest of ten seeds",
        "load factor at the first failure, b = 4",
    ):
        assert goals[name]["met"], goals[name]
    assert len(goals) >= 7 and len(summary["rates"]["measured"]) == 10
