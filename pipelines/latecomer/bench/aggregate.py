"""How long must a window wait so that its sum is close enough, and what does waiting for the slowest cost?

Workload: the football games of HPM's Table 1 by our seeded generator (rows, late share, mean and largest delay as published;
values are speeds of sixteen sensors), SUM over windows of 0.5 s every 0.1 s, ``(eps, delta) = (0.05, 0.05)``; and, where the
data folder is given, network logs (zeek, whole and by host) and phones (ooo), where late rows are no random sample. Departure
from the paper: its tuples are one game's, ours are drawn; throughput over shards is measured twice, of the in-memory pass, one process
a shard and by CPU time, and of `run` on Spark by the clock (:mod:`latecomer.bench.aggregate_spark`). Both are
judged by their ``ceiling``, which that module explains: what as many copies of the whole reach at once.

Every strategy runs over the same arrivals in one run. `kept` is the share of answers (a group's window is one) within the error,
to be 0.95; `periods_kept` the share of minutes of which that holds, which for a minute of a few windows says little (six answers
may miss none); `periods_passed` that of minutes which do not miss more than chance would, as `check` judges them. *clairvoyant*
is the least constant slack that keeps 0.95 of all answers: what a constant costs at least, known afterwards. Figures: 3 slack over time, 4 mean delay, 5 cumulative accuracy, with
and without repair (a flush ends the stream: all is repaired then), 6 throughput against shards. `goals` says what was to be reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.bench import aggregate_spark as on_spark
from latecomer.bench import data as sources
from latecomer.bench import plots
from latecomer.bench.goals import Goal, Goals
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

ERROR, DELTA = 0.05, 0.05
STRATEGIES = ("mp_k_slack", "hpm", "calibrated", "aq_k_slack", "k_slack", "clairvoyant")
DRAWN = ("hpm", "calibrated", "mp_k_slack", "aq_k_slack")
ZEEK = (
    ("dns", None, 10, 2), ("dns", "orig_h", 10, 2), ("dns", "orig_h", 60, 20), ("dns", "resp_h", 5, 1), ("ssl", None, 10, 2),
    ("ssl", "orig_h", 30, 10), ("ssl", "resp_h", 5, 5), ("weird", None, 10, 2),
)  # fmt: skip
"""Log, column of the groups, size and slide in seconds."""
GAME_WINDOW = Grid(500_000, 100_000)
MOST_TO_MP, LEAST_OF_CEILING = 0.2, 0.9
"""Goals: mean slack and wait against MP-K-slack's; throughput of shards, a core each, against that of copies of the whole."""
PERIOD_US = 60_000_000
SHARD_ROWS = 140_000
"""Tuples of each of the games whose shards are timed in memory: 2.2 M in all."""


@dataclass(frozen=True)
class Case:
    """One stream with one query over it."""

    event_time_us: NDArray[np.int64]
    value: NDArray[np.float64]
    group: NDArray[np.int64] | None
    grid: Grid
    function: Function


def policy_of(name: str, grid: Grid, required: Sequence[Observed] = ()) -> SlackPolicy:
    """A strategy's slack policy with the paper's parameters; ``k_slack`` waits one window, ``clairvoyant`` knows `required`."""
    if name in ("hpm", "aq_k_slack"):
        return Proportional(0.2, 4.0, 1.0, grid.granularity_us)
    if name == "calibrated":
        return CalibratedSlack(1 - DELTA, grid, PERIOD_US, 0.95)
    if name == "clairvoyant":
        return Fixed(clairvoyant_slack(required, 1 - DELTA))
    return LargestDelay() if name == "mp_k_slack" else Fixed(grid.size_us)


