"""The examples in docstrings and on the pages give the values that they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "pipelines"
MODULES = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if ">>> " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried and not failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_on_pages(page):
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried and not failed


def test_there_are_examples():
    assert {"latecomer.specs.durations", "latecomer.specs.expressions", "latecomer.specs.loading"} <= set(MODULES)
