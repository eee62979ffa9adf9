"""The quick benchmark of theta joins and its figures."""

import json
from pathlib import Path

from latecomer.bench import theta_join as bench


def test_benchmark_runs_quickly(tmp_path: Path):
    lines = []
    figures = bench.run(None, tmp_path, lines.append, quick=True)
    json.dumps(figures)
    assert lines
    written = {file.name for file in tmp_path.iterdir()}
    for name in ("figure_4_4", "figure_4_5", "figure_4_6", "figure_4_7", "table_4_5"):
        assert f"theta_join_{name}.png" in written and f"theta_join_{name}.csv" in written