def run(data: Path | None, out: Path, progress: Callable[[str], None], *, quick: bool = False) -> dict[str, Any]:
    """Run the benchmark; see the module docstring."""
    cases = _cases(data, quick)
    found: dict[str, Any] = {}
    games = [name for name in cases if name.startswith("game")]
    for name, case in cases.items():
        required = required_in_hindsight(
            case.event_time_us, case.value, case.grid, functions=[case.function], error=ERROR, group=case.group
        )
        passes: dict[str, ClosedWindows] = {}
        base: dict[str, Any] = {}
        for strategy in STRATEGIES:
            started = time.perf_counter()
            closed = run_pass(
                case.event_time_us, case.value, case.grid, policy_of(strategy, case.grid, required), functions=[case.function],
                error=ERROR, delta=DELTA, period_us=PERIOD_US, by_answer=strategy == "calibrated", group=case.group,
                observe_us=None if strategy == "calibrated" else case.grid.size_us,
            )  # fmt: skip
            spent = time.perf_counter() - started
            measured = _measured(closed, case, required) | {"rows_per_second": len(case.event_time_us) / spent}
            passes[strategy], base = closed, base or measured
            for key in ("slack", "wait"):
                most = base[f"{key}_mean_s"]
                measured[f"{key}_to_mp"] = measured[f"{key}_mean_s"] / most if most else None
            found[f"{name}.{strategy}"] = measured
            progress(
                f"{name} {strategy}: mean wait {measured['wait_mean_s']:.3f} s, kept {measured['kept']:.4f}, "
                f"periods kept {measured['periods_kept']:.2f}, {measured['periods_passed']:.2f} by the check"
            )
        if name in games:
            _figures(out, name, passes)
    plots.bar_figure(
        out, "fig4_mean_delay", "game", "mean delay of an answer, s", games,
        {s: [found[f"{game}.{s}"]["wait_mean_s"] for game in games] for s in (*DRAWN, "clairvoyant")}, title="Figure 4", log=True,
    )  # fmt: skip
    keys = list(next(iter(found.values())))
    rows = [(*name.split(".", 1), *(one[key] for key in keys)) for name, one in found.items()]
    plots.table(out, "strategies", ["case", "strategy", *keys], rows)
    found |= _shards(out, progress, quick)
    if not quick:
        found["spark"] = on_spark.measure(out, progress)
    return found | {"goals": goals(found, progress)}


def goals(found: dict[str, Any], progress: Callable[[str], None]) -> list[Goal]:
    """What was to be reached, what was measured, and whether it was; speed against Spark's own is summed up elsewhere."""
    lines = Goals(progress)
    add = lines.add
    for name, each in found.items():
        case, _, strategy = name.partition(".")
        if strategy == "calibrated" or (case.startswith("game") and strategy == "hpm"):
            add(f"{case}, answers within the error by {strategy}", 1 - DELTA, each["kept"], "at least")
        if case.startswith("game") and strategy in ("hpm", "calibrated"):
            for key in ("slack", "wait"):
                add(
                    f"{case}, mean {key} of {strategy} over that of mp_k_slack",
                    MOST_TO_MP,
                    each[f"{key}_to_mp"],
                    "at most",
                )
    shards = found["shards"]
    for each, ceiling in found["ceiling"].items():
        add(f"in memory, {each} shards over one", LEAST_OF_CEILING * ceiling, shards[each] / shards["1"], "at least")
    if "speedup" in found.get("spark", {}):
        name = f"on Spark, {on_spark.cores_to_try()[-1]} cores over one, a shard each"
        add(name, LEAST_OF_CEILING * found["spark"]["ceiling"], found["spark"]["speedup"], "at least")
    if "spark" in found:
        add("answers that are wrong after repair", 0, found["spark"]["wrong_after_repair"], "at most")
    return lines.lines


def _cases(data: Path | None, quick: bool) -> dict[str, Case]:
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


