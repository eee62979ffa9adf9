"""Modules, tests and pictures that a page names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "pipelines" / "latecomer"
ROOMS = "|".join(sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()))
MODULE = re.compile(rf"`((?:{ROOMS})/[\w/]+(?:\.py|/))`")
TEST = re.compile(r"`(tests/[\w/]+\.py)`")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
PAGES = sorted(DOCS.rglob("*.md"))


def missing_files(page, text):
    """Return the files that the text of a page names and that do not exist."""
    places = [(PACKAGE, MODULE), (ROOT, TEST), (page.parent, PICTURE)]
    return [name for folder, pattern in places for name in pattern.findall(text) if not (folder / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_named_files_exist(page):
    assert not missing_files(page, page.read_text(encoding="utf-8"))


def test_a_wrong_name_is_found():
    text = "`core/nowhere.py`, `tests/nowhere.py`, ![a picture](nowhere.svg), `core/time.py`"
    assert missing_files(DOCS / "page.md", text) == ["core/nowhere.py", "tests/nowhere.py", "nowhere.svg"]
