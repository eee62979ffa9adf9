"""The benchmark of aggregates: how long must a window wait until its sum is close enough?

Where the workload comes from: the football games of HPM's Table 1 (rows, late share, mean and largest delay as
published; values are the speeds of sixteen sensors). The query is SUM over windows of 0.5 s every 0.1 s with
``(eps, delta) = (0.05, 0.05)``. Where the data folder is given, network logs (zeek, whole and by host) and phones (ooo)
are added, in which late rows are no random sample.

Where it departs from the paper: the paper's tuples are those of one game, ours are drawn by a seeded generator
(:mod:`latecomer.bench.data`). Throughput over shards is measured twice: in memory, one process per shard, by CPU time;
and of `run` on Spark, by the clock (:mod:`latecomer.bench.aggregate_spark`). Both are judged against a ``ceiling``: the
throughput of as many copies of the whole stream at the same time, which share nothing but the machine.

How it is measured: every strategy runs over the same arrivals. An answer is one window of one group.

* ``kept``: share of answers within the error; the goal is 0.95.
* ``periods_kept``: share of minutes in which at least 0.95 of the answers are within the error. A minute of six answers
  cannot miss one, so this says little where windows are few.
* ``periods_passed``: share of minutes that miss no more answers than chance allows, as `check` judges them.
* *clairvoyant*: the least constant slack that keeps 0.95 of all answers, the least cost of a constant.

Figures: 3, slack over time; 4, mean delay; 5, cumulative accuracy with and without repair (a flush ends the stream and
repairs all rows); 6, throughput by shards. ``goals`` lists the goals and whether each was met.

References
----------
HPM, the high-precision method for windowed aggregates, 2019.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from latecomer.bench import aggregate_spark as on_spark
from latecomer.bench import data as sources
from latecomer.bench import plots
from latecomer.bench.goals import Goal, Goals, Progress, Summary
from latecomer.bench.timing import run_in_processes
from latecomer.bench.window_simulator import (
    ClosedWindows,
    clairvoyant_slack,
    lost_answers,
    required_in_hindsight,
    run_pass,
)
from latecomer.core.aggregate.coverage import Function
from latecomer.core.windows.calibrated_slack import CalibratedSlack
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.interfaces import Observed, SlackPolicy
from latecomer.core.windows.slack_policies import Fixed, LargestDelay, Proportional
from latecomer.quality.promise import allowed_misses

Measures: TypeAlias = dict[str, float | None]

ERROR, DELTA = 0.05, 0.05
STRATEGIES = ("mp_k_slack", "hpm", "calibrated", "aq_k_slack", "k_slack", "clairvoyant")
PLOTTED = ("hpm", "calibrated", "mp_k_slack", "aq_k_slack")
ZEEK = (
    ("dns", None, 10, 2), ("dns", "orig_h", 10, 2), ("dns", "orig_h", 60, 20), ("dns", "resp_h", 5, 1),
    ("ssl", None, 10, 2), ("ssl", "orig_h", 30, 10), ("ssl", "resp_h", 5, 5), ("weird", None, 10, 2),
)  # fmt: skip
"""Log, group column, size and slide of the windows in seconds."""
GAME_WINDOW = Grid(500_000, 100_000)
MOST_TO_MP, LEAST_OF_CEILING = 0.2, 0.9
"""Goals: mean slack and wait over those of MP-K-slack; throughput of shards over that of copies of the whole stream."""
PERIOD_US = 60_000_000
SHARD_ROWS = 140_000
"""Tuples per game whose shards are timed in memory: 2.2 M in all."""


@dataclass(frozen=True)
class Case:
    """One stream in arrival order with one query over it; `group` is None where the query has no groups."""

    event_time_us: NDArray[np.int64]
    value: NDArray[np.float64]
    group: NDArray[np.int64] | None
    grid: Grid
    function: Function


def policy_of(name: str, grid: Grid, required: Sequence[Observed] = ()) -> SlackPolicy:
    """Return a strategy's slack policy with the parameters of its paper.

    ``k_slack`` waits for one window; ``clairvoyant`` takes its slack from `required`, the waits known afterwards.
    """
    if name in ("hpm", "aq_k_slack"):
        return Proportional(0.2, 4.0, 1.0, grid.granularity_us)
    if name == "calibrated":
        return CalibratedSlack(1 - DELTA, grid, PERIOD_US, 0.95)
    if name == "clairvoyant":
        return Fixed(clairvoyant_slack(required, 1 - DELTA))
    return LargestDelay() if name == "mp_k_slack" else Fixed(grid.size_us)


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Run the benchmark; parameters and result as :func:`latecomer.bench.run`."""
    measures: dict[str, Measures] = {}
    waits_s: dict[str, list[float]] = {strategy: [] for strategy in (*PLOTTED, "clairvoyant")}
    cases = _cases(data, quick)
    games = [name for name in cases if name.startswith("game")]
    for name, case in cases.items():
        required = required_in_hindsight(
            case.event_time_us, case.value, case.grid, functions=[case.function], error=ERROR, group=case.group
        )
        passes: dict[str, ClosedWindows] = {}
        slowest: dict[str, float] = {}
        for strategy in STRATEGIES:
            started = time.perf_counter()
            closed = run_pass(
                case.event_time_us, case.value, case.grid, policy_of(strategy, case.grid, required),
                functions=[case.function], error=ERROR, delta=DELTA, period_us=PERIOD_US,
                by_answer=strategy == "calibrated", group=case.group,
                observe_us=None if strategy == "calibrated" else case.grid.size_us,
            )  # fmt: skip
            spent = time.perf_counter() - started
            measured = _measured(closed, case, required) | {"rows_per_second": len(case.event_time_us) / spent}
            passes[strategy], slowest = closed, slowest or measured
            ratios = {
                f"{key}_to_mp": measured[f"{key}_mean_s"] / slowest[f"{key}_mean_s"]
                if slowest[f"{key}_mean_s"]
                else None
                for key in ("slack", "wait")
            }
            measures[f"{name}.{strategy}"] = {**measured, **ratios}
            if name in games and strategy in waits_s:
                waits_s[strategy].append(measured["wait_mean_s"])
            progress(
                f"{name} {strategy}: mean wait {measured['wait_mean_s']:.3f} s, kept {measured['kept']:.4f}, "
                f"periods kept {measured['periods_kept']:.2f}, {measured['periods_passed']:.2f} by the check"
            )
        if name in games:
            _draw_game(out, name, passes)
    plots.bar_figure(
        out, "fig4_mean_delay", "game", "mean delay of an answer, s", games, waits_s, title="Figure 4", log=True
    )
    columns = list(next(iter(measures.values())))
    rows = [(*name.split(".", 1), *(values[column] for column in columns)) for name, values in measures.items()]
    plots.table(out, "strategies", ["case", "strategy", *columns], rows)
    shards, ceiling = _measure_shards(out, progress, quick)
    summary: Summary = {**measures, "shards": shards, "ceiling": ceiling}
    totals: dict[str, float] = {}
    if not quick:
        rates, totals = on_spark.measure(out, progress)
        summary["spark"] = rates | totals
    return summary | {"goals": goals(measures, shards, ceiling, totals, progress)}


