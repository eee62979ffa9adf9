"""What do filters cost to fill and to ask, as filters, windows and rows grow, and is one per (stream, window) worth it?

Where the workload comes from: chapters 2 and 4 of the source thesis (Figures 4.1 to 4.3, Tables 4.1 to 4.4). Streams of
random positive integers, windows of 2,000 rows that tumble, 1 to 10 filters, 1 to 7 million rows, three groups of 100
queries per table; a query's element is drawn from the first stream, so that one filter always finds it.

Where it departs from it: the thesis does not say from what range integers are drawn; we take 2.3 times the rows of a
stream, so that another stream holds an element with probability 0.35, as its success rates suggest. Its ``checkup``
fills each window's filter anew for every query; we measure that (`rebuilt`, on an eighth of a million rows in the tables)
and filters that stand (`standing`: built once, as the project uses them). Rows stand for time: one row per microsecond
and stream. Rivals, not in the thesis: a Bloom filter per window at the same false-positive rate, one cuckoo filter for
all windows, sorted hashes, Python sets. Times depend on the machine; rates, success and bytes do not.

What strategies move on Spark, and the network logs: :mod:`latecomer.bench.membership_spark`.
`goals` says what was to be reached.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.baselines.membership.filters import BloomFilter, ExactSet, OneFilter, multi_bloom, multi_exact
from latecomer.baselines.membership.multi_cuckoo import Filter, MultiCuckoo, WindowSpec, query_bound
from latecomer.bench import membership_spark as on_spark
from latecomer.bench import plots
from latecomer.bench.goals import Goal, Goals
from latecomer.bench.timing import timed
from latecomer.core.arrays.xxhash import hash_longs
from latecomer.core.membership.cuckoo import CuckooFilter, size_for

SEED = 22
WINDOW = 2_000
SPREAD = 2.3
RATE = 2 * 4 / 2**12
"""Bound of a cuckoo filter with the default 12 bits and buckets of 4; the Bloom filters are sized for it."""

MAKERS: dict[str, Callable[[list[WindowSpec], list[int]], Any]] = {
    "cuckoo per window": lambda windows, rows: MultiCuckoo(windows, [w.size_us for w in windows]),
    "bloom per window": lambda windows, rows: multi_bloom(windows, [w.size_us for w in windows], RATE),
    "one cuckoo filter": lambda windows, rows: OneFilter(windows, rows),
    "sorted hashes": lambda windows, rows: multi_exact(windows),
}


def _ns(rows: int, work: Callable[..., Any], *arguments: Any) -> float:
    """Nanoseconds per row of one call."""
    return timed(partial(work, *arguments))[0] / rows * 1e6


def _each(method: str, filters: Sequence[Filter], streams: Sequence[NDArray[np.uint64]]) -> None:
    for one, hashes in zip(filters, streams, strict=True):
        getattr(one, method)(hashes)


def _one_by_one(query: MultiCuckoo, elements: NDArray[np.uint64]) -> None:
    for i in range(elements.size):
        query.candidates_in(0, elements[i : i + 1])


def _checkups(streams: Sequence[NDArray[np.uint64]], size: int, elements: NDArray[np.uint64]) -> None:
    for i in range(elements.size):
        checkup(streams, size, elements[i : i + 1])


def _sets(streams: Sequence[NDArray[np.uint64]]) -> list[list[set[int]]]:
    return [[set(s[i : i + WINDOW].tolist()) for i in range(0, s.size, WINDOW)] for s in streams]


def _bytes_of(held: list[list[set[int]]]) -> int:
    """Memory of sets and of the numbers in them, which are 64-bit hashes."""
    number = sys.getsizeof(2**63)
    return sum(sys.getsizeof(window) + number * len(window) for stream in held for window in stream)


def _ask_sets(held: list[list[set[int]]], elements: list[int]) -> list[bool]:
    return [all(any(x in window for window in stream) for stream in held) for x in elements]


def _ask_set(held: set[int], elements: list[int]) -> list[bool]:
    return [x in held for x in elements]


def streams_of(count: int, rows: int, seed: int) -> list[NDArray[np.uint64]]:
    """Hashes of `count` streams of random positive integers, uint64[rows] each."""
    rng = np.random.default_rng(seed)
    return [hash_longs(rng.integers(1, int(SPREAD * rows) + 1, rows)) for _ in range(count)]


def _warm_up() -> None:
    hashes = streams_of(2, 5_000, 0)[0]
    times = np.arange(hashes.size)
    for make in MAKERS.values():
        query = make([WindowSpec(5_000, 5_000), WindowSpec(500, 500)], [10, 10])
        query.insert(1, times, hashes)
        query.candidates_in(0, hashes)
    for bits in (8, 12, 16):
        one = CuckooFilter(10, bits)
        one.insert(hashes)
        one.contains(hashes)
        one.delete(hashes)


def figure_4_1(out: Path, progress: Callable[[str], None], rows: int, most: int) -> dict[str, Any]:
    """Time to fill and to ask 1 to `most` filters of `rows` each; slopes by least squares."""
    counts = list(range(1, most + 1))
    streams = streams_of(most, rows, SEED)
    names = ("cuckoo insert", "cuckoo contains", "bloom insert", "bloom contains")
    spent: dict[str, list[float]] = {name: [] for name in names}
    for count in counts:
        for kind, make in (("cuckoo", CuckooFilter), ("bloom", BloomFilter)):
            best = [float("inf")] * 2
            for _ in range(3):
                filters: list[Filter] = [make(rows, seed=i) for i in range(count)]
                fill = _ns(1, _each, "insert", filters, streams[:count])
                ask = _ns(1, _each, "contains", filters, streams[:count])
                best = [min(best[0], fill), min(best[1], ask)]
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


def standing(name: str, streams: Sequence[NDArray[np.uint64]], size: int) -> Any:
    """A query object filled with tumbling windows of `size` rows of every stream, under one window over all of them."""
    rows = streams[0].size
    whole = -(-rows // size) * size  # it ends with the last window: a window that outlasts it would not be asked
    windows = [WindowSpec(whole, whole)] + [WindowSpec(size, size)] * len(streams)
    query = MAKERS[name](windows, [0] + [rows] * len(streams))
    for place, hashes in enumerate(streams, 1):
        query.insert(place, np.arange(rows, dtype=np.int64), hashes)
    return query


def checkup(streams: Sequence[NDArray[np.uint64]], size: int, element: NDArray[np.uint64]) -> bool:
    """The thesis's Algorithm 1: one filter per stream, cleared and filled window after window until it answers yes."""
    for hashes in streams:
        for start in range(0, hashes.size, size):
            one = CuckooFilter(size)
            one.insert(hashes[start : start + size])
            if one.contains(element)[0]:
                break
        else:
            return False
    return True


