"""The Python API: the page about it runs as written, and its errors are those of the commands."""

import re
import subprocess
import sys
from pathlib import Path

import latecomer as lc
import pandas as pd
import pytest
from latecomer.jobs import init_project
from latecomer.lake import result_views
from latecomer.lake.errors import InputError, LatecomerError
from latecomer.quality.checks import CheckFailed
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_page_runs_as_written(spark, tmp_path, monkeypatch, capsys):
    init_project.make(tmp_path / "shop", True)
    monkeypatch.chdir(tmp_path / "shop")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        exec(block, names)
    answers, lake, query = names["answers"], names["lake"], names["query"]
    assert f"{len(answers)} answers in {tmp_path}/shop/lake/results/clicks_after_views" in capsys.readouterr().out
    assert len(answers) == result_views.results(lake.tables, query.spec).num_rows > len(names["repaired"]) > 0
    assert lake.results(query).spark().count() == len(answers)
    assert (names["periods"]["achieved_final"] == 1).all()
    assert set(names["corrected"]["why"].to_pylist()) == {"repair"}
    explained = lake.explain(names["pages"])
    assert explained.to_text()
    other = lc.join("other", streams={"l": "a", "r": "b"}, window="1 s", strategy="exact")
    with pytest.raises(InputError, match="was not published"):
        lake.results(other).arrow()
    failed = lake.check(query)
    failed.results.append({"success": False, "message": "broken"})
    with pytest.raises(CheckFailed, match="broken") as raised:
        failed.raise_for_failure()
    assert isinstance(raised.value, LatecomerError) and raised.value.exit_code == 1
    assert isinstance(answers, pd.DataFrame)


def test_arguments_make_the_query_that_a_file_makes():
    text = "name: q\nkind: theta_join\nstreams: {r: a, s: b}\nwindow: 5 s\nconditions: [r.v > s.v]\nemit: count\n"
    streams = {"r": "a", "s": "b"}
    made = lc.theta_join("q", streams=streams, window="5 s", conditions=["r.v > s.v"], emit="count")
    assert made.spec.fingerprint() == lc.Query.parse(text).spec.fingerprint()
    assert {kind for kind in KINDS if callable(getattr(lc, kind))} == set(KINDS)
    pair = lc.join("q", streams=streams, window="1 s", keys=["k"], strategy="exact", description="text")
    assert (pair.kind, pair.spec.description) == ("join", "text")
    both = lc.membership("q", streams=streams, window="1 s", element="k")
    assert both.kind == "membership"
    with pytest.raises(SpecError, match=r"lc\.join: windw: "):
        lc.join("q", streams=streams, window="1 s", strategy="exact", windw="2 s")


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, latecomer.specs.loading; print({'numpy', 'pyspark', 'latecomer.api'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
