"""Sphinx's configuration: Markdown pages by MyST, the API reference from the package's docstrings, the furo theme."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from latecomer import __version__
from sphinx.ext.autodoc.mock import MockFinder

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "pipelines"
os.environ["NUMBA_DISABLE_JIT"] = "1"  # autodoc sees functions and not Numba's dispatchers, and nothing is compiled
sys.meta_path.insert(0, MockFinder(["great_expectations", "matplotlib"]))  # seconds to import, and nothing to document

project = "Latecomer"
author = "The Latecomer authors"
project_copyright = "the Latecomer authors, MIT license"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"

html_theme = "furo"
html_title = f"Latecomer {__version__}"
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_param = napoleon_use_rtype = False  # types of parameters are text, and not looked up as names
napoleon_use_ivar = True  # the section Attributes of a docstring is the one place where a dataclass's fields stand
default_role = "literal"  # `name` in a docstring is code

nitpicky = True
suppress_warnings = ["ref.python"]  # words in a section Returns that name several things; one role never does
nitpick_ignore_regex = [
    (r"py:class|py:obj|py:exc", ".*"),  # types in signatures: those of other packages have no inventory here
    (r"py:.*", r"(?!latecomer\.)[a-z_]+\..*"),  # neither has what a role names of them
]


def write_api_pages() -> None:
    """Write ``api/<package>.rst`` for every package of the product: its docstring, then a section for each module.

    One page for each package and not for each module: the theme renders the tree of all pages on every page.
    """
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    pages = {}
    for path in sorted((SOURCES / "latecomer").rglob("__init__.py")):
        package = ".".join(path.parent.relative_to(SOURCES).parts)
        modules = sorted(module.stem for module in path.parent.glob("*.py") if not module.stem.startswith("__"))
        lines = [package, "=" * len(package), "", f".. automodule:: {package}", ""]
        for module in modules:
            lines += [module, "-" * len(module), "", f".. automodule:: {package}.{module}", ""]
        pages[package] = "\n".join(lines)
    top = pages.pop("latecomer")
    pages["index"] = "\n".join([top, ".. toctree::", "   :titlesonly:", "", *(f"   {name}" for name in pages), ""])
    for stale in folder.glob("*.rst"):
        if stale.stem not in pages:
            stale.unlink()
    for name, text in pages.items():
        page = folder / f"{name}.rst"
        if not page.exists() or page.read_text(encoding="utf-8") != text:  # an unchanged page is not read again
            page.write_text(text, encoding="utf-8")


write_api_pages()


def list_references(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    """Turn the footnotes of a docstring's section References into a list: a page has the footnote 1 of many modules."""
    lines[:] = [re.sub(r"^(\s*)\.\. \[(\d+)\] ", r"\1\2. ", re.sub(r"\[(\d+)\]_", r"[\1]", line)) for line in lines]


def setup(app: Sphinx) -> None:
    """Connect this file's functions to Sphinx."""
    app.connect("autodoc-process-docstring", list_references)
