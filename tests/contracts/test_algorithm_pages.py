"""The pages about algorithms and architecture are true: their examples run, and the files that they name exist."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "pipelines" / "latecomer"
ROOMS = "|".join(sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()))
PAGES = [*sorted((DOCS / "algorithms").glob("*.md")), *sorted(DOCS.glob("architecture.md"))]
FENCE = re.compile(r"^```.*$", re.MULTILINE)
MODULE = re.compile(rf"`((?:{ROOMS})/[\w/]+(?:\.py|/))`")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


def names(pages):
    return [page.stem for page in pages]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_examples_give_the_numbers_that_the_page_shows(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert not failed


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_modules_and_pictures_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    missing = [name for name in MODULE.findall(text) if not (PACKAGE / name).exists()]
    missing += [name for name in PICTURE.findall(text) if not (page.parent / name).exists()]
    assert not missing


def test_a_missing_module_is_noticed():
    assert MODULE.findall("`core/join/control.py` and `spark/join/`") == ["core/join/control.py", "spark/join/"]