def goals(
    measures: Mapping[str, Measures],
    shards: Mapping[str, float],
    ceiling: Mapping[str, float],
    spark: Mapping[str, float],
    progress: Progress,
) -> list[Goal]:
    """Judge the measurements by the goals, but for the speed, which :mod:`latecomer.bench.spark_speed` judges.

    Parameters
    ----------
    measures : mapping
        Measurements by ``case.strategy``.
    shards, ceiling : mapping
        Rows per second by number of shards, and throughput of as many copies over that of one.
    spark : mapping
        Totals of :func:`latecomer.bench.aggregate_spark.measure`; empty where Spark was not measured.
    progress : callable
        Called with a line per goal.
    """
    judged = Goals(progress)
    for name, values in measures.items():
        case, _, strategy = name.partition(".")
        if strategy == "calibrated" or (case.startswith("game") and strategy == "hpm"):
            judged.add(f"{case}, answers within the error by {strategy}", 1 - DELTA, values["kept"], "at least")
        if case.startswith("game") and strategy in ("hpm", "calibrated"):
            for key in ("slack", "wait"):
                goal = f"{case}, mean {key} of {strategy} over that of mp_k_slack"
                judged.add(goal, MOST_TO_MP, values[f"{key}_to_mp"], "at most")
    for count, most in ceiling.items():
        judged.add(
            f"in memory, {count} shards over one", LEAST_OF_CEILING * most, shards[count] / shards["1"], "at least"
        )
    if "speedup" in spark:
        name = f"on Spark, {on_spark.cores_to_try()[-1]} cores over one, a shard each"
        judged.add(name, LEAST_OF_CEILING * spark["ceiling"], spark["speedup"], "at least")
    if spark:
        judged.add("answers that are wrong after repair", 0, spark["wrong_after_repair"], "at most")
    return judged.lines


