"""The benchmark of memberships: what do filters cost to fill and to query, and is one per (stream, window) worth it?

Where the workload comes from: chapters 2 and 4 of the source thesis (Figures 4.1 to 4.3, Tables 4.1 to 4.4). Streams of
random positive integers, tumbling windows of 2,000 rows, 1 to 10 filters, 1 to 7 million rows, three groups of 100
queries per table. The element of a query is drawn from the first stream, so that one filter always finds it.

Where it departs from the thesis:

* The thesis gives no range of integers. We take 2.3 times the rows of a stream, so that another stream holds an element
  with probability 0.35, which is close to its success rates.
* Its ``checkup`` fills the filter of every window again for every query. We measure that (`rebuilt`, on an eighth of a
  million rows in the tables) and filters that are built once, as the project uses them (`standing`).
* Rows stand for time: one row per microsecond and stream.
* The baselines are ours: a Bloom filter per window at the same false-positive rate, one cuckoo filter for all windows,
  sorted hashes, Python sets.

Times depend on the machine; rates, success and bytes do not. :mod:`latecomer.bench.membership_spark` measures the bytes
that strategies move on Spark, and network logs. ``goals`` lists the goals and whether each was met.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from latecomer.baselines.membership.filters import BloomFilter, ExactSet, OneFilter, multi_bloom, multi_exact
from latecomer.baselines.membership.multi_cuckoo import Filter, MultiCuckoo, query_bound
from latecomer.bench import membership_spark as on_spark
from latecomer.bench import plots
from latecomer.bench.goals import Goal, Goals, Progress, Summary
from latecomer.bench.timing import timed
from latecomer.core.arrays.xxhash import hash_longs
from latecomer.core.membership.cuckoo import CuckooFilter, size_for
from latecomer.core.windows.grid import Grid

Hashes: TypeAlias = NDArray[np.uint64]
WindowFilters: TypeAlias = MultiCuckoo | OneFilter

SEED = 22
WINDOW = 2_000
SPREAD = 2.3
RATE = 2 * 4 / 2**12
"""Bound of a cuckoo filter with the default 12 bits and buckets of 4; the Bloom filters are sized for it."""

MAKERS: dict[str, Callable[[list[Grid], list[int]], WindowFilters]] = {
    "cuckoo per window": lambda windows, rows: MultiCuckoo(windows, [w.size_us for w in windows]),
    "bloom per window": lambda windows, rows: multi_bloom(windows, [w.size_us for w in windows], RATE),
    "one cuckoo filter": lambda windows, rows: OneFilter(windows, rows),
    "sorted hashes": lambda windows, rows: multi_exact(windows),
}


class Scaling(TypedDict):
    """Time by number of filters (figure 4.1): slopes and coefficients of determination by structure and operation."""

    rows_per_filter: int
    ms_per_filter: dict[str, float]
    r_squared: dict[str, float]
    cuckoo_insert_over_contains: float


Rates = TypedDict("Rates", {"measured": list[float], "bound": float, "asked": int, "lost": int})  # noqa: UP013
"""Measured false-positive rate per seed, its bound, elements tested per seed, and elements lost."""


def _ns(rows: int, work: Callable[[], object]) -> float:
    """Return the nanoseconds per row of one call."""
    return timed(work)[0] / rows * 1e6


def _apply(method: Literal["insert", "contains"], filters: Sequence[Filter], streams: Sequence[Hashes]) -> None:
    """Insert or look up every stream's hashes in its filter."""
    for window_filter, hashes in zip(filters, streams, strict=True):
        getattr(window_filter, method)(hashes)


def _is_candidate(query: WindowFilters, element: Hashes) -> bool:
    return bool(query.candidates_in(0, element)[0])


def _query_singly(query: WindowFilters, elements: Hashes) -> None:
    for i in range(elements.size):
        query.candidates_in(0, elements[i : i + 1])


def _checkups(streams: Sequence[Hashes], size: int, elements: Hashes) -> None:
    for i in range(elements.size):
        checkup(streams, size, elements[i : i + 1])


def _sets(streams: Sequence[Hashes]) -> list[list[set[int]]]:
    """Build one Python set per stream and window."""
    return [[set(s[i : i + WINDOW].tolist()) for i in range(0, s.size, WINDOW)] for s in streams]


def _bytes_of(sets: list[list[set[int]]]) -> int:
    """Return the memory of sets and of the numbers in them, which are 64-bit hashes."""
    number = sys.getsizeof(2**63)
    return sum(sys.getsizeof(window) + number * len(window) for stream in sets for window in stream)


