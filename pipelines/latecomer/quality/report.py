"""The quality report: one page per query and an index, plain HTML beside the Data Docs."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pandas as pd

from latecomer.quality import promise
from latecomer.specs.spec import Spec

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2430}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid #d9dee5;text-align:right;font-variant-numeric:tabular-nums}
th:first-child,td:first-child,.words th,.words td{text-align:left}.ok{color:#0a7a3d}.bad{color:#b3261e;font-weight:600}
.tiles{display:flex;gap:1rem;flex-wrap:wrap}.tile{border:1px solid #d9dee5;border-radius:.5rem;padding:.7rem 1rem}
.tile b{display:block;font-size:1.4rem}a{color:#1a56b0}svg{width:100%;height:auto}
"""


_BROKEN = "latecomer-broken"
"""In a page's head: how many expectations did not hold."""

DATA_DOCS = "data_docs"
"""Folder of Great Expectations' own pages, a site per query."""

SHARES = {
    "join": "recall",
    "aggregate": "answers within the error",
    "topk": "hit rate",
    "theta_join": "share of results on time",
    "membership": "share of results on time",
}
"""What ``achieved_on_time`` is, by kind."""


def write(
    folder: Path, spec: Spec, counts: dict[str, int], ledger: pd.DataFrame, results: list[dict[str, Any]]
) -> Path:
    """Write ``<folder>/<query>.html`` and refresh ``<folder>/index.html``; returns the query's page."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / ("index.query.html" if spec.name == "index" else f"{spec.name}.html")
    body = [
        f"<p><a href='index.html'>All queries</a> · <a href='{DATA_DOCS}/{_e(spec.name)}/index.html'>Data Docs</a></p>"
        f"<h1>{_e(spec.name)}</h1>"
    ]
    target = spec.target if spec.promises else None
    promise = "exact after repair" if target is None else f"target {target:g}"
    body.append(f"<p>{_e(spec.kind)} · {promise} · strategy {_e(spec.strategy.name)}</p>")
    body.append(_tiles(counts, ledger, SHARES[spec.kind]))
    body.append("<h2>Expectations</h2>" + _expectations(results))
    if len(ledger):
        share = SHARES[spec.kind]
        body.append(f"<h2>By period: {share}</h2>" + _chart(ledger, target, share) + _ledger(ledger))
    broken = sum(not each["success"] for each in results)
    page.write_text(_page(spec.name, "".join(body), broken), encoding="utf-8")
    _index(folder)
    return page


def _index(folder: Path) -> None:
    pages = sorted(p for p in folder.glob("*.html") if p.name != "index.html")
    rows = "".join(f"<li><a href='{_e(p.name)}'>{_e(p.stem)}</a>{_state(p)}</li>" for p in pages)
    sites = sorted(site.parent.name for site in folder.glob(f"{DATA_DOCS}/*/index.html"))
    docs = ", ".join(f"<a href='{DATA_DOCS}/{_e(name)}/index.html'>{_e(name)}</a>" for name in sites)
    text = f"<h1>Latecomer: quality</h1><ul>{rows}</ul><p>Data Docs: {docs}</p>"
    (folder / "index.html").write_text(_page("Latecomer: quality", text), encoding="utf-8")


def _state(page: Path) -> str:
    """What a query's page says in its head of the last check; nothing where another version wrote it."""
    found = re.search(rf"<meta name='{_BROKEN}' content='(\d+)'>", page.read_text(encoding="utf-8"))
    if found is None:
        return ""
    number = int(found[1])
    return f" <span class=bad>{number} broken</span>" if number else " <span class=ok>all kept</span>"


