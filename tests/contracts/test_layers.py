"""Arrows point down only, and what Airflow parses stays light."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pipelines" / "latecomer"
MAY = {
    "specs": {"core"},
    "core": set(),
    "baselines": {"core"},
    "strategies": {"specs", "core"},
    "reference": {"specs", "core"},
    "lake": {"specs", "core"},
    "ledger": {"specs", "core", "strategies", "lake"},
    "spark": {"specs", "core", "baselines", "strategies", "lake", "ledger"},
    "ingest": {"specs", "core", "lake", "spark"},
    "quality": {"specs", "core", "lake", "ledger", "spark"},
    "bench": {"specs", "core", "baselines", "strategies", "lake", "ledger", "spark", "ingest", "quality"},
    "jobs": {"specs", "core", "lake", "ledger", "spark", "ingest", "quality", "bench"},
    "airflow": {"specs", "core", "lake", "spark", "ingest", "quality", "jobs"},
}
"""Layer -> the layers below it that it may import from, beside itself; `reference` is for tests alone."""
ENGINES = {"pyspark", "airflow", "deltalake", "great_expectations"}
FILES = {
    "pathlib",
    "os",
    "io",
    "glob",
    "shutil",
    "tempfile",
    "mmap",
    "fcntl",
    "gzip",
    "bz2",
    "lzma",
    "zipfile",
    "tarfile",
}
OPENERS = {
    "open",
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
    "OSFile",
    "memory_map",
    "fromfile",
    "loadtxt",
}
"""Calls that reach a file without an import of :data:`FILES`."""
PURE = {"core", "baselines", "strategies"}
"""Layers that neither start an engine, nor read a clock, nor open a file."""
FORBIDDEN = {
    "specs": ENGINES | {"numpy", "pandas", "pyarrow"},
    "lake": {"pyspark", "airflow"},
    **dict.fromkeys(PURE, ENGINES | {"time", "datetime"} | FILES),
}


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "latecomer")


def canonical(distribution):
    return distribution.lower().replace("_", "-")


def called(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def breaches(source, layer):
    """Yield the imports and calls of a module that its layer may not have."""
    tree = ast.parse(source)
    for name in imports(tree):
        parts = name.split(".")
        if parts[0] == "latecomer" and len(parts) > 1 and parts[1] in MAY and parts[1] not in {layer, *MAY[layer]}:
            yield name
        if parts[0] in FORBIDDEN.get(layer, ()):
            yield name
    if layer in PURE:
        yield from (f"calls {name}" for name in called(tree) if name in OPENERS)


def private(source):
    """Names that a module takes from another one of the package, although they begin with an underscore."""
    tree = ast.parse(source)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("latecomer"):
            yield from (
                f"{node.module}.{alias.name}"
                for alias in node.names
                if alias.name.startswith("_") and alias.name[:2] != "__"
            )
            modules |= {alias.asname or alias.name for alias in node.names if alias.name.islower()}
    of_modules = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))
    yield from (f"{n.value.id}.{n.attr}" for n in of_modules if n.value.id in modules and n.attr.startswith("_"))


def import_graph(sources):
    """Module -> the modules among `sources` that it imports anywhere, also for types only."""
    graph = {}
    for module, source in sources.items():
        names = set(imports(ast.parse(source)))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        graph[module] = names & sources.keys() - {module}
    return graph


def module_name(path):
    """Return the dotted name of a module; an ``__init__.py`` has the name of its package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle():
    paths = list(PACKAGE.rglob("*.py"))
    graph = import_graph({module_name(path): path.read_text(encoding="utf-8") for path in paths})
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(paths)


@pytest.mark.parametrize(
    "circle",
    [
        {"latecomer.a": "from latecomer import b", "latecomer.b": "import latecomer.a"},
        {"latecomer.a": "from latecomer.a.b import f", "latecomer.a.b": "from latecomer.a import g"},
    ],
    ids=["two modules", "a package and its module"],
)
def test_a_circle_is_found(circle):
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(import_graph(circle)).prepare()