def tables_4_1_to_4_4(
    out: Path, progress: Callable[[str], None], rows: int, queries: int, groups: int
) -> dict[str, Any]:
    """Query times in ms and success with 1 to 4 filters, rebuilt per query and standing."""
    streams = streams_of(4, rows, SEED + 1)
    found: dict[str, Any] = {}
    lines: list[tuple[Any, ...]] = []
    for count in (1, 2, 3, 4):
        used = streams[:count]
        query = standing("cuckoo per window", used, WINDOW)
        ways: dict[str, Callable[[NDArray[np.uint64]], bool]] = {
            "rebuilt": lambda x, used=used: checkup(used, WINDOW, x),  # type: ignore[misc]
            "standing": lambda x, query=query: bool(query.candidates_in(0, x)[0]),  # type: ignore[misc]
        }
        found[f"filters {count}"] = {}
        for way, ask in ways.items():
            rng = np.random.default_rng(SEED + count)
            for group in range(1, groups + 1):
                spent, yes = [], 0
                for at in rng.integers(0, rows, queries):
                    begun = time.perf_counter()
                    yes += ask(streams[0][at : at + 1])
                    spent.append((time.perf_counter() - begun) * 1e3)
                line = (min(spent), max(spent), float(np.mean(spent)), yes / queries)
                lines.append((count, way, group, *line))
                found[f"filters {count}"].setdefault(way, []).append(
                    dict(zip(("min_ms", "max_ms", "average_ms", "success"), line, strict=True))
                )
        progress(f"table 4.{count}: success {found[f'filters {count}']['standing'][0]['success']:.0%}")
    columns = ("filters", "way", "group", "min_ms", "max_ms", "average_ms", "success")
    plots.table(out, "membership_tables_4_1_to_4_4", columns, lines)
    averages = {
        way: [float(np.mean([g["average_ms"] for g in found[f"filters {c}"][way]])) for c in (1, 2, 3, 4)]
        for way in ("rebuilt", "standing")
    }
    plots.line_figure(
        out, "membership_tables_average", "filters", "average query time [ms]", [1, 2, 3, 4], averages, log=True
    )
    return {"rows_per_stream": rows, "window_rows": WINDOW, **found}