def _query_sets(sets: list[list[set[int]]], elements: list[int]) -> list[bool]:
    return [all(any(x in window for window in stream) for stream in sets) for x in elements]


def _query_set(values: set[int], elements: list[int]) -> list[bool]:
    return [x in values for x in elements]


def streams_of(count: int, rows: int, seed: int) -> list[Hashes]:
    """Generate `count` streams of hashes of random positive integers, uint64[rows] each."""
    rng = np.random.default_rng(seed)
    return [hash_longs(rng.integers(1, int(SPREAD * rows) + 1, rows)) for _ in range(count)]


def _warm_up() -> None:
    """Compile every kernel before a clock runs."""
    hashes = streams_of(2, 5_000, 0)[0]
    times = np.arange(hashes.size)
    for make in MAKERS.values():
        query = make([Grid(5_000, 5_000), Grid(500, 500)], [10, 10])
        query.insert(1, times, hashes)
        query.candidates_in(0, hashes)
    for bits in (8, 12, 16):
        cuckoo = CuckooFilter(10, bits)
        cuckoo.insert(hashes)
        cuckoo.contains(hashes)
        cuckoo.delete(hashes)


def figure_4_1(out: Path, progress: Progress, rows: int, most: int) -> Scaling:
    """Measure the time to fill and to query 1 to `most` filters of `rows` each; slopes by least squares."""
    counts = list(range(1, most + 1))
    streams = streams_of(most, rows, SEED)
    names = ("cuckoo insert", "cuckoo contains", "bloom insert", "bloom contains")
    spent: dict[str, list[float]] = {name: [] for name in names}
    for count in counts:
        for kind, make in (("cuckoo", CuckooFilter), ("bloom", BloomFilter)):
            best = [float("inf")] * 2
            for _ in range(3):
                filters: list[Filter] = [make(rows, seed=i) for i in range(count)]
                fill = _ns(1, partial(_apply, "insert", filters, streams[:count]))
                query = _ns(1, partial(_apply, "contains", filters, streams[:count]))
                best = [min(best[0], fill), min(best[1], query)]
            spent[f"{kind} insert"].append(best[0] / 1e6)
            spent[f"{kind} contains"].append(best[1] / 1e6)
    progress(f"figure 4.1: {most} filters of {rows} rows, insert {spent['cuckoo insert'][-1]:.0f} ms")
    plots.line_figure(out, "membership_4_1", "filters", "time [ms]", counts, spent, title=f"{rows:,} rows per filter")
    slopes = {name: float(np.polyfit(counts, values, 1)[0]) for name, values in spent.items()}
    straight = {name: float(np.corrcoef(counts, values)[0, 1] ** 2) for name, values in spent.items()}
    return {
        "rows_per_filter": rows,
        "ms_per_filter": slopes,
        "r_squared": straight,
        "cuckoo_insert_over_contains": slopes["cuckoo insert"] / slopes["cuckoo contains"],
    }


