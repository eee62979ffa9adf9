"""Transcripts without Spark: the same files on the tuple-at-a-time reference and on the core, whole, in chunks, by row.

The test is differential: an executor receives rows and cuts and returns on-time, late and final rows. The *reference*
decides tuple by tuple and folds windows from scratch, so cuts do not concern it. The *core* runs the control plane
micro-batch by micro-batch and the array kernels on its decisions; state goes through JSON between micro-batches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from latecomer.baselines.membership.multi_cuckoo import MultiCuckoo
from latecomer.baselines.topk.min_topk import MinTopK
from latecomer.bench.join_simulator import Input, qjoin, reordered, stream_times, waits
from latecomer.bench.window_simulator import run_pass
from latecomer.core.arrays.xxhash import hash_values
from latecomer.core.gamma_batches import assign, gamma_batches
from latecomer.core.join import k_slack
from latecomer.core.join.control import JoinControl
from latecomer.core.theta_join.edges import Comparison
from latecomer.core.theta_join.window_task import Operand, WindowJoin
from latecomer.core.time import FOREVER, NEVER, running_max
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.interfaces import IntervalRows
from latecomer.core.windows.slack_policies import Fixed, LargestDelay
from latecomer.reference import join as reference_join
from latecomer.reference import membership as reference_membership
from latecomer.reference import theta_join as reference_theta
from latecomer.reference import topk as reference_topk
from latecomer.reference import windows as reference_windows
from latecomer.reference.expressions import evaluate
from latecomer.specs import expressions as ex
from latecomer.specs.loading import parse_query
from latecomer.strategies.join import retention_parameters, retention_policy

from tests.support import transcripts
from tests.support.transcripts import SECOND, Event, Played, Row

Groups = tuple[Any, ...]
Answers = Callable[[int, list[Event]], dict[Groups, list[Row]]]
"""The result rows of a window per group, from its start (us) and its rows."""


@dataclass
class Windows:
    """The decisions of a control plane: closing arrival and on-time rows of windows, missed windows of late rows."""

    closed: dict[int, int]
    on_time: dict[int, list[Event]]
    late: dict[int, list[int]]


# -- joins -------------------------------------------------------------------------------------------------------------


def matcher(spec: Any) -> Callable[[Row, Row], bool]:
    aliases = [alias for alias, _ in spec.streams]

    def match(left: Row, right: Row) -> bool:
        if any(left[a] is None or left[a] != right[b] for a, b in spec.keys):
            return False
        row = dict(zip(aliases, (left, right), strict=True))
        return spec.where is None or evaluate(spec.where, lambda c: row[c.alias][c.name]) is True

    return match


def join_rows(spec: Any, pairs: set[tuple[int, int]], provenance: str) -> list[Row]:
    left, right = (f"{alias}_seq" for alias, _ in spec.streams)
    return [{left: a, right: b, "provenance": provenance} for a, b in sorted(pairs)]


def joined(spec: Any, on_time: set[tuple[int, int]], late: list[int], repaired: set[tuple[int, int]]) -> Played:
    assert not on_time & repaired
    first = join_rows(spec, on_time, "on_time")
    return Played(first, sorted(set(late)), first + join_rows(spec, repaired, "repaired"))


def join_by_reference(spec: Any, events: list[Event]) -> Played:
    """Join with two buffers or a reorder buffer, then repair the registered rows in the part that was gone."""
    match, (left, right) = matcher(spec), (stream for _, stream in spec.streams)
    sides = {left: 2} if left == right else {left: 0, right: 1}
    arrivals = [reference_join.Arrival(e.seq, sides[e.stream], e.ts, e.payload) for e in events if e.stream in sides]
    match_rows = lambda x, y: match(x.row, y.row)  # noqa: E731
    settings = retention_parameters(spec)
    if spec.strategy.name.endswith("slack"):
        slack = spec.strategy.slack_us
        on_time = reference_join.k_slack(arrivals, spec.window_us, slack, match_rows)
        side_of = {a.seq: a.side for a in arrivals}
        gone = [(seq, side_of[seq], NEVER, mark) for seq, mark in reference_join.behind(arrivals, slack)]
    else:
        answer = reference_join.qjoin(
            arrivals, window=spec.window_us, interval=settings.interval_us, granularity=settings.granularity_us,
            policy=retention_policy(settings, None, None), match=match_rows,
        )  # fmt: skip
        on_time, gone = set(answer.on_time), answer.late
    everything = reference_join.exact_join(arrivals, spec.window_us, match_rows)
    at = {a.seq: a.ts for a in arrivals}
    repaired = set()
    for seq, side, low, high in gone:
        partners = {p for p in everything if p[side] == seq and p[1 - side] < seq and low <= at[p[1 - side]] <= high}
        repaired |= partners
    assert on_time | repaired == everything
    return joined(spec, on_time, [seq for seq, *_ in gone], repaired - on_time)


def join_by_core(spec: Any, events: list[Event], cuts: list[int]) -> Played:
    """Join by the set formulas on arrays."""
    match, window = matcher(spec), spec.window_us
    sides = [[e for e in events if e.stream == stream] for _, stream in spec.streams]
    pairs = [
        (i, j)
        for (i, a), (j, b) in product(enumerate(sides[0]), enumerate(sides[1]))
        if a.seq != b.seq and abs(a.ts - b.ts) <= window and match(a.payload, b.payload)
    ]
    seq = tuple(np.array([e.seq for e in side], np.int64) for side in sides)
    ts = tuple(np.array([e.ts for e in side], np.int64) for side in sides)
    data = Input((seq[0], seq[1]), (ts[0], ts[1]), np.array(pairs, np.int64).reshape(-1, 2))
    named = [(int(seq[0][i]), int(seq[1][j])) for i, j in pairs]
    ends = [cut + 1 for cut in cuts]
    if spec.strategy.name.endswith("slack"):
        produced, late = slack_by_core(spec, data, len(events), ends, named)
    else:
        settings = retention_parameters(spec)
        control = JoinControl(
            retention_policy(settings, None, None), window_us=window, interval_us=settings.interval_us,
            granularity_us=settings.granularity_us, period_us=spec.period_us,
        )  # fmt: skip
        output = qjoin(data, control, ends)
        produced = output.produced
        late = [int(row) for side in (0, 1) for row in seq[side][output.late[side]]]
    on_time = {pair for pair, made in zip(named, produced.tolist(), strict=True) if made}
    repaired = {pair for pair in named if pair not in on_time and max(pair) in late}
    assert on_time | repaired == set(named)
    return joined(spec, on_time, late, repaired)


def slack_by_core(
    spec: Any, data: Input, rows: int, ends: list[int], pairs: list[tuple[int, int]]
) -> tuple[np.ndarray, list[int]]:
    stream_time, delay = np.full(rows, NEVER, np.int64), np.zeros(rows, np.int64)
    ts = np.full(rows, FOREVER, np.int64)
    for side, (side_time, side_delay) in enumerate(zip(*stream_times(data), strict=True)):
        stream_time[data.seq[side]], delay[data.seq[side]], ts[data.seq[side]] = side_time, side_delay, data.ts[side]
    marks, carry = [], (NEVER, 0)
    for low, high in zip([0, *ends], [*ends, rows], strict=True):
        mark, carry = k_slack.slack_watermark(stream_time[low:high], delay[low:high], spec.strategy.slack_us, carry)
        marks.append(mark)
    mark = np.concatenate(marks)
    ordered = np.array([sorted(pair) for pair in pairs], np.int64).reshape(-1, 2)
    produced, output = reordered(ts, mark, ordered[:, 0], ordered[:, 1])
    assert (waits(stream_time, output, ordered[:, 1]) >= 0).all()
    return produced, np.flatnonzero(ts < mark).tolist()


# -- windowed kinds: control planes ------------------------------------------------------------------------------------


def slack_policy(spec: Any) -> Any:
    if spec.kind != "aggregate":
        return Fixed(0)
    if spec.strategy.name == "mp_k_slack":
        return LargestDelay()
    return Fixed(FOREVER if spec.strategy.name == "exact" else spec.strategy.slack_us)


def sources_of(spec: Any) -> list[str]:
    return list(dict.fromkeys(stream for _, stream in spec.streams))


def counts(spec: Any, event: Event) -> bool:
    """Return true for a row that belongs to the query's windows."""
    if spec.kind == "membership":
        return any(event in part for part in parts_of(spec, [event]))
    if spec.kind == "theta_join":
        return any(parts_of(spec, [event]))
    if spec.kind == "topk" and value_of(spec.score, event) is None:
        return False
    where = getattr(spec, "where", None)
    return where is None or value_of(where, event) is True