def figure_4_2(out: Path, progress: Callable[[str], None], rows: int, queries: int) -> dict[str, Any]:
    """Query time per element against window size, 2 and 3 filters: rebuilt, and standing."""
    sizes = [size for size in (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000) if size <= rows // 4]
    streams = streams_of(3, rows, SEED + 2)
    picked = streams[0][np.random.default_rng(SEED).integers(0, rows, queries)]
    ways = ("filled anew, one element [ms]", "standing, one element [ms]", "standing, of a batch [us]")
    spent: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for count in (2, 3):
        used = streams[:count]
        for size in sizes:
            query = standing("cuckoo per window", used, size)
            rebuilt = _ns(queries, _checkups, used, size, picked)
            alone = _ns(queries, _one_by_one, query, picked)
            batch = _ns(min(rows, 10_000), query.candidates_in, 0, streams[0][:10_000])
            for way, value in zip(ways, (rebuilt / 1e6, alone / 1e6, batch / 1e3), strict=True):
                spent[way].setdefault(f"{count} filters", []).append(value)
    progress(f"figure 4.2: windows of {sizes[0]} to {sizes[-1]} rows")
    plots.panel_figure(
        out, "membership_4_2", "window [rows]", sizes, spent, title=f"time per query, {rows:,} rows", log_x=True
    )
    return {"rows_per_stream": rows, "window_rows": sizes, "time_per_query": spent}


def figure_4_3(out: Path, progress: Callable[[str], None], totals: Sequence[int], asked: int) -> dict[str, Any]:
    """Time per element of a batch, build time, bytes and false candidates against rows per stream; 2 streams."""
    names = [*MAKERS, "python sets"]
    ask_us: dict[str, list[float]] = {name: [] for name in names}
    build_ns: dict[str, list[float]] = {name: [] for name in names}
    size_mb: dict[str, list[float]] = {name: [] for name in names}
    rate: dict[str, list[float]] = {name: [] for name in names}
    bounds = []
    for rows in totals:
        streams = streams_of(2, rows, SEED + 3)
        absent = hash_longs(-np.arange(1, asked + 1))
        picked = streams[0][np.random.default_rng(SEED).integers(0, rows, asked)]
        for name in names:
            if name == "python sets":
                spent, sets = timed(partial(_sets, streams))
                few = picked[: asked // 50].tolist()
                asking = _ns(len(few), _ask_sets, sets, few)
                size_mb[name].append(_bytes_of(sets) / 1e6)
                rate[name].append(0.0)
                del sets
            else:
                spent, query = timed(partial(standing, name, streams, WINDOW))
                asking = _ns(asked, query.candidates_in, 0, picked)
                size_mb[name].append(query.size_bytes / 1e6)
                rate[name].append(float(query.candidates_in(0, absent).mean()))
                del query
            build_ns[name].append(spent / (2 * rows) * 1e6)
            ask_us[name].append(asking / 1e3)
        bounds.append(query_bound(RATE, 1, rows, WINDOW, WINDOW))
        progress(f"figure 4.3: {rows:,} rows, {ask_us['cuckoo per window'][-1]:.1f} us per element")
    x = [rows / 1e6 for rows in totals]
    label = "rows per stream [million]"
    plots.line_figure(
        out, "membership_4_3", label, "time per element asked [us]", x, ask_us, log=True, legend_beside=True
    )
    plots.line_figure(out, "membership_build", label, "time per row inserted [ns]", x, build_ns, legend_beside=True)
    plots.line_figure(out, "membership_memory", label, "memory [MB]", x, size_mb, log=True, legend_beside=True)
    plots.line_figure(
        out,
        "membership_false_candidates",
        label,
        "false candidates",
        x,
        rate,
        title="absent elements that pass",
        legend_beside=True,
    )
    return {
        "rows_per_stream": list(totals), "us_per_element": ask_us, "build_ns_per_row": build_ns, "megabytes": size_mb,
        "false_candidates": rate, "bound_of_one_stream": bounds,
    }  # fmt: skip


def one_filter_figures(out: Path, progress: Callable[[str], None], rows: int) -> dict[str, Any]:
    """Nanoseconds per insert, lookup and delete at `rows` distinct hashes, load at the first failure, measured rates."""
    rng = np.random.default_rng(SEED + 4)
    hashes, absent = (rng.integers(0, 2**64, rows, dtype=np.uint64) for _ in range(2))
    bloom = "bloom, same rate"
    makers: dict[str, Callable[[], Any]] = {
        **{f"cuckoo f={bits}": lambda bits=bits: CuckooFilter(rows, bits) for bits in (8, 12, 16)},  # type: ignore[misc]
        bloom: lambda: BloomFilter(rows, RATE),
        "sorted hashes": ExactSet,
    }
    found: dict[str, Any] = {}
    for name, make in makers.items():
        spent = []
        for _ in range(1 if name == "sorted hashes" else 3):
            one = make()
            spent.append([_ns(rows, one.insert, hashes), *(_ns(rows, one.contains, each) for each in (hashes, absent))])
        line = {
            **dict(zip(("insert_ns", "hit_ns", "miss_ns"), map(min, zip(*spent, strict=True)), strict=True)),
            "false_positive_rate": float(one.contains(absent).mean()),
            "false_positive_bound": one.false_positive_bound(),
            "bytes_per_row": one.size_bytes / rows,
            "lost": int(rows - one.contains(hashes).sum()),
        }
        if isinstance(one, CuckooFilter):
            line["load_factor"], line["tables"] = one.load_factor, len(one.load_factors)
            line["delete_ns"] = _ns(rows, one.delete, hashes)
            full = make()
            while len(full.load_factors) == 1:
                full.insert(rng.integers(0, 2**64, max(100, rows // 200), dtype=np.uint64))
            line["load_factor_at_first_failure"] = full.load_factors[0]
        found[name] = line
        progress(f"{name}: {line['insert_ns']:.0f} ns per insert, {line['miss_ns']:.0f} ns per lookup")
    values, others, kept = hashes.tolist(), absent.tolist(), set[int]()
    found["python set"] = {
        "insert_ns": _ns(rows, kept.update, values),
        "hit_ns": _ns(rows, _ask_set, kept, values),
        "miss_ns": _ns(rows, _ask_set, kept, others),
    }
    series = {key: [found[name][key] for name in found] for key in ("insert_ns", "hit_ns", "miss_ns")}
    short = [name.removeprefix("cuckoo ").split(",")[0].replace("sorted hashes", "sorted") for name in found]
    plots.bar_figure(
        out, "membership_one_filter", "structure (f: a cuckoo filter of so many bits)", "time per element [ns]", short,
        series, title=f"{rows:,} rows", log=True,
    )  # fmt: skip
    sizing = size_for(rows, 0.001)
    return {"rows": rows, "bits_for_a_rate_of_0.001": sizing.fingerprint_bits, **found}


def rates(progress: Callable[[str], None], rows: int) -> dict[str, Any]:
    """Measured false-positive rate and bound of ten filters of `rows`, each with a seed of its own, and elements lost."""
    found: dict[str, Any] = {"measured": [], "bound": RATE, "asked": 10 * rows, "lost": 0}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        hashes, absent = (
            rng.integers(0, 2**64, rows, dtype=np.uint64),
            rng.integers(0, 2**64, 10 * rows, dtype=np.uint64),
        )
        one = CuckooFilter(rows, seed=seed)
        one.insert(hashes)
        found["measured"].append(float(one.contains(absent).mean()))
        found["lost"] += int(rows - one.contains(hashes).sum())
    progress(f"false-positive rate over ten seeds: at most {max(found['measured']):.6f}, bound {RATE:.6f}")
    return found


def goals(found: dict[str, Any], progress: Callable[[str], None]) -> list[Goal]:
    """What was to be reached, what was measured, and whether it was; see the module docstring."""
    one, ten = found["one_filter"], found["rates"]
    ours = one["cuckoo f=12"]
    straight = found["figure_4_1"]["r_squared"]
    margin = 4 * (ten["bound"] / ten["asked"]) ** 0.5
    measured = [
        ("elements lost", 0, ten["lost"] + sum(one[f"cuckoo f={bits}"]["lost"] for bits in (8, 12, 16)), "at most"),
        ("false-positive rate, largest of ten seeds", ten["bound"] + margin, max(ten["measured"]), "at most"),
        ("time linear in filters (r squared), insert", 0.98, straight["cuckoo insert"], "at least"),
        ("time linear in filters (r squared), contains", 0.98, straight["cuckoo contains"], "at least"),
        (f"ns per lookup at {one['rows']:,} rows", 25, max(ours["hit_ns"], ours["miss_ns"]), "at most"),
        (f"ns per insert at {one['rows']:,} rows", 100, ours["insert_ns"], "at most"),
        ("load factor at the first failure, b = 4", 0.95, ours["load_factor_at_first_failure"], "at least"),
    ]
    for share, value in found.get("moved_bytes", {}).get("of_exact", {}).get("mcf", {}).items():
        measured.append(
            (f"bytes moved, of an exact semi-join's, {share} shared", on_spark.MOVED_GOAL, value, "at most")
        )
    for name, each in found.get("zeek", {}).items():
        measured.append((f"network logs, wrong or missing answers of {name}", 0, each["wrong"], "at most"))
    lines = Goals(progress)
    for name, goal, value, sense in measured:
        lines.add(name, goal, value, "at most" if sense == "at most" else "at least")
    return lines.lines


def run(data: Path | None, out: Path, progress: Callable[[str], None], *, quick: bool = False) -> dict[str, Any]:
    """Run the benchmark on streams made from seeds and, where they are there, on network logs.

    Parameters
    ----------
    data
        Folder of the real data sets; None: without them.
    out
        Folder for PNG and CSV files; must exist.
    progress
        Called with a line of text after each part.
    quick
        Small sizes and no Spark, for tests.
    """
    _warm_up()
    million = 10_000 if quick else 1_000_000
    found: dict[str, Any] = {
        "figure_4_1": figure_4_1(out, progress, million, 3 if quick else 10),
        "tables_4_1_to_4_4": tables_4_1_to_4_4(
            out, progress, million // (2 if quick else 8), 10 if quick else 100, 1 if quick else 3
        ),
        "figure_4_2": figure_4_2(out, progress, million // (2 if quick else 8), 3 if quick else 20),
        "figure_4_3": figure_4_3(
            out, progress, [n * million for n in range(1, 3 if quick else 8)], 1_000 if quick else 10_000
        ),
        "one_filter": one_filter_figures(out, progress, (5 if quick else 10) * million),
        "rates": rates(progress, million // 10),
    }
    if not quick:
        found["moved_bytes"] = on_spark.moved_bytes(out, progress, 400_000)
        if data is not None:
            found["zeek"] = on_spark.zeek(data, progress)
    return found | {"goals": goals(found, progress)}
