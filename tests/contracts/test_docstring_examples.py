"""The examples in docstrings run and give what they show. No example may start Spark."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
PATHS = [path for path in sorted(PIPELINES.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


def module_name(path: Path) -> str:
    """Return the import name of a file of the package."""
    parts = path.relative_to(PIPELINES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", [module_name(path) for path in PATHS])
def test_examples_give_what_they_show(name):
    failed, attempted = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert attempted and not failed


def test_examples_are_found():
    assert "latecomer.specs.expressions" in map(module_name, PATHS)
