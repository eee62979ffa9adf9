"""The benchmark of promises: which share of periods keeps its target, at which cost over the best constant?

Where the workload comes from: the recipes of :mod:`latecomer.bench.promise_streams`, each drawn with five seeds, and
the real streams. The seeds of a stream take the targets 0.9, 0.95 and 0.99 in turn. All five kinds run on every stream,
through the control planes of `run` (:mod:`latecomer.bench.promise_simulator`). With ``--held-out`` seeds are taken that
no policy was built on.

How it is measured:

* ``kept``: share of periods in which at least `target` of what was due was on time, or recalled; among all periods, and
  among those after the first 20, which are learning. Due is what the complete stream implies.
* ``kept_at_close``: the same with everything that a windowed kind may publish until the period closes: its results and
  revisions of late rows count. A period closes when the watermark has passed the end of the period after it.
* *clairvoyant*: the least constant wait or retention that keeps the promise in 95% of the periods after learning.
* ``rows_over``, ``wait_over``: rows held, of a join with the rows that it reads again, and mean wait of a
  contribution, both over the clairvoyant's, after learning.
* ``unforeseen``: periods missed that a wait for the largest delay so far, however large, misses too. No rule keeps them
  that knows the past alone and waits no longer than it has reason to.

Figures: ``promise_kept``, share of periods kept by stream; ``promise_rows``, rows over the clairvoyant's.
Results: ``docs/experiments/promise.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from latecomer.bench import plots
from latecomer.bench import promise_streams as streams
from latecomer.bench.goals import Goal, Goals, Progress, Summary
from latecomer.bench.promise_simulator import KINDS, WINDOWED, JoinCase, Outcome, WindowCase
from latecomer.core.windows.slack_policies import LargestDelay

TARGETS = (0.9, 0.95, 0.99)
QUICK_STREAMS = ("bursts", "clock_of_1970")
QUICK_PERIODS = 23
MOST_ROWS_OVER, LEAST_KEPT, LEAST_OF_STREAM = 1.3, 0.95, 0.9
"""Goals: mean rows over the clairvoyant's; share of periods kept over all streams, and in each."""
SHORTEST_WAIT = 0.01
"""Least wait of a clairvoyant, in periods, that others are compared with: nearly nothing divides nothing."""


VERSIONS = {"before": True, "after": False}
"""The rules of 0.1.0, and those that a new query has today; True: earlier rules."""


@dataclass(frozen=True)
class Measured:
    """One version of one kind on one stream at one target; counts of periods are those after learning."""

    stream: str
    seed: int
    kind: str
    target: float
    version: str
    periods_all: int
    kept_all: int
    periods: int
    kept: int
    kept_at_close: int
    unforeseen: int
    rows: float
    rows_recalled: float
    rows_clairvoyant: float
    wait_us: float
    wait_clairvoyant_us: float
    period_us: int

    @property
    def rows_over(self) -> float | None:
        """Rows held and recalled over the clairvoyant's; None where that holds no row."""
        return (self.rows + self.rows_recalled) / self.rows_clairvoyant if self.rows_clairvoyant > 0 else None

    @property
    def wait_over(self) -> float:
        """Mean wait over the clairvoyant's, which counts as `SHORTEST_WAIT` at least."""
        least = SHORTEST_WAIT * self.period_us
        return max(self.wait_us, least) / max(self.wait_clairvoyant_us, least)


def measure(stream: streams.Stream, seed: int, target: float, kinds: Sequence[str] = KINDS) -> list[Measured]:
    """Measure every version of the kinds on one stream at one target."""
    measured = []
    for kind in kinds:
        case = JoinCase(stream) if kind == "join" else WindowCase(stream, kind)
        best = case.clairvoyant(target)
        largest = None if isinstance(case, JoinCase) else case.run(LargestDelay(), target)
        for name, earlier in VERSIONS.items():
            outcome = case.run_default(target, earlier=earlier)
            measured.append(_measured(stream, seed, kind, target, name, outcome, best, largest))
    return measured


def _measured(
    stream: streams.Stream,
    seed: int,
    kind: str,
    target: float,
    version: str,
    outcome: Outcome,
    best: Outcome,
    largest: Outcome | None,
) -> Measured:
    after = outcome.period >= outcome.learning
    good, good_at_close = outcome.good(target), outcome.good(target, at_close=True)
    unforeseen = np.zeros(len(good), bool) if largest is None else ~good & ~largest.good(target)
    return Measured(
        stream.name, seed, kind, target, version,
        len(good), int(good.sum()), int(after.sum()), int(good[after].sum()), int(good_at_close[after].sum()),
        int(unforeseen[after].sum()), outcome.held, outcome.recalled, best.held, outcome.wait_us, best.wait_us,
        stream.period_us,
    )  # fmt: skip


def _drawn(name: str, seed: int, target: float, periods: int | None) -> list[Measured]:
    return measure(streams.draw(name, seed, periods=periods), seed, target)