def _measured(closed: ClosedWindows, case: Case, required: Sequence[Observed]) -> dict[str, Any]:
    """Slack, wait, share of answers within the error, share of periods in which enough were, accuracy of window totals."""
    lost, answers = lost_answers(required, closed.wait_us, case.grid)
    _, place = np.unique((case.grid.end(closed.window) - 1) // PERIOD_US, return_inverse=True)
    off, own = np.bincount(place, lost), np.bincount(place, answers)
    error = np.minimum(closed.error(count=case.function.name == "count"), 1.0)
    return {
        "windows": len(error),
        "answers": int(answers.sum()),
        "slack_mean_s": float(closed.slack_us.mean() / 1e6),
        "wait_mean_s": float(closed.wait_us.mean() / 1e6),
        "kept": float(1 - lost.sum() / answers.sum()),
        "periods_kept": float(np.mean(off <= DELTA * own + 1e-9)),
        "periods_passed": float(np.mean(off <= [allowed_misses(int(n), 1 - DELTA) + 1e-9 for n in own])),
        "coverage": float(closed.first_rows.sum() / closed.final_rows.sum()),
        "accuracy_first": float(1 - error.mean()),
        "rows_held_mean": closed.held_mean,
    }


def _figures(out: Path, case: str, passes: dict[str, ClosedWindows]) -> None:
    at = np.linspace(0, len(passes["hpm"].window) - 1, 300).astype(int)
    seconds = ((passes["hpm"].window[at] - passes["hpm"].window[0]) * GAME_WINDOW.slide_us / 1e6).tolist()
    slack = {name: (passes[name].slack_us[at] / 1e6).tolist() for name in DRAWN}
    title = f"Figure 3, {case}"
    plots.line_figure(
        out, f"fig3_slack_{case}", "stream time, s", "slack, s", seconds, slack, title=title, legend_beside=True
    )
    accuracy: dict[str, list[float | None]] = {}
    for name in DRAWN:
        error = np.minimum(passes[name].error(), 1.0)
        running = 1 - np.cumsum(error) / np.arange(1, len(error) + 1)
        accuracy[name] = running[at].tolist()
    # repaired: a late row counts from the arrival that closes its batch, here at the latest 5 s of event time later
    error = np.minimum(passes["hpm"].error(), 1.0)
    lag = 5_000_000 // GAME_WINDOW.slide_us
    mended = np.array([error[max(i - lag, 0) : i + 1].sum() / (i + 1) for i in at])
    mended[-1] = 0.0  # the stream ends: flushed
    accuracy["hpm, repaired"] = (1 - mended).tolist()
    plots.line_figure(
        out, f"fig5_accuracy_{case}", "stream time, s", "cumulative accuracy", seconds, accuracy, title=f"Figure 5, {case}",
        reference=[0.95] * len(seconds), legend_beside=True,
    )  # fmt: skip


def _one_shard(times: NDArray[np.int64], value: NDArray[np.float64]) -> float:
    """CPU seconds of one shard's pass, the best of three."""
    spent = []
    for _ in range(3):
        policy, started = policy_of("hpm", GAME_WINDOW), time.process_time()
        run_pass(times, value, GAME_WINDOW, policy, error=ERROR, delta=DELTA, period_us=PERIOD_US)
        spent.append(time.process_time() - started)
    return min(spent)


def _shards(out: Path, progress: Callable[[str], None], quick: bool) -> dict[str, dict[str, float]]:
    """Throughput by number of shards, by the CPU time of the slowest, and what copies of the whole reach on as many cores.

    Returns
    -------
    dict
        ``shards``: rows per second of all shards, by their number; ``ceiling``: rows per second of so many copies of the whole
        stream over those of one, by their number, up to the cores.
    """
    shards, ceiling = {}, {}
    games, rows = (2, 10_000) if quick else (on_spark.GAMES, SHARD_ROWS)
    table = on_spark.events(games, rows)
    times, value, sensor = (table[name].to_numpy() for name in ("event_ts", "value", "sensor"))
    for count in (1, 2) if quick else (1, 2, 4):
        mine = [sensor % count == shard for shard in range(count)]
        rate = len(times) / max(run_in_processes(_one_shard, [(times[each], value[each]) for each in mine]))
        shards[str(count)] = rate
        said = f"{count} shards in memory, a core each: {rate:,.0f} rows/s"
        if 1 < count <= on_spark.cores_to_try()[-1]:
            alone, copies = shards["1"], max(run_in_processes(_one_shard, [(times, value)] * count))
            ceiling[str(count)] = count * len(times) / copies / alone
            said += f", {rate / alone:.2f} times one; as many copies of the whole {ceiling[str(count)]:.2f} times"
        progress(said)
    plots.bar_figure(
        out, "fig6_throughput", "shards", "rows/s", list(shards), {"hpm": list(shards.values())}, title="Figure 6"
    )
    return {"shards": shards, "ceiling": ceiling}
