"""Join: what do a recall target's retention, and each way to choose it, cost in rows held and in latency?

Where the workload comes from: QJoin's section 2 (Guangxi Sciences 27(3), 2020): ball and players of a football game, all
pairs within 2 s of event time and 5 m of distance, recall targets 0.85 to 0.99, P 60 s, L 1 s, g and b 10 ms. Its figures:
2a to 2d, mean rows held against P, L, b and g at targets 0.90 and 0.95 on D1, one varied at a time (here with the recall each
gave); 3, latency and 4, rows held, against MP-K-slack's. Ours: recall and share of periods met by target, every method and
the clairvoyant. And real logs: dns with ssl of one host within 10 s.
Where it departs: the football data are generated (``data``), several seeds, one tuple in 32 kept, so that all pairs fit
in memory (pairs fall by 1,024, shares do not; rows held fall by 32, alike for every method); the models read results
where the paper reads candidates, as this project's joins count them. Latency is stream time, from the arrival of a
pair's later tuple to its output: QJoin's is 0 by construction, where the paper's also holds computing time.

How it is measured: the data plane in memory. A pair's required retention is known without choosing one (section 6 of the
algorithms), so statistics per adaptation interval are counted once, and each method is the control plane's pass over
them, followed by the set formula. Rows held are exact: each row from its arrival to the arrival that drives it out,
weighted by stream time; reorder buffer and windows together for the K-slack family; the deterministic sample
of the estimators included. The first full P, in which every adaptive method keeps everything, is left out.
The *clairvoyant* is the least constant retention, alike for both streams, that meets the target in >= 95% of periods.

Cost: O(n log n + pairs log pairs) once, then O(pairs) per method and target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.bench import data as workloads
from latecomer.bench import join_simulator, plots
from latecomer.bench.goals import Goal, Goals
from latecomer.bench.join_simulator import band_pairs, waits
from latecomer.core.arrays.composite_keys import pack_columns, unpack_columns
from latecomer.core.arrays.sparse_counts import SparseCounts
from latecomer.core.join import k_slack
from latecomer.core.join.control import Horizons, IntervalSummary, JoinControl, held_bucket_us
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import SAMPLE_FRACTION, delay_bucket, in_sample
from latecomer.core.time import NEVER, running_max, stream_time
from latecomer.strategies.join import retention_policy

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

SECOND = 1_000_000
TARGETS = (0.85, 0.90, 0.95, 0.99)
QJOIN = ("paper", "delay_aware", "empirical", "calibrated")
SLACK = ("mp_k_slack", "k_slack", "aq_k_slack")
METHODS = (*QJOIN, *SLACK, "exact", "clairvoyant")
RADIUS_M = 5.0
FIGURE_2 = (
    ("a", "period_us", "period P [s]", SECOND, (10.0, 20.0, 60.0, 120.0)),
    ("b", "interval_us", "adaptation interval L [s]", SECOND, (0.1, 0.5, 1.0, 5.0)),
    ("c", "basic_window_us", "basic window b [ms]", 1_000, (1.0, 10.0, 100.0, 1_000.0)),
    ("d", "granularity_us", "granularity g [ms]", 1_000, (2.0, 10.0, 50.0, 200.0)),
)
"""Letter, parameter, label, its unit in us, values: the paper varies these and does not print which values."""
FIGURE_2_TARGETS = (0.90, 0.95)


@dataclass(frozen=True)
class Case:
    """Two streams in one arrival order, with all pairs of the exact join.

    Attributes
    ----------
    ts, seq, now, delay
        int64[n], per row in arrival order: event time, arrival number, stream time at arrival (``NEVER`` before it is
        defined), delay on its own stream; us.
    side
        int8[n], 0 left, 1 right.
    early, late
        int64[m], row of the earlier and of the later arrival of each pair.
    """

    name: str
    window_us: int
    ts: Int64
    side: NDArray[np.int8]
    seq: Int64
    now: Int64
    delay: Int64
    early: Int64
    late: Int64

    @property
    def start_us(self) -> int:
        """First defined stream time."""
        return int(self.now[np.searchsorted(self.now, NEVER, side="right")])

    @property
    def required(self) -> Int64:
        """Required retention of each pair, us."""
        return self.now[self.late] - self.window_us - self.ts[self.early]


@dataclass(frozen=True)
class Outcome:
    """What a method came to. `met` and `rows` leave out periods up to the first full one.

    Attributes
    ----------
    recall, recall_all
        Of the results in the periods that count, and of all.
    met
        Share of periods that reached the target.
    rows, rows_all
        Mean rows held over stream time: in the periods that count, and from the first defined stream time.
    latency_us
        Mean over results of the periods that count: stream time at output minus at the arrival of the later tuple.
    """

    recall: float
    recall_all: float
    met: float
    periods: int
    rows: float
    rows_all: float
    latency_us: float


def make_case(name: str, ts: Int64, side: NDArray[np.int8], seq: Int64, pairs: Int64, window_us: int) -> Case:
    """A case from rows in arrival order and the rows of its pairs, int64[m, 2] in any order."""
    maxima = [running_max(np.where(side == s, ts, NEVER)) for s in (0, 1)]
    delay = np.where(side == 0, maxima[0], maxima[1]) - ts
    early, late = np.minimum(pairs[:, 0], pairs[:, 1]), np.maximum(pairs[:, 0], pairs[:, 1])
    return Case(name, window_us, ts, side, seq, stream_time(maxima), delay, early, late)


def football_case(which: str, seed: int, seconds: float | None, keep: float, window_us: int) -> Case:
    """Ball with players within `window_us` and `RADIUS_M`."""
    rows = workloads.football_join(seed, which, seconds, keep)
    ts, side = rows["event_time_us"].to_numpy(), rows["stream"].to_numpy()
    pairs = workloads.football_pairs(rows, window_us, RADIUS_M)
    return make_case(f"{which} seed {seed}", ts, side, np.arange(len(ts)), pairs, window_us)


def keyed_case(name: str, rows: pa.Table, window_us: int) -> Case:
    """Equal keys within `window_us`, from a table as ``data.zeek`` returns it."""
    ts, side, seq, key = (rows[c].to_numpy() for c in ("event_time_us", "stream", "seq", "key"))
    own = [np.flatnonzero(side == s) for s in (0, 1)]
    pairs = band_pairs(ts[own[0]], ts[own[1]], window_us, key[own[0]], key[own[1]])
    pairs = np.stack([own[0][pairs[:, 0]], own[1][pairs[:, 1]]], axis=1)
    return make_case(name, ts, side, seq, pairs, window_us)


def summarise(case: Case, interval_us: int, granularity_us: int, *, lateness: bool = False) -> list[IntervalSummary]:
    """What the data plane counts, per adaptation interval: as ``join_pairs.summaries``, of all rows at once.

    `lateness`: rows by their delay against stream time, pairs by none; as the calibrated estimator wants them.
    """
    bucket = held_bucket_us(interval_us, granularity_us)
    alive = case.now > NEVER
    number = case.now // interval_us
    places = [np.flatnonzero(alive & (case.side == s)) for s in (0, 1)]
    arrived = [_count(number[p], case.ts[p] // bucket) for p in places]
    waited = delay_bucket(case.now - case.ts if lateness else case.delay, granularity_us)
    delays = [_count(number[p], waited[p]) for p in places]
    columns = (
        number[case.late],
        case.side[case.early].astype(np.int64),
        case.required // granularity_us,
        np.full(len(case.late), -1) if lateness else waited[case.late],
    )
    code, least, widths = _code(columns)
    code, place, counts = np.unique(code, return_inverse=True, return_counts=True)
    drawn = np.bincount(place, in_sample(case.seq[case.early], SAMPLE_FRACTION), len(code)).astype(np.int64)
    cells = np.stack([*unpack_columns(code, least, widths), counts, counts, drawn], axis=1)
    found, last = [], np.flatnonzero(alive & (number != np.append(number[1:], number[-1] + 1)))
    for row in last:
        here = int(number[row])
        inside = slice(*np.searchsorted(cells[:, 0], [here, here + 1]))
        at = [_part(each, here) for each in (*arrived, *delays)]
        found.append(IntervalSummary(here, int(case.now[row]), (at[0], at[1]), (at[2], at[3]), cells[inside, 1:]))
    return found


def counts(
    case: Case, settings: RetentionParameters, methods: Sequence[str] = METHODS
) -> dict[str, list[IntervalSummary]]:
    """By method, what the data plane counts for it."""
    wants = {
        method: retention_policy(settings_of(method, settings.target, case.window_us), None, None).needs_lateness
        for method in methods
    }
    found = {
        late: summarise(case, settings.interval_us, settings.granularity_us, lateness=late)
        for late in set(wants.values())
    }
    return {method: found[late] for method, late in wants.items()}


def _code(columns: Sequence[Int64]) -> tuple[Int64, list[int], list[int]]:
    found = pack_columns(columns)
    assert found is not None, "intervals, sides and buckets of a benchmark fit into 63 bits"
    return found


def _count(number: Int64, bucket: Int64) -> Int64:
    """int64[k, 3]: interval, bucket, rows."""
    code, least, widths = _code((number, bucket))
    code, counts = np.unique(code, return_counts=True)
    return np.stack([*unpack_columns(code, least, widths), counts], axis=1)


def _part(counted: Int64, number: int) -> SparseCounts:
    low, high = np.searchsorted(counted[:, 0], [number, number + 1])
    return counted[low:high, 1], counted[low:high, 2]


def settings_of(method: str, target: float, window_us: int, quick: bool = False) -> RetentionParameters:
    """The paper's defaults: P 60 s, L 1 s, g and b 10 ms; fixed slack: one window. `quick`: P 4 s."""
    strategy, estimator = ("qjoin", method) if method in QJOIN else (method, "paper")
    period_us = (4 if quick else 60) * SECOND
    return RetentionParameters(
        strategy, estimator, target, 0.95, window_us, period_us, SECOND, 10_000, 10_000, window_us
    )


