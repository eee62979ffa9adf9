"""The benchmark of top-k: what hit rate does each method reach, after what wait, and with how many candidates?

Where the workload comes from: section 3 of the top-k method of 2021. k 5, windows of 60 s every 5 s, first wait 2 s,
m 10, n 30, least hit rate 0.95, exponential delays, three degrees of disorder. Figures 6a (hit rate over time), 6b
(latency over time) and 6c (hit rate by degree). Added here: real logs, the slowest DNS answers (`rtt`) of a network.

Where it departs from the paper:

* The paper prints neither rates nor delays. Ours are 500 rows/s and mean lags of 4, 10 and 20 s, so that even the mild
  degree needs a wait (answers without one lose about ``lag / 60 s`` of the members). Three seeds are averaged; figures
  over time show the first.
* Scores are independent of lags in the generated data. In the real data they are not, because a DNS row arrives when
  its answer does.
* Latency is stream time from the end of the window to the arrival at which it is answered. Computing time is reported
  apart, as rows/s of ``add``.

How it is measured: one pass per workload, all methods side by side, fed slide by slide. Waits come from the control
plane and the slack policies of `run`, which observe a window as they do there, so the delay of that feedback is part of
the result. Every such policy has its own MinTopK, which answers a window when its wait is over and then forgets it.
Final answers come from a MinTopK that forgets nothing; the run stops if an answer differs from its answer for that
wait. Candidates are counted in rows, each once, just before a window ends. The first quarter of a run, in which
controllers find their wait, is left out of ``hit_rate``, ``latency_s`` and ``periods_met`` (share of minutes whose mean
hit rate reaches the target), but not of ``hit_rate_all`` and figures 6a and 6b. The *clairvoyant* is the least constant
wait that reaches the target over the same windows.

Results: ``docs/experiments/topk-benchmark.md``.

Cost: O(rows) per method, `none` O(rows x size / slide).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol, TypeAlias, TypedDict

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.baselines.topk.immediate import METHODS
from latecomer.baselines.topk.min_topk import MinTopK, TopRows, top_rows
from latecomer.bench import data as workloads
from latecomer.bench import plots
from latecomer.bench.goals import Goal, Goals, Progress, Summary
from latecomer.bench.window_simulator import run_control_plane
from latecomer.core.time import FOREVER, running_max
from latecomer.core.topk.adaptive_wait import AdaptiveWait
from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.topk.slack_policy import AdaptiveWaitSlack
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Observed, SlackPolicy
from latecomer.core.windows.observation import Span

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

SECOND = 1_000_000
K, SIZE_US, SLIDE_US, TARGET = 5, 60 * SECOND, 5 * SECOND, 0.95
PERIOD_US = 60 * SECOND
GRID = Grid(SIZE_US, SLIDE_US)
SHARE = 0.95
MEAN_LAG_S = {"mild": 4, "moderate": 10, "severe": 20}
STEERED = ("adaptive_wait", "calibrated")
ORDER = (*STEERED, *METHODS, "clairvoyant")
RATE, SECONDS, SEEDS = 500, 7_200, (2021, 2022, 2023)
QUICK_RATE, QUICK_SECONDS, QUICK_SEEDS = 40, 2_400, (2021,)


Methods: TypeAlias = dict[str, dict[str, float]]
"""Figures by method and name."""


class Figures(TypedDict, total=False):
    """The figures of one workload; `adaptive_wait_by_seed` only where seeds were averaged."""

    rows: float
    windows: float
    mean_delay_s: float
    held_open: float
    rows_per_s: dict[str, float]
    methods: Methods
    adaptive_wait_by_seed: list[float]


@dataclass(frozen=True)
class Series:
    """Hit rate and latency per window of a workload, for the figures over time.

    Attributes
    ----------
    ends : int64[k]
        Ends of the windows that have an answer, us.
    kept : int64[k]
        Their places among all windows.
    hits, latency : dict of str to float64[windows]
        Hit rate and latency (s) of every window, by method.
    """

    ends: Int64
    kept: Int64
    hits: dict[str, Float64]
    latency: dict[str, Float64]


class _Taker(Protocol):
    """A method that takes in rows."""

    def add(self, event_time_us: Int64, arrival_us: Int64, seq: Int64, score: Float64, /) -> None: ...


class _Method(_Taker, Protocol):
    """A method whose candidates are counted."""

    @property
    def candidates_held(self) -> int: ...


class _Steered:
    """A slack policy of the product with its own MinTopK, which answers a window when its wait is over."""

    def __init__(self, closes_us: Int64, ends: Int64) -> None:
        self.rows = MinTopK(K, SIZE_US, SLIDE_US, FOREVER)
        self.waits_us = np.maximum(closes_us - ends, 0)
        self.answers: dict[int, TopRows] = {}
        self._open = deque(zip(ends.tolist(), (ends + self.waits_us).tolist(), strict=True))

    @property
    def candidates_held(self) -> int:
        """Rows held."""
        return self.rows.candidates_held

    def add(self, event_time_us: Int64, arrival_us: Int64, seq: Int64, score: Float64) -> None:
        """Take in rows in arrival order; answer a window before the first row that its answer does not contain."""
        at = 0
        while self._open and len(arrival_us) and self._open[0][1] <= arrival_us[-1]:
            end, closes_us = self._open.popleft()
            cut = int(np.searchsorted(arrival_us, closes_us))
            if cut > at:
                self.rows.add(event_time_us[at:cut], arrival_us[at:cut], seq[at:cut], score[at:cut])
                at = cut
            self.answer(end)
        if at < len(arrival_us):
            self.rows.add(event_time_us[at:], arrival_us[at:], seq[at:], score[at:])

    def finish(self) -> None:
        """Answer the windows that are open at the end of the stream."""
        while self._open:
            self.answer(self._open.popleft()[0])

    def answer(self, end_us: int) -> None:
        """Answer a window and forget it."""
        self.answers[end_us] = self.rows.answer(end_us)
        self.rows.expire(end_us)


def _closes(event: Int64, arrival: Int64, score: Float64, policy: SlackPolicy, ends: Int64) -> Int64:
    """Return the stream time at which the control plane answers each window, int64[windows] us.

    It is later than the last arrival where a window is open at the end of the stream.
    """
    known = np.flatnonzero(~np.isnan(score))
    pane = event // GRID.pane_us
    none = np.zeros(len(known), np.int64)
    best = known[top_rows(none, pane[known], arrival[known], score[known], event[known], known, K)]
    best = best[np.argsort(pane[best], kind="stable")]
    late = arrival[best] - (GRID.first_of(event[best]) * GRID.slide_us + GRID.size_us)
    bucket = np.where(late >= 0, late // GRID.granularity_us, -1)
    candidates = Candidates(np.zeros(len(best), np.int64), pane[best], bucket, score[best], event[best], best)

    def observed(spans: Sequence[Span]) -> list[list[Observed]]:
        return required_members(candidates, K, GRID, spans)

    mark = run_control_plane(event, GRID, policy, observed, period_us=PERIOD_US).watermark_us
    return np.append(arrival, arrival[-1] + 1)[np.searchsorted(mark, ends)]


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Measure every method on every workload and draw figures 6a to 6c; parameters as :func:`latecomer.bench.run`.

    Returns
    -------
    dict
        JSON-able: per workload and method `hit_rate`, `hit_rate_all`, `periods_met`, `latency_s`, `held` (mean rows,
        each once), `held_open` (without rows of closed windows only), `held_ratio` (over MinTopK's), `rows_per_s`.
    """
    rate, seconds, seeds = (QUICK_RATE, QUICK_SECONDS, QUICK_SEEDS) if quick else (RATE, SECONDS, SEEDS)
    disorder: dict[str, Figures] = {}
    _warm_up()
    series: dict[str, Series] = {}
    for degree, lag_s in MEAN_LAG_S.items():
        measured = []
        for seed in seeds:
            progress(f"topk: {degree} disorder, mean lag {lag_s} s, seed {seed}")
            rows = workloads.exponential(seed, rate * seconds, float(rate), float(lag_s * SECOND))
            figures, over_time = _measure(rows["event_time_us"].to_numpy(), rows["value"].to_numpy())
            measured.append(figures)
            series.setdefault(degree, over_time)
        disorder[degree] = _mean_over_seeds(measured)
    summary: Summary = {"target": TARGET, "disorder": disorder}
    measured_workloads = dict(disorder)
    if data is not None and (data / "zeek_events.parquet").exists():
        progress("topk: zeek, slowest dns answers")
        rows = workloads.zeek_stream(data, "dns")
        score = pc.fill_null(rows["rtt"], float("nan")).to_numpy()
        measured_workloads["zeek"], series["zeek"] = _measure(rows["event_time_us"].to_numpy(), score)
        summary["zeek"] = measured_workloads["zeek"]
    _draw(out, measured_workloads, {"moderate": series["moderate"]} if quick else series)
    return summary | {"goals": goals(measured_workloads, progress)}