@pytest.mark.parametrize("layer", MAY)
def test_a_layer_does_only_what_it_may(layer):
    wrong = []
    for path in (PACKAGE / layer).rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        wrong += [f"{path.name}: {breach}" for breach in (*breaches(source, layer), *private(source))]
    assert not wrong


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "from pathlib import Path"),
        ("core", "import gzip"),
        ("core", "from datetime import datetime"),
        ("core", "def f(path):\n    return open(path).read()"),
        ("core", "def f(path):\n    return path.read_bytes()"),
        ("core", "from latecomer.lake import small"),
        ("core", "from latecomer.specs.reader import STREAM"),
        ("baselines", "import pyspark"),
        ("baselines", "from time import perf_counter"),
        ("baselines", "import numpy as np\nnp.fromfile('rows')"),
        ("strategies", "import datetime"),
        ("strategies", "from pathlib import Path"),
        ("strategies", "def f(path):\n    return open(path).read()"),
        ("specs", "import numpy as np"),
        ("lake", "from pyspark.sql import DataFrame"),
        ("lake", "from latecomer import spark"),
    ],
)
def test_the_rule_can_fail(layer, source):
    assert list(breaches(source, layer))


def test_the_rule_of_private_names_can_fail():
    assert list(private("from latecomer.ingest.text_parser import _header"))
    assert list(private("from latecomer.core import landing as core\ncore._header(b'')"))
    assert not list(private("from latecomer.lake.lake import Lake\nimport numpy as np\nnp._x"))


def test_only_tests_import_the_reference():
    assert not any("reference" in below for below in MAY.values())


def test_nothing_that_run_imports_imports_the_benchmarks():
    above = {"bench", "jobs", "airflow"}
    assert all("bench" not in below for layer, below in MAY.items() if layer not in above)


def test_dag_files_import_nothing_heavy():
    code = (
        "import sys; sys.path.insert(0, 'dags'); import latecomer_dags;"
        "print([m for m in ('pyspark', 'pandas', 'numpy', 'pyarrow', 'deltalake') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr[-500:]


def test_arrow_tables_reach_spark_in_one_way():
    """`tables.to_spark` alone knows what Spark makes of empty chunks."""
    for path in (path for layer in ("spark", "ingest") for path in (PACKAGE / layer).rglob("*.py")):
        calls = path.read_text(encoding="utf-8").count(".createDataFrame(")
        assert calls == (2 if path == PACKAGE / "spark" / "engine" / "tables.py" else 0), path


def test_no_registry_host_is_named():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "maven" + ".org", "repo1" + "."]
    for name in listed:
        content = (ROOT / name).read_bytes()
        assert not any(host.encode() in content for host in hosts), name


def test_what_is_imported_is_declared():
    """A package that another one brings today is missing the day that one no longer needs it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = declared["optional-dependencies"]
    of_users = [package for extra in extras.keys() - {"dev", "bench"} for package in extras[extra]]
    product = [*declared["dependencies"], *of_users]
    folders = {"pipelines": product, "dags": product, "plugins": product}
    everything = [*product, *extras["dev"]]
    folders |= {"tests": everything, "infra": everything}
    brings = metadata.packages_distributions()
    missing = set()
    for folder, packages in folders.items():
        names = {canonical(re.split(r"[^\w.-]", package, maxsplit=1)[0]) for package in packages}
        for path in (ROOT / folder).rglob("*.py"):
            tops = {name.split(".")[0] for name in imports(ast.parse(path.read_text(encoding="utf-8")))}
            foreign = tops - {"latecomer", "tests"} - sys.stdlib_module_names
            missing |= {
                f"{path.name}: {top}" for top in foreign if not names & set(map(canonical, brings.get(top, [top])))
            }
    assert not missing
