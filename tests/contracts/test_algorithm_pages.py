"""Pages about algorithms, architecture and experiments are true: their examples run, and the files they name exist."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "pipelines" / "latecomer"
ROOMS = "|".join(sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()))
PAGES = [DOCS / "architecture.md", *sorted((DOCS / "algorithms").glob("*.md"))]
NAMING = [*PAGES, *sorted((DOCS / "experiments").glob("*.md"))]
FENCE = re.compile(r"^```.*$", re.MULTILINE)
MODULE = re.compile(rf"`((?:{ROOMS})/[\w/]+(?:\.py|/))`")
TEST = re.compile(r"`(tests/[\w/]+\.py)`")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


def missing_files(page, text):
    """Return the modules, tests and pictures that the text of a page names and that do not exist."""
    places = [(PACKAGE, MODULE), (ROOT, TEST), (page.parent, PICTURE)]
    return [name for folder, pattern in places for name in pattern.findall(text) if not (folder / name).exists()]


def failed_examples(text):
    """Return the number of examples in a page's text that give something else than the page shows."""
    example = doctest.DocTestParser().get_doctest(FENCE.sub("", text), {}, "page", None, 0)
    return doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_give_what_the_page_shows(page):
    assert not failed_examples(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.stem)
def test_named_files_exist(page):
    assert not missing_files(page, page.read_text(encoding="utf-8"))


def test_a_wrong_page_fails():
    assert failed_examples("```python\n>>> 1 + 1\n3\n```\n")
    assert missing_files(DOCS / "page.md", "`core/nowhere.py`, `tests/nowhere.py`, ![a picture](nowhere.svg)") == [
        "core/nowhere.py",
        "tests/nowhere.py",
        "nowhere.svg",
    ]