def goals(measured: Mapping[str, Figures], progress: Progress) -> list[Goal]:
    """Judge the waiting methods by their goals, but for the speed, which :mod:`latecomer.bench.spark_speed` judges."""
    judged = Goals(progress)
    for workload, figures in measured.items():
        for name in STEERED:
            method = figures["methods"][name]
            judged.add(f"{workload}, {name}: hit rate", TARGET, method["hit_rate"], "at least")
            judged.add(f"{workload}, {name}: candidates held over MinTopk's", 2, method["held_ratio"], "at most")
    return judged.lines


def _mean_over_seeds(measured: Sequence[Figures]) -> Figures:
    """Average every figure over the seeds of a workload."""

    def mean(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {name: float(np.mean([value[name] for value in values])) for name in values[0]}

    methods = [figures["methods"] for figures in measured]
    return {
        "rows": float(np.mean([figures["rows"] for figures in measured])),
        "windows": float(np.mean([figures["windows"] for figures in measured])),
        "mean_delay_s": float(np.mean([figures["mean_delay_s"] for figures in measured])),
        "held_open": float(np.mean([figures["held_open"] for figures in measured])),
        "rows_per_s": mean([figures["rows_per_s"] for figures in measured]),
        "methods": {name: mean([by_name[name] for by_name in methods]) for name in methods[0]},
        "adaptive_wait_by_seed": [by_name["adaptive_wait"]["hit_rate"] for by_name in methods],
    }


def _warm_up() -> None:
    """Compile before anything is timed."""
    _measure(np.arange(0, 400 * SECOND, SECOND // 2)[np.argsort(np.arange(800) % 7, kind="stable")], np.ones(800))


def _measure(event: Int64, score: Float64) -> tuple[Figures, Series]:
    """Run all methods over one stream in arrival order."""
    arrival, seq = running_max(event), np.arange(len(event))
    immediate = {name: method(K, SIZE_US, SLIDE_US) for name, method in METHODS.items()}
    truth = MinTopK(K, SIZE_US, SLIDE_US)
    first_us = -(-(int(arrival[0]) + SIZE_US) // SLIDE_US) * SLIDE_US
    ends = np.arange(first_us, int(arrival[-1]) + 1, SLIDE_US)
    policies: dict[str, SlackPolicy] = {
        "adaptive_wait": AdaptiveWaitSlack(AdaptiveWait(TARGET, slide_us=SLIDE_US)),
        "calibrated": CalibratedSlack(TARGET, GRID, PERIOD_US, SHARE),
    }
    steered = {name: _Steered(_closes(event, arrival, score, policy, ends), ends) for name, policy in policies.items()}
    methods: dict[str, _Method] = {**steered, **immediate}
    takers: dict[str, _Taker] = {**methods, "truth": truth}
    spent = dict.fromkeys(takers, 0.0)
    held: dict[str, list[int]] = {name: [] for name in methods}
    held_open: list[int] = []
    low = 0
    for cut in np.searchsorted(arrival, ends).tolist():
        for name, taker in takers.items():
            started = perf_counter()
            taker.add(event[low:cut], arrival[low:cut], seq[low:cut], score[low:cut])
            spent[name] += perf_counter() - started
        low = cut
        # Just before the window closes, a method holds the most rows of the slide.
        for name, method in methods.items():
            held[name].append(method.candidates_held)
        held_open.append(steered["adaptive_wait"].rows.open_held)
    for taker in takers.values():
        taker.add(event[low:], arrival[low:], seq[low:], score[low:])
    for name, waiting in steered.items():
        waiting.finish()
        for end, wait_us in zip(ends.tolist(), waiting.waits_us.tolist(), strict=True):
            if not np.array_equal(waiting.answers[end].seq, truth.answer(end, wait_us).seq):
                raise AssertionError(f"{name}: the answer of the window that ends at {end} us is not that of its wait")
    waits = {name: waiting.waits_us for name, waiting in steered.items()}
    finals = [truth.answer(int(end)) for end in ends]
    best = np.array([len(final.seq) for final in finals])
    kept = np.flatnonzero(best > 0)
    warm = kept[kept >= len(ends) // 4]
    waits["clairvoyant"] = np.full(len(ends), _clairvoyant(finals, ends, best, warm))
    hits: dict[str, Float64] = {}
    latency: dict[str, Float64] = {}
    for name in ORDER:
        wait_us = waits.get(name, np.zeros(len(ends), np.int64))
        answers = (
            [truth.answer(int(e), int(w)) for e, w in zip(ends, wait_us, strict=True)]
            if name in waits
            else [immediate[name].answer(int(e)) for e in ends]
        )
        common = [len(np.intersect1d(a.seq, f.seq)) for a, f in zip(answers, finals, strict=True)]
        hits[name] = np.array(common) / np.maximum(best, 1)
        answered = arrival[np.minimum(np.searchsorted(arrival, ends + wait_us), len(arrival) - 1)]
        latency[name] = (answered - ends) / SECOND
    figures: Figures = {
        "rows": len(event),
        "windows": len(kept),
        "mean_delay_s": float((arrival - event).mean() / SECOND),
        "held_open": float(np.mean(held_open)),
        "rows_per_s": {name: round(low / spent[name]) for name in methods},
        "methods": {
            name: {
                "hit_rate": float(hits[name][warm].mean()),
                "hit_rate_all": float(hits[name][kept].mean()),
                "periods_met": _periods_met(hits[name][warm], ends[warm]),
                "latency_s": float(latency[name][warm].mean()),
                **(_held(held[name], held["min_topk"]) if name in held else {}),
            }
            for name in ORDER
        },
    }
    return figures, Series(ends[kept], kept, hits, latency)


def _clairvoyant(finals: list[TopRows], ends: Int64, best: NDArray[np.int64], warm: NDArray[np.int64]) -> int:
    """Return the least constant wait in us whose mean hit rate over the windows `warm` reaches the target."""
    needs = np.concatenate([finals[i].arrival_us - ends[i] for i in warm])
    weight = np.concatenate([np.full(best[i], 1 / best[i]) for i in warm])
    order = np.argsort(needs, kind="stable")
    reached = np.cumsum(weight[order]) >= TARGET * len(warm) - 1e-9
    return max(int(needs[order][np.argmax(reached)]) + 1, 0)


def _held(counts: list[int], min_topk: list[int]) -> dict[str, float]:
    """Return the mean rows held, and that over MinTopK's."""
    return {"held": float(np.mean(counts)), "held_ratio": float(np.mean(counts) / np.mean(min_topk))}


def _periods_met(hits: Float64, ends: Int64) -> float:
    """Return the share of periods whose mean hit rate reaches the target."""
    period = (ends - ends[0]) // PERIOD_US
    mean = np.bincount(period, hits) / np.maximum(np.bincount(period), 1)
    return float((mean[np.bincount(period) > 0] >= TARGET - 1e-9).mean())


def _draw(out: Path, measured: Mapping[str, Figures], series: Mapping[str, Series]) -> None:
    """Draw figures 6a and 6b per workload, 6c over the degrees, and write the table of all figures."""
    degrees = list(MEAN_LAG_S)
    for workload, windows in series.items():
        parts = np.array_split(np.arange(len(windows.kept)), min(24, len(windows.kept)))
        minutes = [round(float(windows.ends[part[-1]] - windows.ends[0]) / 60 / SECOND, 1) for part in parts]
        for figure, by_method, label in (
            ("6a", windows.hits, "hit rate"),
            ("6b", windows.latency, "latency [s of stream time]"),
        ):
            lines = {m: [float(by_method[m][windows.kept][part].mean()) for part in parts] for m in ORDER}
            plots.line_figure(
                out, f"topk_{figure}_{workload}", "time [min]", label, minutes, lines,
                title=f"Top-k, {workload}: {label} over time",
                reference=[TARGET] * len(minutes) if figure == "6a" else None, legend_outside=True,
            )  # fmt: skip
    bars = {m: [measured[degree]["methods"][m]["hit_rate"] for degree in degrees] for m in ORDER}
    plots.bar_figure(
        out, "topk_6c_disorder", "disorder", "hit rate", degrees, bars, title="Top-k: hit rate by disorder"
    )
    columns = ("hit_rate", "hit_rate_all", "periods_met", "latency_s", "held", "held_ratio")
    plots.table(
        out,
        "topk_methods",
        ("workload", "method", *columns),
        (
            (workload, m, *(figures["methods"][m].get(column) for column in columns))
            for workload, figures in measured.items()
            for m in ORDER
        ),
    )
