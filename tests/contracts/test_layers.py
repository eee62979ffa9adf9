"""Arrows point down only, and what Airflow parses stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pipelines" / "latecomer"
ORDER = ["specs", "core", "baselines", "reference", "lake", "spark", "quality", "jobs"]
MAY = {
    "specs": {"specs"},
    "core": {"core"},
    "baselines": {"core", "baselines"},
    "reference": {"core", "reference", "specs"},
    "lake": {"core", "lake", "specs"},
    "spark": {"core", "baselines", "lake", "spark", "specs"},
    "quality": {"core", "lake", "spark", "quality", "specs"},
    "jobs": set(ORDER) - {"reference"},
}
ENGINES = {"pyspark", "airflow", "deltalake", "great_expectations"}
FORBIDDEN = {
    "specs": ENGINES | {"numpy", "pandas", "pyarrow"},
    "core": ENGINES | {"time", "datetime"},
    "lake": {"pyspark", "airflow"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "latecomer")


@pytest.mark.parametrize("layer", ORDER)
def test_layer_imports_only_what_lies_below(layer):
    wrong = []
    for path in (PACKAGE / layer).rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "latecomer" and len(parts) > 1 and parts[1] in ORDER and parts[1] not in MAY[layer]:
                wrong.append(f"{path.name}: {name}")
            if parts[0] in FORBIDDEN.get(layer, ()):
                wrong.append(f"{path.name}: {name}")
    assert not wrong


def test_the_rule_can_fail():
    assert "numpy" in set(imports(PACKAGE / "core" / "join.py"))


def test_dag_files_import_nothing_heavy():
    code = (
        "import sys; sys.path.insert(0, 'dags'); import latecomer_queries, latecomer_ingest;"
        "print([m for m in ('pyspark', 'pandas', 'numpy', 'pyarrow', 'deltalake') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr[-500:]


def test_arrow_tables_reach_spark_in_one_way():
    """`tables.handed` alone knows what Spark makes of empty chunks."""
    for path in (PACKAGE / "spark").glob("*.py"):
        calls = path.read_text(encoding="utf-8").count(".createDataFrame(")
        assert calls == (2 if path.name == "tables.py" else 0), path.name


def test_no_registry_host_is_named():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "maven" + ".org", "repo1" + "."]
    for name in listed:
        content = (ROOT / name).read_bytes()
        assert not any(host.encode() in content for host in hosts), name
