"""Write the quality report: one page per query and an index, in plain HTML beside the Data Docs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from latecomer.core.time import FOREVER
from latecomer.ledger.means import rows_held_mean, wait_mean_us
from latecomer.quality import messages, promise, report_index
from latecomer.quality.report_index import DATA_DOCS
from latecomer.quality.report_index import escape as _e
from latecomer.specs.judging import format_time
from latecomer.specs.spec import Spec

_DATES = 5
"""The most dates below the chart."""
LAST = 60
"""The most periods that a page lists."""

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
    *,
    judgement: promise.Judgement,
    standing: pd.Series,
    remarks: Sequence[str] = (),
    history: pd.DataFrame,
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
    judgement
        The promise by the verdicts about periods.
    standing
        Of each period of the ledger, whether it is judged, or why not.
    remarks
        Sentences: the promise, the periods without a verdict, the remedy, the silent streams; empty ones are left out.
    history
        Every verdict, also if a later one has replaced it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / report_index.page_name(spec.name)
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
    body += [f"<p>{_e(text[0].upper() + text[1:])}.</p>" for text in remarks if text]
    body.append("<h2>Expectations</h2>" + _expectations(results))
    if len(ledger):
        shown = _with_standing(ledger, judgement, standing)
        body.append(f"<h2>By period: {share}</h2>" + _chart(shown, target, share))
        if target is not None:
            body.append(
                f"<h2>Verdicts</h2>{_counts(shown, standing)}{_rule(spec)}" + _verdicts(spec, judgement, history)
            )
        body.append("<h2>Ledger</h2>" + _ledger(ledger, target))
    row: dict[str, object] = {
        "query": spec.name,
        "broken": sum(not result["success"] for result in results),
        "unjudged": "; ".join(filter(None, remarks)),
        "kind": spec.kind,
        "promised": promised,
        "share": share,
        "before": before,
        "after": after,
        "late": f"{counts['late']:,}",
        "checked": checked,
    }
    report_index.write(page, report_index.page(spec.name, "".join(body), row))
    report_index.refresh(folder)
    return page


_FILLS = {
    "kept": "#5b8def",
    "missed": "#d9534f",
    "too small to vote": "#b9c6de",
    "suspected clocks": "#b088c9",
    "excluded": "#b8b8b8",
    "before the periods that count": "#d7deea",
    promise.LEARNING: "#f0c36d",
    promise.COMING_IN: "#ffffff",
    promise.AWAITS_REPAIR: "#ffffff",
}
"""Standings of a period in the chart, in the order of its legend, and their colours."""
_VOTES = {
    promise.SMALL_VOTE: "too small to vote",
    promise.CLOCKS: "suspected clocks",
    promise.EXCLUDED: "excluded",
}


def _with_standing(ledger: pd.DataFrame, judgement: promise.Judgement, standing: pd.Series) -> pd.DataFrame:
    """Return the ledger with ``standing``, a key of `_FILLS`, and ``why``, the reason of an exclusion."""
    periods = judgement.periods
    shown = standing.to_numpy(object, copy=True)
    why = np.full(len(ledger), "", object)
    shown[shown == promise.JUDGED] = "before the periods that count"
    shown[shown == promise.NOTHING_DUE] = "kept"
    if len(periods):
        place = pd.Index(promise.microseconds(ledger["period_start"])).get_indexer(
            promise.microseconds(periods["period_start"])
        )
        names = np.where(periods["kept"].astype(bool), "kept", "missed").astype(object)
        small = periods["vote"].eq(promise.SMALL_VOTE).sum() >= promise.MANY_SMALL  # then they vote among themselves
        for vote, name in _VOTES.items():
            if vote != promise.SMALL_VOTE or not small:
                names[periods["vote"] == vote] = name
        in_ledger = place >= 0
        shown[place[in_ledger]] = names[in_ledger]
        why[place[in_ledger]] = periods["why"].to_numpy(object)[in_ledger]
    return ledger.assign(standing=shown, why=why)


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
        **({"results recalled": f"{ledger['recalled'].sum():,.0f}"} if "recalled" in ledger else {}),
        **shares,
    }
    held = rows_held_mean(ledger)
    values["rows held, mean"] = "not known yet" if np.isnan(held) else f"{held:,.0f}"
    if "slack_mean_us" in ledger and not np.isnan(wait_us := wait_mean_us(ledger)):  # joins answer at once
        values["wait, mean"] = messages.duration(wait_us)
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
    """Draw a bar per period, coloured by its standing; a period whose share is not known yet is an empty frame."""
    shown = ledger.tail(400)
    known = promise.known(shown)
    if not len(known):
        return "<p>Nothing to show yet: every period has late rows that await repair.</p>"
    width, height, margin = 1000, 180, 90
    low = max(min(float(known["achieved_on_time"].min()), 1.0 if target is None else target) - 0.02, 0.0)
    step = (width - margin) / max(len(shown), 1)

    def y(value: float) -> float:
        return height - (value - low) / (1.0 - low + 1e-9) * (height - 10) - 5

    bars, used = [], set()
    for i, row in enumerate(shown.itertuples()):
        unknown = pd.isna(row.achieved_on_time)
        top = y(1.0 if unknown else row.achieved_on_time)
        standing = row.standing if target is not None else promise.AWAITS_REPAIR if unknown else "kept"
        used.add(standing)
        frame = " stroke='#7a8699' stroke-width='0.7' stroke-dasharray='3 2'" if _FILLS[standing] == "#ffffff" else ""
        text = f"{messages.moment(row.period_start)}: {'not known yet' if unknown else f'{row.achieved_on_time:.4f}'}"
        reason = f" ({row.why})" if row.why else ""
        bars.append(
            f"<rect x='{margin + i * step:.1f}' y='{top:.1f}' width='{max(step - 1, 0.5):.1f}' "
            f"height='{height - top:.1f}' fill='{_FILLS[standing]}'{frame}>"
            f"<title>{_e(f'{text}, {standing}{reason}')}</title></rect>"
        )
    marks = {f"{low:.3f}": height - 5, "1": y(1.0) + 8}
    line = ""
    if target is not None:
        marks[f"target {target:g}"] = y(target) + 4
        ends = f"x1='{margin}' x2='{width}' y1='{y(target):.1f}' y2='{y(target):.1f}'"
        line = f"<line {ends} stroke='#222' stroke-dasharray='4 3'/>"
    texts = "".join(f"<text x='0' y='{at:.1f}' font-size='12'>{_e(name)}</text>" for name, at in marks.items())
    marked = sorted({round(at) for at in np.linspace(0, len(shown) - 1, _DATES)})
    for at in marked:
        anchor = "start" if at == 0 else "end" if at == len(shown) - 1 else "middle"
        x = margin + step * (at if at == 0 else at + 1 if anchor == "end" else at + 0.5)
        date = _e(messages.moment(shown["period_start"].iloc[at]))
        texts += f"<text x='{x:.1f}' y='{height + 16}' font-size='12' text-anchor='{anchor}'>{date}</text>"
    legend = "".join(
        f"<span><i style='background:{fill}'></i>{_e(name)}</span>"
        for name, fill in _FILLS.items()
        if name in used and target is not None
    )
    note = f"<p class=legend>{legend}{'' if low == 0 else f'Bars start at {low:.3f}, not at 0.'}</p>"
    label = f"role='img' aria-label='{_e(share)} per period'"
    return f"<svg viewBox='0 0 {width} {height + 20}' {label}>{texts}{''.join(bars)}{line}</svg>{note}"


def _counts(shown: pd.DataFrame, standing: pd.Series) -> str:
    """Return how many periods there are of each standing, in a sentence."""
    names = shown["standing"].mask(standing.to_numpy() == promise.NOTHING_DUE, promise.NOTHING_DUE)
    counts = names.value_counts()
    parts = [f"{counts[name]:,} {name}" for name in [*_FILLS, promise.NOTHING_DUE] if name in counts]
    return f"<p>Of {len(shown):,} periods: {_e(', '.join(parts))}.</p>"


def _rule(spec: Spec) -> str:
    """Return the rule by which the promise is judged, in words."""
    judging = spec.judging
    which = f"the last {judging.over} judged periods"
    if judging.since_us is not None:
        which = f"the judged periods from {format_time(judging.since_us)} on"
    answers = "the share of answers within the error" if spec.kind == "aggregate" else SHARES[spec.kind]
    chance = ", less what chance takes from so few answers" if spec.kind == "aggregate" else ""
    sentences = (
        f"Rule {promise.RULE}",
        "A period is judged once, when no row of it is expected any more and its late rows are repaired, and again "
        "only if a repair changes it",
        f"It keeps the promise if {answers} reaches {spec.target:g}{chance}",
        f"The promise is judged by {which}: {spec.confidence:.4g} of them have to keep it, less the number that chance "
        f"explains at {1 - promise.LEVEL:.0%} (binomial)",
        "Periods that hold less than a tenth of a usual one are judged among themselves, if they are "
        f"{promise.MANY_SMALL} or more; and the large ones once more by themselves",
        f"Of everything due, {spec.target * spec.confidence:.4g} has to be on time, less chance",
        "Periods of suspected clocks do not count, and learning periods only if they lost more than half of the target",
    )
    return f"<p>{'. '.join(sentences)}.</p>"


def _verdicts(spec: Spec, judgement: promise.Judgement, history: pd.DataFrame) -> str:
    """Return tables: the groups that were judged, the exclusions, and the last verdicts that missed or changed."""
    parts = []
    if judgement.groups:
        rows = "".join(
            f"<tr><td>{_e(group.name)}</td><td>{len(group.rows):,}</td><td>{group.missed:,}</td>"
            f"<td>{group.allowed:,}</td><td class={'ok' if group.kept else 'bad'}>{'kept' if group.kept else 'BROKEN'}"
            "</td></tr>"
            for group in judgement.groups
        )
        share = judgement.on_time >= judgement.needed
        rows += (
            f"<tr><td>everything due</td><td>{judgement.due:,.0f}</td><td>{judgement.due - judgement.on_time:,.0f}</td>"
            f"<td>{judgement.due - judgement.needed:,.0f}</td>"
            f"<td class={'ok' if share else 'bad'}>{'kept' if share else 'BROKEN'}</td></tr>"
        )
        head = "<th>of</th><th>judged</th><th>missed</th><th>may miss</th><th>promise</th>"
        parts.append(f"<table><tr>{head}</tr>{rows}</table>")
    if spec.judging.exclude:
        periods = judgement.periods
        rows = "".join(
            f"<tr><td>{format_time(entry.from_us)}</td><td>{format_time(entry.to_us)}</td><td>{_e(entry.why)}</td>"
            f"<td>{int((periods['why'] == entry.why).sum()) if len(periods) else 0:,}</td></tr>"
            for entry in spec.judging.exclude
        )
        head = "<th>excluded from</th><th>to</th><th>why</th><th>judged periods left out</th>"
        parts.append(f"<table class=words><tr>{head}</tr>{rows}</table>")
    notable = history[~history["kept"].astype(bool) | (history["judgement"] > 0)] if len(history) else history
    if len(notable):
        notable = notable.sort_values(["judged", "period_start"], ascending=False).head(LAST)
        rows = "".join(
            f"<tr{'' if row.kept else ' class=bad'}><td>{_e(messages.moment(row.period_start))}</td>"
            f"<td>{'kept' if row.kept else 'missed'}</td><td>{row.on_time:,} of {row.due:,}</td>"
            f"<td>{messages.number(row.achieved, row.needed)}</td><td>{messages.number(row.needed, row.achieved)}</td>"
            f"<td>{row.judgement + 1}</td><td>{row.judged:%Y-%m-%d %H:%M}</td></tr>"
            for row in notable.itertuples()
        )
        head = "".join(
            f"<th>{name}</th>"
            for name in ("period", "verdict", "on time", "achieved", "needed", "judgement", "judged at (UTC)")
        )
        parts.append(
            f"<p>The newest verdicts that missed, or that replaced another:</p><table><tr>{head}</tr>{rows}</table>"
        )
    return "".join(parts)


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
