"""Write the quality report: one page per query and an index, in plain HTML beside the Data Docs."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from latecomer.core.time import FOREVER
from latecomer.lake.atomic_file import atomic_file
from latecomer.quality import messages, promise
from latecomer.specs.spec import Spec

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:82rem;padding:0 1rem;color:#1c2430}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid #d9dee5;text-align:right;font-variant-numeric:tabular-nums}
th:first-child,td:first-child,.words th,.words td{text-align:left}.ok,td.bad{white-space:nowrap}
.ok{color:#0a7a3d}.bad{color:#b3261e;font-weight:600}
.ledger td,.ledger th{white-space:nowrap}
.tiles{display:flex;gap:1rem;flex-wrap:wrap}.tile{border:1px solid #d9dee5;border-radius:.5rem;padding:.7rem 1rem}
.tile b{display:block;font-size:1.4rem}a{color:#1a56b0}svg{width:100%;height:auto}
"""


_SUMMARY = "latecomer-summary"
"""Name of the meta element in a page's head that holds the query's row of the index, as JSON."""
LAST = 60
"""The most periods that a page lists."""

DATA_DOCS = "data_docs"
"""Folder of Great Expectations' pages, one site per query."""

SHARES = {
    "join": "recall",
    "aggregate": "answers within the error",
    "topk": "hit rate",
    "theta_join": "recall",
    "membership": "recall",
}
"""Name of ``achieved_on_time``, by query kind."""