def parts_of(spec: Any, events: list[Event]) -> list[list[Event]]:
    """Return the rows of each alias: its stream's rows that pass `where`, and in a membership have an element."""

    def takes_part(alias: str, event: Event) -> bool:
        where = spec.filter_on(alias)
        return where is None or value_of(where, event) is True

    parts = [[e for e in events if e.stream == stream and takes_part(alias, e)] for alias, stream in spec.streams]
    if spec.kind == "theta_join":
        return parts
    return [[e for e in part if e.payload[c.name] is not None] for part, c in zip(parts, spec.elements, strict=True)]


def value_of(expression: ex.Expr, event: Event) -> Any:
    return evaluate(expression, lambda column: event.payload[column.name])


def windows_by_reference(spec: Any, events: list[Event]) -> Windows:
    sources, grid = sources_of(spec), spec.window
    arrivals = [
        reference_windows.Arrival(e.seq, sources.index(e.stream), e.ts, e.payload, counts(spec, e)) for e in events
    ]
    outcome = reference_windows.run(
        arrivals, size=grid.size_us, slide=grid.slide_us, streams=len(sources), policy=slack_policy(spec),
        end=len(events),
    )  # fmt: skip
    on_time = {w: [events[a.seq] for a in rows] for w, rows in outcome.on_time.items() if rows}
    return Windows(outcome.closed, on_time, outcome.late)