def _cases(data: Path | None, quick: bool) -> dict[str, Case]:
    """Generate and load the streams, by name."""
    cases: dict[str, Case] = {}
    for game in (1, 2):
        table = sources.football_aggregate(7, game, 40_000 if quick else None)
        times, value = table["event_time_us"].to_numpy(), table["value"].to_numpy()
        cases[f"game{game}"] = Case(times, value, None, GAME_WINDOW, Function("sum", 0))
    if data is None:
        return cases
    for log, column, size, slide in ZEEK:
        table = sources.zeek_stream(data, log)
        times = table["event_time_us"].to_numpy()
        group = None if column is None else table[column].combine_chunks().dictionary_encode(null_encoding="encode")
        cases[f"zeek_{log}_{column or 'all'}_{size}s"] = Case(
            times,
            np.ones(len(times)),
            None if group is None else group.indices.to_numpy(zero_copy_only=False).astype(np.int64),
            Grid(size * 1_000_000, slide * 1_000_000),
            Function("count", None),
        )
    for session in ("d-1", "d-3"):
        times = sources.ooo(data, session)["event_time_us"].to_numpy()
        cases[f"ooo_{session}"] = Case(
            times, np.ones(len(times)), None, Grid(1_000_000, 500_000), Function("count", None)
        )
    return cases


