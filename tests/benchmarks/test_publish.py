"""The quick benchmark of publications: they publish exactly the rows that were written, and its goal is judged."""

import csv

from latecomer.bench import publish as bench


def test_quick_benchmark_publishes_what_was_written(tmp_path):
    summary = bench.run(None, tmp_path, lambda line: None, quick=True)
    with (tmp_path / "publish.csv").open() as file:
        lines = {line["publication"]: line for line in csv.DictReader(file)}
    all_rows, corrected = bench.QUICK_WINDOWS * bench.QUICK_GROUPS, 2 * bench.QUICK_GROUPS
    changes = {name: (int(line["inserted"]), int(line["updated"])) for name, line in lines.items()}
    assert changes == {
        "first": (all_rows, 0),
        "recent": (0, corrected),
        "scattered": (0, corrected),
        "new": (corrected, 0),
        "nothing": (0, 0),
    }
    assert int(lines["nothing"]["rows"]) == all_rows + corrected
    assert [goal["met"] for goal in summary["goals"]] == [True]