def windows_by_core(spec: Any, events: list[Event], cuts: list[int]) -> Windows:
    """Run the control plane micro-batch by micro-batch, with its state through JSON at every cut."""
    grid, sources = spec.window, sources_of(spec)
    ts = np.array([e.ts for e in events], np.int64)
    source = np.array([sources.index(e.stream) for e in events])
    maxima = np.stack([running_max(np.where(source == s, ts, NEVER)) for s in range(len(sources))])
    stream_time, delay = maxima.min(0), maxima[source, np.arange(len(ts))] - ts
    ends, parts, state = [cut + 1 for cut in cuts], [], None
    for low, high in zip([0, *ends], [*ends, len(ts)], strict=True):
        control = WindowControl(grid, spec.period_us, slack_policy(spec))
        if state is not None:
            control = WindowControl.from_dict(json.loads(state), grid, spec.period_us, slack_policy(spec))
        waiting = np.unique(ts[low:high][stream_time[low:high] <= NEVER] // grid.pane_us, return_counts=True)
        control.hold(*waiting)
        alive = np.arange(low, high)[stream_time[low:high] > NEVER]
        number = stream_time[alive] // grid.slide_us
        intervals = []
        for interval in np.unique(number).tolist():
            inside = alive[number == interval]
            panes = np.unique(ts[inside] // grid.pane_us, return_counts=True)
            last, largest = int(stream_time[inside].max()), int(delay[inside].max())
            delays = np.full(len(panes[0]), largest)
            intervals.append(IntervalRows(interval, last, largest, len(inside), *panes, delays))
        decisions = control.step(intervals, {})
        at = np.searchsorted(decisions.interval, number)
        moving = np.where(
            decisions.slack[at] >= FOREVER, NEVER, stream_time[alive] - np.minimum(decisions.slack[at], FOREVER // 2)
        )
        mark = np.full(high - low, NEVER, np.int64)
        mark[alive - low] = np.maximum(decisions.base[at], moving)
        parts.append(mark)
        state = json.dumps(control.to_dict())
    mark = np.concatenate(parts)
    decided = Windows({}, {}, {})
    for e in events:
        if not counts(spec, e):
            continue
        for w in range(grid.first_of(e.ts), grid.last_of(e.ts) + 1):
            if grid.end(w) <= mark[e.seq]:
                decided.late.setdefault(e.seq, []).append(w)
            else:
                decided.on_time.setdefault(w, []).append(e)
                decided.closed[w] = int(np.searchsorted(mark, grid.end(w)))
    return decided


# -- windowed kinds: answers -------------------------------------------------------------------------------------------


def by_group(spec: Any, events: list[Event]) -> dict[Groups, list[Event]]:
    groups: dict[Groups, list[Event]] = {}
    for e in events:
        groups.setdefault(group_of(spec, e), []).append(e)
    return groups


def group_of(spec: Any, event: Event) -> Groups:
    return tuple(event.payload[name] for name in getattr(spec, "group_by", ()))


def aggregate_answers(spec: Any, fold: Callable[[str, list[Any]], Any]) -> Answers:
    def answers(start: int, events: list[Event]) -> dict[Groups, list[Row]]:
        results = {}
        for group, group_rows in by_group(spec, events).items():
            row = dict(zip(spec.group_by, group, strict=True))
            for output in spec.aggregates:
                values: list[Any] = [1 if output.argument is None else value_of(output.argument, e) for e in group_rows]
                row[output.name] = fold(output.function, [v for v in values if v is not None])
            results[group] = [row]
        return results

    return answers


def fold_plainly(function: str, values: list[Any]) -> Any:
    if function == "count":
        return len(values)
    if not values:
        return None
    ranked = sorted(values)
    half = len(ranked) // 2
    middle = ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
    total = float(sum(values))
    return {"sum": total, "avg": total / len(values), "min": ranked[0], "max": ranked[-1], "median": middle}[function]


def fold_arrays(function: str, values: list[Any]) -> Any:
    if function == "count":
        return len(values)
    folds = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max, "median": np.median}
    return float(folds[function](np.array(values, np.float64))) if values else None


def topk_answers(spec: Any, best: Callable[[list[Event], int], list[int]]) -> Answers:
    def answers(start: int, events: list[Event]) -> dict[Groups, list[Row]]:
        results = {}
        for group, group_rows in by_group(spec, events).items():
            row = dict(zip(spec.group_by, group, strict=True))
            ranked = best(group_rows, start + spec.window.size_us)
            results[group] = [row | {"rank": rank, "seq": seq} for rank, seq in enumerate(ranked, 1)]
        return results

    return answers


def best_by_sorting(spec: Any) -> Callable[[list[Event], int], list[int]]:
    def best(group_rows: list[Event], end: int) -> list[int]:
        rows = [reference_topk.Row(e.seq, e.ts, e.ts, float(value_of(spec.score, e))) for e in group_rows]
        return [r.seq for r in reference_topk.top_k(rows, spec.k, end, spec.window.size_us)]

    return best


def best_by_core(spec: Any) -> Callable[[list[Event], int], list[int]]:
    def best(group_rows: list[Event], end: int) -> list[int]:
        state = MinTopK(spec.k, spec.window.size_us, spec.window.slide_us)
        ts = np.array([e.ts for e in group_rows], np.int64)
        score = np.array([value_of(spec.score, e) for e in group_rows], np.float64)
        # one call per row, state through JSON: the answer may not depend on the calls
        for i, e in enumerate(group_rows):
            state.add(ts[i : i + 1], running_max(ts)[i : i + 1], np.array([e.seq]), score[i : i + 1])
            state = MinTopK.from_dict(json.loads(json.dumps(state.to_dict())))
        state.advance(end)
        best_rows: list[int] = state.answer(end).seq.tolist()
        return best_rows

    return best


def membership_rows(spec: Any, events: list[Event]) -> list[list[tuple[int, Any]]]:
    parts = zip(parts_of(spec, events), spec.elements, strict=True)
    return [[(e.ts, e.payload[c.name]) for e in part] for part, c in parts]


def members_by_sets(spec: Any) -> Answers:
    def answers(start: int, events: list[Event]) -> dict[Groups, list[Row]]:
        # the reference tries every instant as a window's start: time is counted in the coarsest exact unit
        unit = math.gcd(start, *(e.ts for e in events), *(n for w in spec.windows for n in (w.size_us, w.slide_us)))
        rows = [[(time // unit, element) for time, element in part] for part in membership_rows(spec, events)]
        windows = [(w.size_us // unit, w.slide_us // unit) for w in spec.windows]
        members = reference_membership.results(rows, windows)
        return {(): [{"element": element} for at, element in sorted(members) if at == start // unit]}

    return answers


def members_by_filters(spec: Any) -> Answers:
    """Answer by filters that propose and sets that confirm; an element that the filters lose is lost."""

    def answers(start: int, events: list[Event]) -> dict[Groups, list[Row]]:
        rows = membership_rows(spec, events)
        filters = MultiCuckoo(list(spec.windows), 16)
        hashes = [hash_values(pa.array([element for _, element in part], pa.string())) for part in rows]
        for stream, (part, part_hashes) in enumerate(zip(rows, hashes, strict=True)):
            filters.insert(stream, np.array([t for t, _ in part], np.int64), part_hashes)
        proposed = filters.candidates_in(start, hashes[0]).tolist()
        kept = {element for (_, element), yes in zip(rows[0], proposed, strict=True) if yes}
        confirmed = kept.intersection(*({element for _, element in part} for part in rows[1:]))
        return {(): [{"element": element} for element in sorted(confirmed)]}

    return answers


def theta_conditions(spec: Any) -> list[tuple[int, str, str, int, str]]:
    """Return per condition: alias and column left, op, alias and column right."""
    aliases = [alias for alias, _ in spec.streams]
    for c in spec.conditions:
        assert isinstance(c.left, ex.Column) and isinstance(c.right, ex.Column)
    return [
        (aliases.index(c.left.alias), c.left.name, c.op, aliases.index(c.right.alias), c.right.name)
        for c in spec.conditions
    ]


def theta_answers(spec: Any, solve: Callable[[list[list[Event]]], list[tuple[int, ...]]]) -> Answers:
    aliases = [alias for alias, _ in spec.streams]

    def answers(start: int, events: list[Event]) -> dict[Groups, list[Row]]:
        parts = parts_of(spec, events)
        at = {e.seq: e for e in events}
        if spec.emit == "count":
            return {(): [{"matches": len(solve(parts))}]}
        rows = []
        for chosen in sorted(solve(parts)):
            payloads = {alias: at[seq].payload for alias, seq in zip(aliases, chosen, strict=True)}
            row: Row = {f"{alias}_seq": seq for alias, seq in zip(aliases, chosen, strict=True)}
            for item in spec.select or ():
                row[item.name] = evaluate(item.expr, lambda c, payloads=payloads: payloads[c.alias][c.name])
            rows.append(row)
        return {(): rows}

    return answers


def theta_by_loops(spec: Any) -> Callable[[list[list[Event]]], list[tuple[int, ...]]]:
    conditions = theta_conditions(spec)

    def solve(parts: list[list[Event]]) -> list[tuple[int, ...]]:
        needed: list[list[str]] = [[] for _ in parts]
        compared = []
        for a, left, op, b, right in conditions:
            needed[a].append(left)
            needed[b].append(right)
            compared.append(Comparison(a, len(needed[a]) - 1, op, b, len(needed[b]) - 1))
        valid = [
            [e for e in part if all(e.payload[n] is not None for n in names)]
            for part, names in zip(parts, needed, strict=True)
        ]
        columns = [
            [np.array([e.payload[n] for e in part], object) for n in names]
            for part, names in zip(valid, needed, strict=True)
        ]
        return [
            tuple(valid[k][i].seq for k, i in enumerate(result)) for result in reference_theta.rows(columns, compared)
        ]

    return solve


def theta_by_core(spec: Any) -> Callable[[list[list[Event]]], list[tuple[int, ...]]]:
    aliases, sources = tuple(alias for alias, _ in spec.streams), sources_of(spec)
    sides = tuple(sources.index(stream) for _, stream in spec.streams)
    read = {(a, x) for a, left, _, b, right in theta_conditions(spec) for a, x in ((a, left), (b, right))}
    conditions = tuple(
        (Operand(a, f"{a}.{x}"), op, Operand(b, f"{b}.{y}")) for a, x, op, b, y in theta_conditions(spec)
    )
    join = WindowJoin(aliases, sides, conditions, tuple(() for _ in aliases))
    names = [f"{place}_seq" for place in range(len(aliases))]

    def solve(parts: list[list[Event]]) -> list[tuple[int, ...]]:
        if not all(parts):
            return []
        by_seq = {e.seq: e for part in parts for e in part}
        operands = [{f"{a}.{x}": e.payload[x] if e in parts[a] else None for a, x in read} for e in by_seq.values()]
        rows = zip(by_seq.values(), operands, strict=True)
        table = pa.Table.from_pylist([{"seq": e.seq, "side": sources.index(e.stream), **values} for e, values in rows])
        results = list(join.rows(table))
        return [row for result in results for row in zip(*(result[name].to_pylist() for name in names), strict=True)]

    return solve


# -- windowed kinds: repair --------------------------------------------------------------------------------------------


def batches_plainly(late: list[Event], gamma_us: int) -> list[list[Event]]:
    """Return Gamma batches: one ends when the span of its event times exceeds Gamma, the last with the input."""
    batches: list[list[Event]] = [[]]
    for e in late:
        batches[-1].append(e)
        times = [row.ts for row in batches[-1]]
        if max(times) - min(times) > gamma_us:
            batches.append([])
    return [batch for batch in batches if batch]


def batches_by_core(late: list[Event], gamma_us: int) -> list[list[Event]]:
    seq = np.array([e.seq for e in late], np.int64)
    closes = seq[gamma_batches(np.array([e.ts for e in late], np.int64), gamma_us)]
    of = assign(seq, closes).tolist()
    return [[e for e, batch in zip(late, of, strict=True) if batch == close] for close in [*closes.tolist(), -1]]


def windowed(
    spec: Any,
    events: list[Event],
    decided: Windows,
    answers: Answers,
    batches: Callable[[list[Event], int], list[list[Event]]],
) -> Played:
    """Answer closed windows, then repair batch by batch: the windows that a late row missed are answered again.

    Aggregates, top-k and counts revise the answers of the late row's group; the others only gain rows.
    """
    revises = spec.kind in ("aggregate", "topk") or getattr(spec, "emit", "rows") == "count"
    slide = spec.window.slide_us
    answered: dict[tuple[int, Groups], list[Row]] = {}
    rows = {window: list(members) for window, members in decided.on_time.items()}
    for window, members in rows.items():
        for group, result in answers(window * slide, members).items():
            extra = {"window_start": window * slide // SECOND, "published_seq": decided.closed[window]}
            answered[window, group] = [row | extra | {"provenance": "on_time", "revision": 0} for row in result]
    on_time = [row for result in answered.values() for row in result]
    for batch in batches([events[seq] for seq in sorted(decided.late)], spec.strategy.gamma_us):
        for window in sorted({w for e in batch for w in decided.late[e.seq]}):
            late_rows = [e for e in batch if window in decided.late[e.seq]]
            rows[window] = sorted([*rows.get(window, []), *late_rows], key=lambda e: e.seq)
            touched = {group_of(spec, e) for e in late_rows}
            for group, result in answers(window * slide, rows[window]).items():
                before = answered.get((window, group))
                extra = {"window_start": window * slide // SECOND, "provenance": "repaired", "revision": 0}
                if revises and group in touched:
                    extra["revision"] = 0 if before is None else before[0]["revision"] + 1
                    answered[window, group] = [row | extra for row in result]
                elif not revises:
                    known = before or []
                    fresh = [row for row in result if not any(row.items() <= old.items() for old in known)]
                    answered[window, group] = known + [row | extra for row in fresh]
    return Played(on_time, sorted(decided.late), [row for result in answered.values() for row in result])


# -- the tests ---------------------------------------------------------------------------------------------------------


def play_reference(spec: Any, events: list[Event], cuts: list[int]) -> Played:
    if spec.kind == "join":
        return join_by_reference(spec, events)
    answers = {
        "aggregate": lambda: aggregate_answers(spec, fold_plainly),
        "topk": lambda: topk_answers(spec, best_by_sorting(spec)),
        "membership": lambda: members_by_sets(spec),
        "theta_join": lambda: theta_answers(spec, theta_by_loops(spec)),
    }[spec.kind]()
    return windowed(spec, events, windows_by_reference(spec, events), answers, batches_plainly)


def play_core(spec: Any, events: list[Event], cuts: list[int]) -> Played:
    if spec.kind == "join":
        return join_by_core(spec, events, cuts)
    answers = {
        "aggregate": lambda: aggregate_answers(spec, fold_arrays),
        "topk": lambda: topk_answers(spec, best_by_core(spec)),
        "membership": lambda: members_by_filters(spec),
        "theta_join": lambda: theta_answers(spec, theta_by_core(spec)),
    }[spec.kind]()
    return windowed(spec, events, windows_by_core(spec, events, cuts), answers, batches_by_core)


@pytest.mark.parametrize("play", [play_reference, play_core], ids=["reference", "core"])
@pytest.mark.parametrize("name", transcripts.names())
def test_transcript(name: str, play: Callable[[Any, list[Event], list[int]], Played]) -> None:
    transcript = transcripts.load(name)
    spec, events = parse_query(transcript["query"], "transcript"), transcripts.events(transcript)
    transcripts.verify(transcript, lambda cuts: play(spec, events, cuts))


@pytest.mark.parametrize("name", [n for n in transcripts.names() if "kind: aggregate" in transcripts.load(n)["query"]])
def test_the_pass_over_a_whole_stream_closes_the_same_windows(name: str) -> None:
    transcript = transcripts.load(name)
    spec, events = parse_query(transcript["query"], "transcript"), transcripts.events(transcript)
    ts, ones = np.array([e.ts for e in events], np.int64), np.ones(len(events))
    grid = spec.window
    closed = run_pass(ts, ones, grid, slack_policy(spec), period_us=spec.period_us)
    slow = windows_by_reference(spec, events)
    first = {w: len(members) for w, members in slow.on_time.items()}
    final = {w: len(members) for w, members in windows_final(spec, events).items()}
    at = closed.window.tolist()
    assert {w: n for w, n in zip(at, closed.first_rows.tolist(), strict=True) if n} == first
    assert {w: n for w, n in zip(at, closed.final_rows.tolist(), strict=True) if n} == {
        w: final[w] for w in at if w in final
    }


def windows_final(spec: Any, events: list[Event]) -> dict[int, list[Event]]:
    members: dict[int, list[Event]] = {}
    for e in events:
        for w in reference_windows.windows(e.ts, spec.window.size_us, spec.window.slide_us):
            members.setdefault(w, []).append(e)
    return members