def _measured(closed: ClosedWindows, case: Case, required: Sequence[Observed]) -> dict[str, float]:
    """Return slack, wait, shares of answers and of periods within the error, and accuracy of the window totals."""
    lost, answers = lost_answers(required, closed.wait_us, case.grid)
    _, period = np.unique((case.grid.end(closed.window) - 1) // PERIOD_US, return_inverse=True)
    lost_in_period, answers_in_period = np.bincount(period, lost), np.bincount(period, answers)
    allowed = [allowed_misses(int(count), 1 - DELTA) + 1e-9 for count in answers_in_period]
    error = np.minimum(closed.error(count=case.function.name == "count"), 1.0)
    return {
        "windows": len(error),
        "answers": int(answers.sum()),
        "slack_mean_s": float(closed.slack_us.mean() / 1e6),
        "wait_mean_s": float(closed.wait_us.mean() / 1e6),
        "kept": float(1 - lost.sum() / answers.sum()),
        "periods_kept": float(np.mean(lost_in_period <= DELTA * answers_in_period + 1e-9)),
        "periods_passed": float(np.mean(lost_in_period <= allowed)),
        "coverage": float(closed.first_rows.sum() / closed.final_rows.sum()),
        "accuracy_first": float(1 - error.mean()),
        "rows_held_mean": closed.held_mean,
    }


def _draw_game(out: Path, case: str, passes: dict[str, ClosedWindows]) -> None:
    """Draw figures 3 and 5 of one game."""
    hpm = passes["hpm"]
    at = np.linspace(0, len(hpm.window) - 1, 300).astype(int)
    seconds = ((hpm.window[at] - hpm.window[0]) * GAME_WINDOW.slide_us / 1e6).tolist()
    slack = {name: (passes[name].slack_us[at] / 1e6).tolist() for name in PLOTTED}
    plots.line_figure(
        out, f"fig3_slack_{case}", "stream time, s", "slack, s", seconds, slack, title=f"Figure 3, {case}",
        legend_outside=True,
    )  # fmt: skip
    accuracy: dict[str, list[float | None]] = {}
    for name in PLOTTED:
        error = np.minimum(passes[name].error(), 1.0)
        accuracy[name] = (1 - np.cumsum(error) / np.arange(1, len(error) + 1))[at].tolist()
    # Repair counts a late row from the arrival that ends its micro-batch, here at most 5 s of event time later.
    error = np.minimum(hpm.error(), 1.0)
    lag = 5_000_000 // GAME_WINDOW.slide_us
    error_after_repair = np.array([error[max(i - lag, 0) : i + 1].sum() / (i + 1) for i in at])
    error_after_repair[-1] = 0.0  # the flush at the end of the stream repairs all rows
    accuracy["hpm, repaired"] = (1 - error_after_repair).tolist()
    plots.line_figure(
        out, f"fig5_accuracy_{case}", "stream time, s", "cumulative accuracy", seconds, accuracy,
        title=f"Figure 5, {case}", reference=[0.95] * len(seconds), legend_outside=True,
    )  # fmt: skip


def _shard_seconds(times: NDArray[np.int64], value: NDArray[np.float64]) -> float:
    """Return the CPU seconds of one shard's pass, the best of three."""
    spent = []
    for _ in range(3):
        policy, started = policy_of("hpm", GAME_WINDOW), time.process_time()
        run_pass(times, value, GAME_WINDOW, policy, error=ERROR, delta=DELTA, period_us=PERIOD_US)
        spent.append(time.process_time() - started)
    return min(spent)


def _measure_shards(out: Path, progress: Progress, quick: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Measure throughput in memory by number of shards (figure 6), by the CPU time of the slowest shard.

    Returns
    -------
    shards : dict
        Rows per second of all shards, by their number.
    ceiling : dict
        Rows per second of as many copies of the whole stream over those of one, by their number, up to the cores.
    """
    shards: dict[str, float] = {}
    ceiling: dict[str, float] = {}
    games, rows = (2, 10_000) if quick else (on_spark.GAMES, SHARD_ROWS)
    table = on_spark.events(games, rows)
    times, value, sensor = (table[name].to_numpy() for name in ("event_ts", "value", "sensor"))
    for count in (1, 2) if quick else (1, 2, 4):
        parts = [sensor % count == shard for shard in range(count)]
        rate = len(times) / max(run_in_processes(_shard_seconds, [(times[part], value[part]) for part in parts]))
        shards[str(count)] = rate
        line = f"{count} shards in memory, a core each: {rate:,.0f} rows/s"
        if 1 < count <= on_spark.cores_to_try()[-1]:
            alone, copies = shards["1"], max(run_in_processes(_shard_seconds, [(times, value)] * count))
            ceiling[str(count)] = count * len(times) / copies / alone
            line += f", {rate / alone:.2f} times one; as many copies of the whole {ceiling[str(count)]:.2f} times"
        progress(line)
    plots.bar_figure(
        out, "fig6_throughput", "shards", "rows/s", list(shards), {"hpm": list(shards.values())}, title="Figure 6"
    )
    return shards, ceiling
