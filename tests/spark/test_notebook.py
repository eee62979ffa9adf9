"""The notebook of the documentation: its cells run in order, and say what its text says of them."""

import ast
import json
import os
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture
def cells():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(cell, names):
    """Run a cell as a notebook does, and return the value of its last expression, None without one."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_the_cells_run_in_order(spark, cells, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    names = {}
    shown = [execute(cell, names) for cell in cells]
    assert Path(os.getcwd()).is_relative_to(tmp_path)
    said = capsys.readouterr().out
    assert "answers after half of the rows" in said and names["first"].inserted > 100
    kinds = next(value for value in shown if getattr(value, "index", None) is not None and value.index.nlevels == 2)
    assert {("insert", "first answer"), ("insert", "repair")} <= set(kinds.index)
    assert names["pages"]["clicks"].sum() == len(names["answers"]) == names["second"].rows
    assert names["pages"]["repaired"].sum() == kinds["insert", "repair"] > 0
    assert (names["ledger"]["missed"] == names["ledger"]["repaired"]).all()
    assert "0.95" in names["curve"].to_text()


def test_it_is_stored_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")