def decide(settings: RetentionParameters, summaries: list[IntervalSummary]) -> tuple[Horizons, bool]:
    """The control plane's pass over a whole input; and does the method hold the sample?"""
    policy = retention_policy(settings, None, None)
    control = JoinControl(
        policy,
        window_us=settings.window_us,
        interval_us=settings.interval_us,
        granularity_us=settings.granularity_us,
        period_us=settings.period_us,
    )
    return control.step(summaries), bool(policy.needs_pairs)


def symmetric(case: Case, horizons: tuple[Int64, Int64]) -> Bool:
    """QJoin's set formula: which pairs are produced, bool[m], under the horizon of either stream at each row."""
    at_late = np.where(case.side[case.early] == 0, horizons[0][case.late], horizons[1][case.late])
    return case.ts[case.early] > at_late


def reordered(case: Case, watermark_us: Int64) -> tuple[Bool, Int64]:
    """Which pairs a reorder buffer produces, and the row at whose arrival each comes out; see `join_simulator.reordered`."""
    return join_simulator.reordered(case.ts, watermark_us, case.early, case.late)


def watermarks(case: Case, settings: RetentionParameters, horizons: Horizons) -> Int64:
    """Watermark of a K-slack method after each arrival, int64[n] us."""
    if settings.strategy == "aq_k_slack":
        mark = horizons.at(0, case.now, settings.interval_us, case.window_us) + case.window_us
        return running_max(np.where(mark > NEVER // 2, mark, NEVER))
    slack_us = None if settings.strategy == "mp_k_slack" else settings.slack_us or 0
    return k_slack.slack_watermark(case.now, case.delay, slack_us)[0]


def run_method(case: Case, settings: RetentionParameters, summaries: list[IntervalSummary]) -> Outcome:
    """One method at one target over one case."""
    decided, sample = decide(settings, summaries)
    if settings.strategy in SLACK:
        mark = watermarks(case, settings, decided)
        produced, output = reordered(case, mark)
        horizon = np.where(mark > NEVER, mark - case.window_us, NEVER)
        return measure(case, settings, (horizon, horizon), produced, output, sample)
    left, right = (decided.at(s, case.now, settings.interval_us, case.window_us) for s in (0, 1))
    return measure(case, settings, (left, right), symmetric(case, (left, right)), case.late, sample)


def measure(
    case: Case,
    settings: RetentionParameters,
    horizons: tuple[Int64, Int64],
    produced: Bool,
    output: Int64,
    sample: bool,
) -> Outcome:
    """Count: `horizons` drive rows out, `produced` and `output` (rows) say which pairs came out and when."""
    clock = np.append(np.maximum(case.now, case.start_us), case.now[-1])
    first = _first_period(case, settings)
    period = case.now[case.late] // settings.period_us
    number, place = np.unique(period, return_inverse=True)
    total = np.bincount(place, minlength=len(number))
    share = np.bincount(place, produced, len(number)) / total
    counted = number >= first
    gone = np.empty(len(case.ts), np.int64)
    for s in (0, 1):
        rows = np.flatnonzero(case.side == s)
        gone[rows] = np.maximum(np.searchsorted(horizons[s], case.ts[rows], side="left"), rows)
    until = clock[gone]
    if sample:
        reach = np.stack([running_max(np.where(case.side == s, case.delay, 0)) for s in (1, 0)])
        reach = reach[case.side, np.arange(len(case.ts))]
        drawn = in_sample(case.seq, SAMPLE_FRACTION)
        needed = np.minimum(case.ts + case.window_us + reach, clock[-1])
        until = np.where(drawn, np.maximum(until, needed), until)
    after = min(first * settings.period_us, int(clock[-1]) - 1)
    taken = produced & (period >= first)
    waited = waits(case.now, output[taken], case.late[taken])
    return Outcome(
        recall=float((share * total)[counted].sum() / max(total[counted].sum(), 1)),
        recall_all=float(produced.mean()) if len(produced) else 1.0,
        met=float(np.mean(share[counted] >= settings.target)) if counted.any() else 1.0,
        periods=int(counted.sum()),
        rows=_mean_rows(clock, until, after),
        rows_all=_mean_rows(clock, until, case.start_us),
        latency_us=float(waited.mean()) if len(waited) else 0.0,
    )


def _mean_rows(clock: Int64, until: Int64, after_us: int) -> float:
    held = np.maximum(until - np.maximum(clock[:-1], after_us), 0)
    return float(held.sum() / max(int(clock[-1]) - after_us, 1))


def _first_period(case: Case, settings: RetentionParameters) -> int:
    """Number of the first period that begins after adaptive methods have begun to act."""
    acting = case.start_us // settings.interval_us * settings.interval_us + settings.period_us
    return -(-acting // settings.period_us)


def clairvoyant(case: Case, settings: RetentionParameters, share: float = 0.95) -> Outcome:
    """The least constant retention that meets the target in `share` of the periods that count."""
    period, required = case.now[case.late] // settings.period_us, case.required
    order = np.lexsort((required, period))
    number, begin, count = np.unique(period[order], return_index=True, return_counts=True)
    rank = np.maximum(np.ceil(settings.target * count - 1e-9).astype(np.int64), 1) - 1
    least = required[order[begin + rank]][number >= _first_period(case, settings)]
    g = settings.granularity_us
    need = np.sort((least // g + 1) * g)
    keep = int(need[max(int(np.ceil(share * len(need) - 1e-9)), 1) - 1]) if len(need) else 0
    horizon = np.where(case.now > NEVER, case.now - case.window_us - keep, NEVER)
    return measure(case, settings, (horizon, horizon), symmetric(case, (horizon, horizon)), case.late, False)


def cases(data: Path | None, quick: bool) -> list[tuple[str, Callable[[], Case]]]:
    """Workloads as (group, how to make it); a group's seeds are averaged."""
    made: list[tuple[str, Callable[[], Case]]] = []
    for which in ("D1",) if quick else ("D1", "D2"):
        for seed in (1,) if quick else (1, 2, 3):
            seconds, keep, window = (24.0, 1 / 64, SECOND) if quick else (None, 1 / 32, 2 * SECOND)
            made.append((which, partial(football_case, which, seed, seconds, keep, window)))
    if data is not None and (data / "zeek_events.parquet").exists() and not quick:
        rows = workloads.zeek(data, "dns", "ssl", "orig_h")
        made.append(("zeek", partial(keyed_case, "dns-ssl", rows, 10 * SECOND)))
    return made


def run(data: Path | None, out: Path, progress: Callable[[str], None], *, quick: bool = False) -> dict[str, Any]:
    """Measure every method on every workload; figures 2, 3 and 4. See the package for the parameters."""
    targets = TARGETS[1:3] if quick else TARGETS
    rows: list[dict[str, Any]] = []
    for number, (group, make) in enumerate(cases(data, quick)):
        case = make()
        base = settings_of("paper", 0.9, case.window_us, quick)
        progress(f"{case.name}: {len(case.ts):,} rows, {len(case.early):,} pairs")
        if number == 0:
            vary(case, base, out, progress, quick)
        counted = counts(case, base)
        for method in METHODS:
            progress(f"{case.name}: {method}")
            for target in targets:
                settings = settings_of(method, target, case.window_us, quick)
                found = (
                    clairvoyant(case, settings)
                    if method == "clairvoyant"
                    else run_method(case, settings, counted[method])
                )
                head = {"workload": group, "case": case.name, "method": method, "target": target}
                rows.append(head | asdict(found))
    plots.table(out, "join_measured", list(rows[0]), [list(row.values()) for row in rows])
    draw(out, rows, targets)
    found_all = summary(rows, targets)
    against_slack(out, found_all, targets)
    return found_all | {"goals": goals(found_all, targets, progress)}


def goals(found: dict[str, Any], targets: Sequence[float], progress: Callable[[str], None]) -> list[Goal]:
    """What the default strategy was to reach, and whether it did; speed is judged elsewhere."""
    lines = Goals(progress)
    for group, methods in found.items():
        for target in targets:
            own, label = methods["calibrated"][str(target)], f"{group}, recall {target:g}"
            lines.add(f"{label}: share of periods that met it", 0.95, own["met"], "at least")
            lines.add(f"{label}: latency saved against MP-K-slack", 0.8, own["latency_reduction"], "at least")
            lines.add(f"{label}: rows held saved against MP-K-slack", 0.5, own["memory_reduction"], "at least")
            lines.add(f"{label}: rows held over the clairvoyant's", 1.3, own["memory_over_clairvoyant"], "at most")
    return lines.lines


def vary(
    case: Case, base: RetentionParameters, out: Path, progress: Callable[[str], None], quick: bool
) -> list[dict[str, Any]]:
    """Figures 2a to 2d: one parameter at a time, the others at their defaults, targets 0.90 and 0.95.

    Only the paper's estimator knows basic windows, so only it is drawn against `b`. Each run leaves its own first P out. Where
    the model asks for the largest delay seen, whatever the target (these data), `b` makes no difference, and `g` nearly none.
    """
    rows: list[dict[str, Any]] = []
    for letter, name, label, unit_us, all_values in FIGURE_2:
        values = all_values[1:3] if quick else all_values
        methods = ("paper",) if letter == "c" else QJOIN
        held: dict[str, list[float]] = {}
        reached: dict[str, list[float]] = {}
        for value in values:
            progress(f"{case.name}: {label} {value:g}")
            varied: dict[str, Any] = {name: round(value * unit_us * (0.2 if quick and letter == "a" else 1))}
            own = replace(base, **varied)
            counted = counts(case, own, methods)
            for method in methods:
                for target in FIGURE_2_TARGETS:
                    found = run_method(case, replace(own, estimator=method, target=target), counted[method])
                    rows.append({"figure": f"2{letter}", "parameter": name, "value": value} | asdict(found))
                    rows[-1] |= {"method": method, "target": target}
                    held.setdefault(f"{method}, {target:g}", []).append(found.rows)
                    reached.setdefault(f"{method}, {target:g}", []).append(found.recall)
        panels = {"mean rows held": held, "recall": reached}
        title = f"Figure 2{letter}: {case.name}; default {getattr(base, name) / unit_us:g} {label[-3:-1].strip('[')}"
        plots.panel_figure(
            out, f"join_fig2{letter}_{name.removesuffix('_us')}", label, values, panels, title=title, log_x=True
        )
    plots.table(out, "join_fig2_measured", list(rows[0]), [list(row.values()) for row in rows])
    return rows


def mean_of(rows: list[dict[str, Any]], group: str, method: str, target: float, what: str) -> float:
    """Mean of a figure over a workload's seeds; the share of periods met is weighted by their number."""
    mine = [r for r in rows if (r["workload"], r["method"], r["target"]) == (group, method, target)]
    weights = [r["periods"] if what == "met" else 1 for r in mine]
    return float(np.average([r[what] for r in mine], weights=weights))


def draw(out: Path, rows: list[dict[str, Any]], targets: Sequence[float]) -> None:
    """Per workload: recall and periods met by target, figure 3 (latency) and figure 4 (rows held), as in the paper.

    Figures 3 and 4 are shares of what MP-K-slack needs at the same target. Methods that lie on one line share its label:
    those that answer on arrival all wait 0.
    """
    figures = (
        ("fig2_recall", "recall", "recall reached", False),
        ("fig2_met", "met", "share of periods that met the target", False),
        ("fig3_latency", "latency_us", "mean latency, share of MP-K-slack's", False),
        ("fig4_rows", "rows", "mean rows held, share of MP-K-slack's", True),
    )
    for group in dict.fromkeys(r["workload"] for r in rows):
        cases = ", ".join(dict.fromkeys(r["case"] for r in rows if r["workload"] == group))
        for name, what, label, log in figures:
            lines = {m: [mean_of(rows, group, m, t, what) for t in targets] for m in METHODS}
            if name.startswith(("fig3", "fig4")):
                base = [value or 1.0 for value in lines["mp_k_slack"]]
                lines = {m: [v / b for v, b in zip(values, base, strict=True)] for m, values in lines.items()}
            plots.line_figure(
                out,
                f"join_{name}_{group}",
                "recall target",
                label,
                targets,
                lines,
                title=cases,
                log=log,
                reference=targets if what == "recall" else [0.95] * len(targets) if what == "met" else None,
                legend_beside=True,
            )


def against_slack(out: Path, found: dict[str, Any], targets: Sequence[float]) -> None:
    """What the paper claims, in a table: latency and rows held against MP-K-slack (-80 to -95%, -50 to -80% asked)."""
    columns = (
        "workload",
        "method",
        "target",
        "periods met",
        "latency change [%]",
        "rows held change [%]",
        "rows / clairvoyant's",
    )
    plots.table(
        out,
        "join_against_mp_k_slack",
        columns,
        [
            (
                group,
                method,
                target,
                round(own["met"], 3),
                round(-100 * own["latency_reduction"], 1),
                round(-100 * own["memory_reduction"], 1),
                round(own["memory_over_clairvoyant"], 2),
            )
            for group, methods in found.items()
            for method, by_target in methods.items()
            for target in targets
            for own in [by_target[f"{target:g}"]]
        ],
    )


def summary(rows: list[dict[str, Any]], targets: Sequence[float]) -> dict[str, Any]:
    """Per workload, method and target: target met, recall, rows over the clairvoyant's, reductions against MP-K-slack."""
    found: dict[str, Any] = {}
    for group in dict.fromkeys(r["workload"] for r in rows):
        table = found.setdefault(group, {})
        for method in METHODS:
            for target in targets:
                mine = {
                    k: mean_of(rows, group, method, target, k)
                    for k in ("recall", "met", "rows", "rows_all", "latency_us")
                }
                slack = {k: mean_of(rows, group, "mp_k_slack", target, k) for k in ("rows", "latency_us")}
                best = mean_of(rows, group, "clairvoyant", target, "rows")
                table.setdefault(method, {})[f"{target:g}"] = mine | {
                    "memory_reduction": 1 - mine["rows"] / slack["rows"],
                    "latency_reduction": 1 - mine["latency_us"] / slack["latency_us"] if slack["latency_us"] else 0.0,
                    "memory_over_clairvoyant": mine["rows"] / best,
                }
    return found