def _loaded(name: str, data: Path | None, target: float) -> list[Measured]:
    stream = streams.load_real(name, data)
    return [] if stream is None else measure(stream, 0, target)


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False, held_out: bool = False) -> Summary:
    """Run the benchmark; parameters and result as :func:`latecomer.bench.run`.

    With `held_out` the streams are drawn with seeds that are for the report alone; the real ones are left out.
    """
    tasks: list[tuple[Callable[..., list[Measured]], tuple[object, ...]]] = []
    seeds = streams.HELD_OUT if held_out else streams.SEEN
    for place, name in enumerate(QUICK_STREAMS if quick else streams.RECIPES):
        for turn, seed in enumerate(seeds[:1] if quick else seeds):
            target = TARGETS[(place + turn) % len(TARGETS)]
            tasks.append((_drawn, (name, seed, target, QUICK_PERIODS if quick else None)))
    if not quick and not held_out:
        tasks += [(_loaded, (name, data, target)) for name in streams.REAL for target in TARGETS]
    measured: list[Measured] = []
    for number, part in enumerate(_results(tasks, quick), 1):
        measured += part
        if part and number % 10 == 0:
            progress(f"promise: {number} of {len(tasks)} streams")
    columns = [*asdict(measured[0]), "rows_over", "wait_over"]
    rows = [[*asdict(m).values(), m.rows_over, m.wait_over] for m in measured]
    plots.table(out, "promise_measured", columns, rows)
    by_stream = _by_stream(measured)
    _draw(out, by_stream)
    summary = _summary(measured)
    names = list(next(iter(summary.values())))
    plots.table(out, "promise", ["version", "kind", "target", *names], [
        (*key.split(" "), *figures.values()) for key, figures in summary.items()
    ])  # fmt: skip
    for key, figures in summary.items():
        progress(f"{key}: " + ", ".join(f"{name} {_short(value)}" for name, value in figures.items()))
    return {"figures": summary, "streams": by_stream, "goals": goals(summary, by_stream, progress)}


def _results(
    tasks: Sequence[tuple[Callable[..., list[Measured]], tuple[object, ...]]], quick: bool
) -> Iterable[list[Measured]]:
    """Yield the results of the tasks in order; they run side by side unless they are quick."""
    if quick:
        yield from (work(*args) for work, args in tasks)
        return
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        running = [pool.submit(work, *args) for work, args in tasks]
        for future in running:
            yield future.result()


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _summary(measured: Sequence[Measured]) -> dict[str, dict[str, float | None]]:
    """Return the figures over all streams by ``version kind target``; the target ``all`` is over all targets."""
    figures: dict[str, dict[str, float | None]] = {}
    for version in VERSIONS:
        for kind in KINDS:
            for target in (*TARGETS, None):
                chosen = [m for m in measured if (m.version, m.kind) == (version, kind) and target in (None, m.target)]
                name = f"{version} {kind} {'all' if target is None else target}"
                if chosen:
                    figures[name] = _figures(chosen)
    return figures


def _figures(chosen: Sequence[Measured]) -> dict[str, float | None]:
    """Return shares of periods over several measurements, and the means of their costs."""
    learned = [m for m in chosen if m.periods]
    rows = [over for m in learned if (over := m.rows_over) is not None]
    periods = sum(m.periods for m in chosen)
    return {
        "periods": float(periods),
        "kept_all": _share(sum(m.kept_all for m in chosen), sum(m.periods_all for m in chosen)),
        "kept": _share(sum(m.kept for m in chosen), periods),
        "kept_at_close": _share(sum(m.kept_at_close for m in chosen), periods),
        "unforeseen": _share(sum(m.unforeseen for m in chosen), periods),
        "rows_over_mean": float(np.mean(rows)) if rows else None,
        "rows_over_median": float(np.median(rows)) if rows else None,
        "wait_over_median": float(np.median([m.wait_over for m in learned])) if learned else None,
        "wait_over_geometric": float(np.exp(np.mean(np.log([m.wait_over for m in learned])))) if learned else None,
    }


def _by_stream(measured: Sequence[Measured]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the figures of each stream, over its seeds and targets, by ``version kind``."""
    names = list(dict.fromkeys(m.stream for m in measured))
    by_stream: dict[str, dict[str, dict[str, float | None]]] = {}
    for name in names:
        for version in VERSIONS:
            for kind in KINDS:
                chosen = [m for m in measured if (m.stream, m.version, m.kind) == (name, version, kind)]
                by_stream.setdefault(name, {})[f"{version} {kind}"] = _figures(chosen)
    return by_stream


def goals(
    summary: Mapping[str, Mapping[str, float | None]],
    by_stream: Mapping[str, Mapping[str, Mapping[str, float | None]]],
    progress: Progress,
) -> list[Goal]:
    """Judge the rules of today; of a stream of a windowed kind, the periods that could be foreseen."""
    judged = Goals(progress)
    join = summary["after join all"]
    judged.add("join, periods kept", 1.0, join["kept_all"], "at least")
    judged.add("join, rows held and recalled over the clairvoyant's", MOST_ROWS_OVER, join["rows_over_mean"], "at most")
    for kind in WINDOWED:
        judged.add(f"{kind}, periods kept after learning", LEAST_KEPT, summary[f"after {kind} all"]["kept"], "at least")
        for name, figures in by_stream.items():
            kept, unforeseen = figures[f"after {kind}"]["kept"], figures[f"after {kind}"]["unforeseen"]
            if kept is None or unforeseen is None or kept >= LEAST_OF_STREAM:
                continue
            foreseen = kept / (1.0 - unforeseen) if unforeseen < 1 else 1.0
            text = f"{kind} on {name}, periods kept of those that could be foreseen ({kept:.3f} of all)"
            judged.add(text, LEAST_OF_STREAM, foreseen, "at least")
    return judged.lines


def _draw(out: Path, by_stream: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> None:
    """Draw, per kind, the share of periods kept after learning and the rows over the clairvoyant's, by stream."""
    names = list(by_stream)
    for figure, quantity, label, reference in (
        ("promise_kept", "kept", "share of periods kept after learning", LEAST_KEPT),
        ("promise_rows", "rows_over_mean", "rows held and recalled over the clairvoyant's", 1.0),
    ):
        panels = {
            kind: {version: [by_stream[name][f"{version} {kind}"][quantity] for name in names] for version in VERSIONS}
            for kind in KINDS
        }
        plots.dot_figure(out, figure, label, names, panels, reference=reference, log=quantity != "kept")