def _tiles(counts: dict[str, int], ledger: pd.DataFrame, share: str) -> str:
    known = promise.known(ledger)
    weight = known["windows" if "windows" in known else "expected"] if len(known) else pd.Series(dtype=float)
    expected = float(weight.sum())
    values = {
        "rows read": f"{counts['rows_read']:,}",
        "results on time": f"{counts['on_time']:,}",
        "late rows": f"{counts['late']:,}",
        f"{share}, before repair": f"{(known['achieved_on_time'] * weight).sum() / expected:.4f}"
        if expected
        else "not known yet",
        "after repair": f"{(known['achieved_final'] * weight).sum() / expected:.4f}" if expected else "not known yet",
        "rows held, mean": f"{known['rows_held_mean'].mean():,.0f}" if len(known) else "0",
    }
    return (
        "<div class=tiles>" + "".join(f"<div class=tile><b>{v}</b>{_e(k)}</div>" for k, v in values.items()) + "</div>"
    )


def _expectations(results: list[dict[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{_e(r['says'])}</td><td class={'ok' if r['success'] else 'bad'}>{'kept' if r['success'] else 'BROKEN'}</td>"
        f"<td>{_e(r['observed'])}</td><td>{_e(r['expected'])}</td><td><code>{_e(r['expectation'])}</code></td></tr>"
        for r in results
    )
    head = "<th>expectation</th><th>state</th><th>observed</th><th>expected</th><th>name in the Data Docs</th>"
    return f"<table class='words'><tr>{head}</tr>{rows}</table>"


def _chart(ledger: pd.DataFrame, target: float | None, share: str) -> str:
    known = promise.known(ledger).tail(400)
    if not len(known):
        return "<p>Nothing to show yet: late rows of every period are still to be repaired.</p>"
    width, height, margin = 1000, 180, 90
    least = 0.0 if target is None else target
    low = max(min(float(known["achieved_on_time"].min()), 1.0 if target is None else target) - 0.02, 0.0)
    step = (width - margin) / max(len(known), 1)

    def y(value: float) -> float:
        return height - (value - low) / (1.0 - low + 1e-9) * (height - 10) - 5

    bars = "".join(
        f"<rect x='{margin + i * step:.1f}' y='{y(v):.1f}' width='{max(step - 1, 0.5):.1f}' height='{height - y(v):.1f}' "
        f"fill='{'#5b8def' if v >= least else '#d9534f'}'><title>{start}: {v:.4f}</title></rect>"
        for i, (start, v) in enumerate(zip(known["period_start"], known["achieved_on_time"], strict=True))
    )
    marks = {f"{low:.3f}": height - 5, "1": y(1.0) + 8}
    line = ""
    if target is not None:
        marks[f"target {target:g}"] = y(target) + 4
        line = f"<line x1='{margin}' x2='{width}' y1='{y(target):.1f}' y2='{y(target):.1f}' stroke='#222' stroke-dasharray='4 3'/>"
    texts = "".join(f"<text x='0' y='{at:.1f}' font-size='12'>{_e(name)}</text>" for name, at in marks.items())
    red = "" if target is None else "Red bars are below the target."
    note = f"<p>{'' if low == 0 else f'Bars start at {low:.3f}, not at 0. '}{red}</p>"
    return f"<svg viewBox='0 0 {width} {height}' role='img' aria-label='{_e(share)} per period'>{texts}{bars}{line}</svg>{note}"


def _ledger(ledger: pd.DataFrame) -> str:
    shown = ledger.tail(60).copy()
    for column in shown.columns:
        if pd.api.types.is_float_dtype(shown[column]):
            shown[column] = shown[column].map(_number)
    head = "".join(f"<th>{_e(c)}</th>" for c in shown.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_e(v)}</td>" for v in row) + "</tr>" for row in shown.itertuples(index=False)
    )
    note = "" if len(ledger) <= 60 else f"<p>The last 60 of {len(ledger):,} periods.</p>"
    return f"{note}<div style='overflow-x:auto'><table><tr>{head}</tr>{rows}</table></div>"


def _number(value: float) -> str:
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def _page(title: str, body: str, broken: int = 0) -> str:
    marks = f"<meta charset='utf-8'><meta name='{_BROKEN}' content='{broken}'>"
    return f"<!doctype html><html lang='en'>{marks}<title>{_e(title)}</title><style>{_STYLE}</style><body>{body}</body></html>"


def _e(value: object) -> str:
    return html.escape(str(value), quote=True)
