"""Write the index of the quality report: a row per query, from the heads of the queries' pages.

It imports neither numpy nor pandas, because Airflow's API server makes the index for each user anew.
"""

from __future__ import annotations

import fcntl
import html
import json
import re
from collections.abc import Callable
from pathlib import Path

from latecomer.lake.atomic_file import atomic_file

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:82rem;padding:0 1rem;color:#1c2430}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid #d9dee5;text-align:right;font-variant-numeric:tabular-nums}
th:first-child,td:first-child,.words th,.words td{text-align:left}.ok,td.bad{white-space:nowrap}
.ok{color:#0a7a3d}.bad{color:#b3261e;font-weight:600}
.ledger td,.ledger th{white-space:nowrap}
.legend span{margin-right:1.2rem;white-space:nowrap}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border:1px solid #7a8699}
.tiles{display:flex;gap:1rem;flex-wrap:wrap}.tile{border:1px solid #d9dee5;border-radius:.5rem;padding:.7rem 1rem}
.tile b{display:block;font-size:1.4rem}a{color:#1a56b0}svg{width:100%;height:auto}
"""
_SUMMARY = "latecomer-summary"
"""Name of the meta element in a page's head that holds the query's row of the index, as JSON."""
DATA_DOCS = "data_docs"
"""Folder of Great Expectations' pages, one site per query."""
_INDEX = {
    "kind": "kind",
    "promised": "promise",
    "share": "of",
    "before": "before repair",
    "after": "after repair",
    "late": "late rows",
    "checked": "checked",
}
"""Columns of the index that show a value of the summary unchanged, and their headings."""


def page_name(query: str) -> str:
    """Return the name of a query's page; ``index.html`` is the index."""
    return "index.query.html" if query == "index" else f"{query}.html"


def refresh(folder: Path) -> None:
    """Write ``index.html`` of a folder, one process at a time, so that the last one has seen all pages."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write(folder / "index.html", text(folder))


def text(folder: Path, visible: Callable[[str], bool] = lambda query: True) -> str:
    """Return the index of the pages of a folder.

    Parameters
    ----------
    visible
        Whether the index lists a query.
    """
    names = {path.name: path for path in folder.glob("*.html") if path.name != "index.html"}
    queries = {"index" if name == "index.query.html" else path.stem: path for name, path in names.items()}
    rows = "".join(_row(folder, page) for query, page in sorted(queries.items()) if visible(query))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("query", "state", *_INDEX.values(), "Data Docs"))
    body = f"<h1>Latecomer: quality</h1><table class=words><tr>{head}</tr>{rows}</table>"
    return page("Latecomer: quality", body)


def write(page: Path, text: str) -> None:
    """Write a page atomically: it may be read meanwhile, and another check may list it."""
    with atomic_file(page) as part:
        part.write_text(text, encoding="utf-8")


def _row(folder: Path, page: Path) -> str:
    """Return a query's row of the index, from the head of its page; only its name if another version wrote the page."""
    text = page.read_text(encoding="utf-8")
    summary = re.search(rf"<meta name='{_SUMMARY}' content='([^']*)'>", text)
    row = json.loads(html.unescape(summary[1])) if summary else {}
    name = row.get("query", page.stem)
    state = "<td></td>"
    if row.get("broken"):
        state = f"<td class=bad>{int(row['broken'])} broken</td>"
    elif row:
        unjudged = "<br>" + escape(row["unjudged"]) if row["unjudged"] else ""
        state = f"<td><span class=ok>all kept</span>{unjudged}</td>"
    docs = f"{DATA_DOCS}/{name}/index.html"
    link = f"<a href='{escape(docs)}'>open</a>" if (folder / docs).exists() else ""
    cells = "".join(f"<td>{escape(row.get(key, ''))}</td>" for key in _INDEX)
    return f"<tr><td><a href='{escape(page.name)}'>{escape(name)}</a></td>{state}{cells}<td>{link}</td></tr>"


def page(title: str, body: str, row: dict[str, object] | None = None) -> str:
    """Return a page; `row` is the query's row of the index, which its head holds."""
    summary = f"<meta name='{_SUMMARY}' content='{escape(json.dumps(row))}'>" if row else ""
    marks = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'>{summary}"
    head = f"{marks}<title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'>{head}<body>{body}</body></html>"


def escape(value: object) -> str:
    """Return a value as text of HTML, also within quotes."""
    return html.escape(str(value), quote=True)