def standing(name: str, streams: Sequence[Hashes], size: int) -> WindowFilters:
    """Fill filters of tumbling windows of `size` rows of every stream, under one window of stream 0 over them all."""
    rows = streams[0].size
    whole = -(-rows // size) * size  # the window of stream 0 ends with the last window, which is queried, too
    windows = [Grid(whole, whole)] + [Grid(size, size)] * len(streams)
    query = MAKERS[name](windows, [0] + [rows] * len(streams))
    for place, hashes in enumerate(streams, 1):
        query.insert(place, np.arange(rows, dtype=np.int64), hashes)
    return query


def checkup(streams: Sequence[Hashes], size: int, element: Hashes) -> bool:
    """Run the thesis's Algorithm 1: fill one filter per stream, window after window, until it contains the element."""
    for hashes in streams:
        for start in range(0, hashes.size, size):
            window_filter = CuckooFilter(size)
            window_filter.insert(hashes[start : start + size])
            if window_filter.contains(element)[0]:
                break
        else:
            return False
    return True


def tables_4_1_to_4_4(out: Path, progress: Progress, rows: int, queries: int, groups: int) -> Summary:
    """Measure query times in ms and success with 1 to 4 filters, rebuilt per query and standing."""
    streams = streams_of(4, rows, SEED + 1)
    tables: dict[str, dict[str, list[dict[str, float]]]] = {}
    lines: list[tuple[object, ...]] = []
    for count in (1, 2, 3, 4):
        filled = standing("cuckoo per window", streams[:count], WINDOW)
        ways: dict[str, Callable[[Hashes], bool]] = {
            "rebuilt": partial(checkup, streams[:count], WINDOW),
            "standing": partial(_is_candidate, filled),
        }
        table = tables[f"filters {count}"] = {way: [] for way in ways}
        for way, query in ways.items():
            rng = np.random.default_rng(SEED + count)
            for group in range(1, groups + 1):
                spent, successes = [], 0
                for at in rng.integers(0, rows, queries):
                    started = time.perf_counter()
                    successes += query(streams[0][at : at + 1])
                    spent.append((time.perf_counter() - started) * 1e3)
                line = (min(spent), max(spent), float(np.mean(spent)), successes / queries)
                lines.append((count, way, group, *line))
                table[way].append(dict(zip(("min_ms", "max_ms", "average_ms", "success"), line, strict=True)))
        progress(f"table 4.{count}: success {table['standing'][0]['success']:.0%}")
    columns = ("filters", "way", "group", "min_ms", "max_ms", "average_ms", "success")
    plots.table(out, "membership_tables_4_1_to_4_4", columns, lines)
    averages = {
        way: [float(np.mean([group["average_ms"] for group in table[way]])) for table in tables.values()]
        for way in ("rebuilt", "standing")
    }
    plots.line_figure(
        out, "membership_tables_average", "filters", "average query time [ms]", [1, 2, 3, 4], averages, log=True
    )
    return {"rows_per_stream": rows, "window_rows": WINDOW, **tables}


def figure_4_2(out: Path, progress: Progress, rows: int, queries: int) -> Summary:
    """Measure the query time per element by window size with 2 and 3 filters, rebuilt and standing."""
    sizes = [size for size in (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000) if size <= rows // 4]
    streams = streams_of(3, rows, SEED + 2)
    picked = streams[0][np.random.default_rng(SEED).integers(0, rows, queries)]
    ways = ("filled anew, one element [ms]", "standing, one element [ms]", "standing, of a batch [us]")
    spent: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for count in (2, 3):
        used = streams[:count]
        for size in sizes:
            query = standing("cuckoo per window", used, size)
            rebuilt = _ns(queries, partial(_checkups, used, size, picked))
            alone = _ns(queries, partial(_query_singly, query, picked))
            batch = _ns(min(rows, 10_000), partial(query.candidates_in, 0, streams[0][:10_000]))
            for way, value in zip(ways, (rebuilt / 1e6, alone / 1e6, batch / 1e3), strict=True):
                spent[way].setdefault(f"{count} filters", []).append(value)
    progress(f"figure 4.2: windows of {sizes[0]} to {sizes[-1]} rows")
    plots.panel_figure(
        out, "membership_4_2", "window [rows]", sizes, spent, title=f"time per query, {rows:,} rows", log_x=True
    )
    return {"rows_per_stream": rows, "window_rows": sizes, "time_per_query": spent}


def figure_4_3(out: Path, progress: Progress, totals: Sequence[int], queries: int) -> Summary:
    """Measure query time, build time, bytes and false candidates by rows per stream, with 2 streams and batches."""
    names = [*MAKERS, "python sets"]
    query_us: dict[str, list[float]] = {name: [] for name in names}
    build_ns: dict[str, list[float]] = {name: [] for name in names}
    size_mb: dict[str, list[float]] = {name: [] for name in names}
    rate: dict[str, list[float]] = {name: [] for name in names}
    bounds = []
    for rows in totals:
        streams = streams_of(2, rows, SEED + 3)
        absent = hash_longs(-np.arange(1, queries + 1))
        picked = streams[0][np.random.default_rng(SEED).integers(0, rows, queries)]
        for name in names:
            if name == "python sets":
                spent, sets = timed(partial(_sets, streams))
                elements = picked[: queries // 50].tolist()
                query_ns = _ns(len(elements), partial(_query_sets, sets, elements))
                size_mb[name].append(_bytes_of(sets) / 1e6)
                rate[name].append(0.0)
                del sets
            else:
                spent, query = timed(partial(standing, name, streams, WINDOW))
                query_ns = _ns(queries, partial(query.candidates_in, 0, picked))
                size_mb[name].append(query.size_bytes / 1e6)
                rate[name].append(float(query.candidates_in(0, absent).mean()))
                del query
            build_ns[name].append(spent / (2 * rows) * 1e6)
            query_us[name].append(query_ns / 1e3)
        bounds.append(query_bound(RATE, 1, rows, WINDOW, WINDOW))
        progress(f"figure 4.3: {rows:,} rows, {query_us['cuckoo per window'][-1]:.1f} us per element")
    x = [rows / 1e6 for rows in totals]
    label = "rows per stream [million]"
    plots.line_figure(
        out, "membership_4_3", label, "time per element asked [us]", x, query_us, log=True, legend_outside=True
    )
    plots.line_figure(out, "membership_build", label, "time per row inserted [ns]", x, build_ns, legend_outside=True)
    plots.line_figure(out, "membership_memory", label, "memory [MB]", x, size_mb, log=True, legend_outside=True)
    plots.line_figure(
        out, "membership_false_candidates", label, "false candidates", x, rate, title="absent elements that pass",
        legend_outside=True,
    )  # fmt: skip
    return {
        "rows_per_stream": list(totals), "us_per_element": query_us, "build_ns_per_row": build_ns, "megabytes": size_mb,
        "false_candidates": rate, "bound_of_one_stream": bounds,
    }  # fmt: skip


def one_filter_figures(out: Path, progress: Progress, rows: int) -> dict[str, dict[str, float]]:
    """Measure single filters of `rows` distinct hashes: ns per operation, rates, and load at the first failed insert.

    Returns
    -------
    dict
        Figures by name, by structure.
    """
    rng = np.random.default_rng(SEED + 4)
    hashes, absent = (rng.integers(0, 2**64, rows, dtype=np.uint64) for _ in range(2))
    makers: dict[str, Callable[[], CuckooFilter | BloomFilter | ExactSet]] = {
        **{f"cuckoo f={bits}": partial(CuckooFilter, rows, bits) for bits in (8, 12, 16)},
        "bloom, same rate": partial(BloomFilter, rows, RATE),
        "sorted hashes": ExactSet,
    }
    structures: dict[str, dict[str, float]] = {}
    for name, make in makers.items():
        spent = []
        for _ in range(1 if name == "sorted hashes" else 3):
            filled = make()
            insert_ns = _ns(rows, partial(filled.insert, hashes))
            spent.append((insert_ns, *(_ns(rows, partial(filled.contains, x)) for x in (hashes, absent))))
        line = {
            **dict(zip(("insert_ns", "hit_ns", "miss_ns"), map(min, zip(*spent, strict=True)), strict=True)),
            "false_positive_rate": float(filled.contains(absent).mean()),
            "false_positive_bound": filled.false_positive_bound(),
            "bytes_per_row": filled.size_bytes / rows,
            "lost": int(rows - filled.contains(hashes).sum()),
        }
        if isinstance(filled, CuckooFilter):
            line["load_factor"], line["tables"] = filled.load_factor, len(filled.load_factors)
            line["delete_ns"] = _ns(rows, partial(filled.delete, hashes))
            line["load_factor_at_first_failure"] = _load_at_first_failure(make(), rng, rows)
        structures[name] = line
        progress(f"{name}: {line['insert_ns']:.0f} ns per insert, {line['miss_ns']:.0f} ns per lookup")
    values, others, python_set = hashes.tolist(), absent.tolist(), set[int]()
    structures["python set"] = {
        "insert_ns": _ns(rows, partial(python_set.update, values)),
        "hit_ns": _ns(rows, partial(_query_set, python_set, values)),
        "miss_ns": _ns(rows, partial(_query_set, python_set, others)),
    }
    series = {key: [line[key] for line in structures.values()] for key in ("insert_ns", "hit_ns", "miss_ns")}
    short = [name.removeprefix("cuckoo ").split(",")[0].replace("sorted hashes", "sorted") for name in structures]
    plots.bar_figure(
        out, "membership_one_filter", "structure (f: a cuckoo filter of so many bits)", "time per element [ns]", short,
        series, title=f"{rows:,} rows", log=True,
    )  # fmt: skip
    return structures


def _load_at_first_failure(empty: CuckooFilter | BloomFilter | ExactSet, rng: np.random.Generator, rows: int) -> float:
    """Fill a cuckoo filter until it opens a second table; return the load factor of the first."""
    assert isinstance(empty, CuckooFilter)
    while len(empty.load_factors) == 1:
        empty.insert(rng.integers(0, 2**64, max(100, rows // 200), dtype=np.uint64))
    return empty.load_factors[0]


def rates(progress: Progress, rows: int) -> Rates:
    """Measure the false-positive rate of ten filters of `rows`, each with its own seed, and the elements lost."""
    measured, lost = [], 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        hashes = rng.integers(0, 2**64, rows, dtype=np.uint64)
        absent = rng.integers(0, 2**64, 10 * rows, dtype=np.uint64)
        cuckoo = CuckooFilter(rows, seed=seed)
        cuckoo.insert(hashes)
        measured.append(float(cuckoo.contains(absent).mean()))
        lost += int(rows - cuckoo.contains(hashes).sum())
    progress(f"false-positive rate over ten seeds: at most {max(measured):.6f}, bound {RATE:.6f}")
    return {"measured": measured, "bound": RATE, "asked": 10 * rows, "lost": lost}


def goals(
    structures: Mapping[str, Mapping[str, float]],
    rows: int,
    scaling: Scaling,
    ten_seeds: Rates,
    moved: on_spark.Moved | None,
    logs: Mapping[str, Mapping[str, float]],
    progress: Progress,
) -> list[Goal]:
    """Judge the measurements by the goals.

    Parameters
    ----------
    structures, rows
        As `one_filter_figures` returns them, and the rows they hold.
    scaling, ten_seeds
        As `figure_4_1` and `rates` return them.
    moved, logs
        Bytes moved on Spark and answers from network logs by strategy; None and empty where they were not measured.
    progress : callable
        Called with a line per goal.
    """
    judged = Goals(progress)
    cuckoo, straight = structures["cuckoo f=12"], scaling["r_squared"]
    lost = ten_seeds["lost"] + sum(structures[f"cuckoo f={bits}"]["lost"] for bits in (8, 12, 16))
    rate = ten_seeds["bound"] + 4 * (ten_seeds["bound"] / ten_seeds["asked"]) ** 0.5  # four standard deviations
    judged.add("elements lost", 0, lost, "at most")
    judged.add("false-positive rate, largest of ten seeds", rate, max(ten_seeds["measured"]), "at most")
    judged.add("time linear in filters (r squared), insert", 0.98, straight["cuckoo insert"], "at least")
    judged.add("time linear in filters (r squared), contains", 0.98, straight["cuckoo contains"], "at least")
    judged.add(f"ns per lookup at {rows:,} rows", 25, max(cuckoo["hit_ns"], cuckoo["miss_ns"]), "at most")
    judged.add(f"ns per insert at {rows:,} rows", 100, cuckoo["insert_ns"], "at most")
    load = cuckoo["load_factor_at_first_failure"]
    judged.add("load factor at the first failure, b = 4", 0.95, load, "at least")
    for share, value in (moved["of_exact"]["mcf"] if moved else {}).items():
        name = f"bytes moved, of an exact semi-join's, {share} shared"
        judged.add(name, on_spark.MOVED_GOAL, value, "at most")
    for strategy, figures in logs.items():
        judged.add(f"network logs, wrong or missing answers of {strategy}", 0, figures["wrong"], "at most")
    return judged.lines


def run(data: Path | None, out: Path, progress: Progress, *, quick: bool = False) -> Summary:
    """Run the benchmark on seeded streams and, where `data` is given, on network logs.

    Parameters and result as :func:`latecomer.bench.run`; `quick` measures small sizes and no Spark.
    """
    _warm_up()
    million = 10_000 if quick else 1_000_000
    rows = (5 if quick else 10) * million
    scaling = figure_4_1(out, progress, million, 3 if quick else 10)
    tables = tables_4_1_to_4_4(out, progress, million // (2 if quick else 8), 10 if quick else 100, 1 if quick else 3)
    by_window = figure_4_2(out, progress, million // (2 if quick else 8), 3 if quick else 20)
    totals = [number * million for number in range(1, 3 if quick else 8)]
    by_rows = figure_4_3(out, progress, totals, 1_000 if quick else 10_000)
    structures = one_filter_figures(out, progress, rows)
    ten_seeds = rates(progress, million // 10)
    summary: Summary = {
        "figure_4_1": scaling,
        "tables_4_1_to_4_4": tables,
        "figure_4_2": by_window,
        "figure_4_3": by_rows,
        "one_filter": {
            "rows": rows, "bits_for_a_rate_of_0.001": size_for(rows, 0.001).fingerprint_bits, **structures,
        },
        "rates": ten_seeds,
    }  # fmt: skip
    moved, logs = None, {}
    if not quick:
        summary["moved_bytes"] = moved = on_spark.moved_bytes(out, progress, 400_000)
        if data is not None:
            summary["zeek"] = logs = on_spark.zeek(data, progress)
    return summary | {"goals": goals(structures, rows, scaling, ten_seeds, moved, logs, progress)}
