"""The quick benchmark of top-k: its figures, and the order of its methods."""

import json
from pathlib import Path

from latecomer.bench import topk as bench


def test_waiting_methods_reach_more_and_wait_longer(tmp_path: Path):
    lines: list[str] = []
    figures = bench.run(None, tmp_path, lines.append, quick=True)
    json.dumps(figures)
    assert {p.suffix for p in tmp_path.iterdir()} == {".png", ".csv"} and lines
    severe = figures["disorder"]["severe"]["methods"]
    assert severe["adaptive_wait"]["hit_rate"] > severe["sma"]["hit_rate"] == severe["min_topk"]["hit_rate"]
    assert severe["adaptive_wait"]["hit_rate"] > 0.9
    assert severe["sma"]["latency_s"] <= severe["adaptive_wait"]["latency_s"]