def write(
    folder: Path,
    spec: Spec,
    counts: dict[str, int],
    ledger: pd.DataFrame,
    results: list[messages.Description],
    unjudged_message: str = "",
    silent: str = "",
) -> Path:
    """Write ``<folder>/<query>.html``, refresh ``<folder>/index.html``, and return the query's page.

    Parameters
    ----------
    counts
        Totals of the query's state.
    ledger
        The query's ledger.
    results
        Descriptions of the expectations.
    unjudged_message, silent
        Sentences about periods that could not be judged and about silent streams; empty without any.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / ("index.query.html" if spec.name == "index" else f"{spec.name}.html")
    body = [
        f"<p><a href='index.html'>All queries</a> · <a href='{DATA_DOCS}/{_e(spec.name)}/index.html'>Data Docs</a></p>"
        f"<h1>{_e(spec.name)}</h1>"
    ]
    target = spec.target if spec.promises else None
    share, promised = SHARES[spec.kind], "exact after repair" if target is None else f"target {target:g}"
    checked = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body.append(f"<p>{_e(spec.kind)} · {promised} · strategy {_e(spec.strategy.name)} · checked {checked}</p>")
    before, after = _completeness(ledger)
    body.append(_tiles(counts, ledger, {f"{share}, before repair": before, "after repair": after}))
    remarks = "".join(f"<p>{_e(text[0].upper() + text[1:])}.</p>" for text in (unjudged_message, silent) if text)
    body.append("<h2>Expectations</h2>" + _expectations(results) + remarks)
    if len(ledger):
        body.append(f"<h2>By period: {share}</h2>" + _chart(ledger, target, share) + _ledger(ledger, target))
    row: dict[str, object] = {
        "query": spec.name,
        "broken": sum(not result["success"] for result in results),
        "unjudged": "; ".join(filter(None, (unjudged_message, silent))),
        "kind": spec.kind,
        "promised": promised,
        "share": share,
        "before": before,
        "after": after,
        "late": f"{counts['late']:,}",
        "checked": checked,
    }
    _write(page, _page(spec.name, "".join(body), row))
    _index(folder)
    return page


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


def _index(folder: Path) -> None:
    pages = sorted(p for p in folder.glob("*.html") if p.name != "index.html")
    rows = "".join(_row(folder, page) for page in pages)
    head = "".join(f"<th>{_e(name)}</th>" for name in ("query", "state", *_INDEX.values(), "Data Docs"))
    text = f"<h1>Latecomer: quality</h1><table class=words><tr>{head}</tr>{rows}</table>"
    _write(folder / "index.html", _page("Latecomer: quality", text))


def _write(page: Path, text: str) -> None:
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
        unjudged = "<br>" + _e(row["unjudged"]) if row["unjudged"] else ""
        state = f"<td><span class=ok>all kept</span>{unjudged}</td>"
    docs = f"{DATA_DOCS}/{name}/index.html"
    link = f"<a href='{_e(docs)}'>open</a>" if (folder / docs).exists() else ""
    cells = "".join(f"<td>{_e(row.get(key, ''))}</td>" for key in _INDEX)
    return f"<tr><td><a href='{_e(page.name)}'>{_e(name)}</a></td>{state}{cells}<td>{link}</td></tr>"


def _completeness(ledger: pd.DataFrame) -> tuple[str, str]:
    """Return the shares over all known periods, before and after repair, as text."""
    known = promise.known(ledger)
    weight = known["windows" if "windows" in known else "expected"] if len(known) else pd.Series(dtype=float)
    expected = float(weight.sum())
    if not expected:
        return "not known yet", "not known yet"
    shares = [float((known[name] * weight).sum()) / expected for name in ("achieved_on_time", "achieved_final")]
    before, after = (messages.number(value, 1.0) for value in shares)
    return before, after


def _tiles(counts: dict[str, int], ledger: pd.DataFrame, shares: dict[str, str]) -> str:
    values = {
        "rows read": f"{counts['rows_read']:,}",
        "results on time": f"{counts['on_time']:,}",
        "late rows": f"{counts['late']:,}",
        **shares,
        "rows held, mean": f"{ledger['rows_held_mean'].mean():,.0f}" if len(ledger) else "0",
    }
    if "slack_mean_us" in ledger and len(ledger):  # joins answer at once, and hold rows instead
        values["wait, mean"] = messages.duration(ledger["wait_mean_us"].mean())
    return (
        "<div class=tiles>" + "".join(f"<div class=tile><b>{v}</b>{_e(k)}</div>" for k, v in values.items()) + "</div>"
    )


def _expectations(results: list[messages.Description]) -> str:
    states = {True: "<td class=ok>kept</td>", False: "<td class=bad>BROKEN</td>"}
    rows = "".join(
        f"<tr><td>{_e(r['says'])}</td>{states[r['success']]}"
        f"<td>{_e(r['observed'])}</td><td>{_e(r['expected'])}</td><td><code>{_e(r['expectation'])}</code></td></tr>"
        for r in results
    )
    head = "<th>expectation</th><th>state</th><th>observed</th><th>expected</th><th>name in the Data Docs</th>"
    return f"<table class='words'><tr>{head}</tr>{rows}</table>"


def _chart(ledger: pd.DataFrame, target: float | None, share: str) -> str:
    known = promise.known(ledger).tail(400)
    if not len(known):
        return "<p>Nothing to show yet: every period has late rows that await repair.</p>"
    width, height, margin = 1000, 180, 90
    least = 0.0 if target is None else target
    low = max(min(float(known["achieved_on_time"].min()), 1.0 if target is None else target) - 0.02, 0.0)
    step = (width - margin) / max(len(known), 1)

    def y(value: float) -> float:
        return height - (value - low) / (1.0 - low + 1e-9) * (height - 10) - 5

    bars = "".join(
        f"<rect x='{margin + i * step:.1f}' y='{y(v):.1f}' "
        f"width='{max(step - 1, 0.5):.1f}' height='{height - y(v):.1f}' "
        f"fill='{'#5b8def' if v >= least else '#d9534f'}'><title>{start}: {v:.4f}</title></rect>"
        for i, (start, v) in enumerate(zip(known["period_start"], known["achieved_on_time"], strict=True))
    )
    marks = {f"{low:.3f}": height - 5, "1": y(1.0) + 8}
    line = ""
    if target is not None:
        marks[f"target {target:g}"] = y(target) + 4
        ends = f"x1='{margin}' x2='{width}' y1='{y(target):.1f}' y2='{y(target):.1f}'"
        line = f"<line {ends} stroke='#222' stroke-dasharray='4 3'/>"
    texts = "".join(f"<text x='0' y='{at:.1f}' font-size='12'>{_e(name)}</text>" for name, at in marks.items())
    red = "" if target is None else "Red bars are below the target."
    note = f"<p>{'' if low == 0 else f'Bars start at {low:.3f}, not at 0. '}{red}</p>"
    label = f"role='img' aria-label='{_e(share)} per period'"
    return f"<svg viewBox='0 0 {width} {height}' {label}>{texts}{bars}{line}</svg>{note}"


def _ledger(ledger: pd.DataFrame, target: float | None) -> str:
    """Return a table of the last periods, with the columns of `export --table ledger` that differ between periods."""
    shown = ledger.tail(LAST)
    below = [False] * len(shown) if target is None else (shown["achieved_on_time"] < target).tolist()
    length = shown["period_end"].iloc[0] - shown["period_start"].iloc[0]
    days = length % pd.Timedelta(days=1) == pd.Timedelta(0)
    shown = shown.assign(period_start=shown["period_start"].dt.strftime("%Y-%m-%d" if days else "%Y-%m-%d %H:%M:%S"))
    columns = {
        name.removesuffix("_us"): [_cell(name, value) for value in shown[name]]
        for name in shown.columns
        if name not in ("period_end", "target")
    }
    head = "".join(f"<th>{_e(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr{' class=bad' if red else ''}>" + "".join(f"<td>{_e(value)}</td>" for value in row) + "</tr>"
        for red, row in zip(below, zip(*columns.values(), strict=True), strict=True)
    )
    which = f"The last {LAST} of {len(ledger):,} periods" if len(ledger) > LAST else "Periods"
    note = f"{which} of {messages.duration(length.total_seconds() * 1e6)}, by their start (UTC)."
    return f"<p>{note}</p><div style='overflow-x:auto'><table class=ledger><tr>{head}</tr>{rows}</table></div>"


def _cell(name: str, value: Any) -> str:
    """Format a value of a column of the ledger."""
    if pd.isna(value):
        return "–"
    if isinstance(value, str):
        return value
    if name.endswith("_us"):
        return "everything" if value >= FOREVER else messages.duration(float(value))
    if name.startswith("achieved"):
        return messages.number(float(value), 1.0)
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 10_000 else f"{value:,.4g}"


def _page(title: str, body: str, row: dict[str, object] | None = None) -> str:
    summary = f"<meta name='{_SUMMARY}' content='{_e(json.dumps(row))}'>" if row else ""
    marks = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'>{summary}"
    head = f"{marks}<title>{_e(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'>{head}<body>{body}</body></html>"


def _e(value: object) -> str:
    return html.escape(str(value), quote=True)
