"""Modules, tests and pictures that a page names exist, and so do the pages that Python sources name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "pipelines" / "latecomer"
LAYERS = "|".join(sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()))
MODULE = re.compile(rf"`((?:{LAYERS})/[\w/]+(?:\.py|/))`")
TEST = re.compile(r"`(tests/[\w/]+\.py)`")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
PAGE = re.compile(r"\bdocs/[\w/.-]*\.md\b")
PAGES = sorted(DOCS.rglob("*.md"))
FOLDERS = ("pipelines", "dags", "plugins", "infra", "tests")


def missing_files(page, text):
    """Return the files that the text of a page names and that do not exist."""
    places = [(PACKAGE, MODULE), (ROOT, TEST), (page.parent, PICTURE)]
    return [name for folder, pattern in places for name in pattern.findall(text) if not (folder / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_named_files_exist(page):
    assert not missing_files(page, page.read_text(encoding="utf-8"))


def missing_pages(source):
    """Return the pages that a Python source names and that do not exist."""
    return [name for name in PAGE.findall(source) if not (ROOT / name).exists()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_pages_that_sources_name_exist(folder):
    sources = [path for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__).resolve()]
    missing = {
        str(path.relative_to(ROOT)): names
        for path in sources
        if (names := missing_pages(path.read_text(encoding="utf-8")))
    }
    assert not missing


def test_pages_are_named_in_sources():
    source = (PACKAGE / "spark" / "run.py").read_text(encoding="utf-8")
    assert "docs/experiments/variants.md" in PAGE.findall(source)


def test_a_wrong_page_is_found():
    source = "# docs/nowhere.md, then docs/experiments/nowhere.md.\n# See ``docs/limits.md``."
    assert missing_pages(source) == ["docs/nowhere.md", "docs/experiments/nowhere.md"]


def test_a_wrong_name_is_found():
    text = "`core/nowhere.py`, `tests/nowhere.py`, ![a picture](nowhere.svg), `core/time.py`"
    assert missing_files(DOCS / "page.md", text) == ["core/nowhere.py", "tests/nowhere.py", "nowhere.svg"]
