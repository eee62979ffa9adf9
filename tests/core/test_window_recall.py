"""The recall budget of windows against its definition, one arrival at a time, in any cut and with flushes."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from latecomer.core.arrivals import Arrivals
from latecomer.core.time import FOREVER, NEVER
from latecomer.core.windows.arrivals import ArrivalCounts, ClosingSteps, last_closed
from latecomer.core.windows.closing import closed_windows
from latecomer.core.windows.control import WindowControl
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.recall_budget import Amount, LateWindows, RecallBudget, steps_of, windows_of_period
from latecomer.core.windows.slack_policies import Fixed
from latecomer.specs.loading import parse_query
from latecomer.strategies.windows import recall_budget

from tests.support.revisions import by_definition as revised_by_definition


def by_definition(times, grid, period, slack, target):  # noqa: C901 - the definition, in one piece
    """Apply the rule after every step to all rows so far; a result is a row in a window.

    Returns the recalls (completion, period), and per period the results that were due and not published at its close.
    """
    windows = {}  # window -> [arrival that closed it, results on time]
    late = []  # row, window that missed it, and whether its period was open
    recalls, closed_at = [], {}
    step, base, watermark, clock = None, NEVER, NEVER, NEVER
    rows = []

    def period_of(window):
        return (grid.end(window) - 1) // period * period

    def close(seq, upto):
        for window in sorted({w for _, ts in rows for w in range(grid.first_of(ts), grid.last_of(ts) + 1)}):
            if window not in windows and grid.end(window) <= upto:
                missed = {row for row, of, _ in late if of == window}
                held = sum(grid.first_of(ts) <= window <= grid.last_of(ts) and row not in missed for row, ts in rows)
                if held:
                    windows[window] = [seq, held]

    def is_open(start, began):
        return start + 2 * period > began

    def totals(start):
        published = sum(held for window, (_, held) in windows.items() if period_of(window) == start)
        last = max([seq for seq, of in recalls if of == start], default=NEVER)
        came = [seq for seq, window, open_ in late if open_ and period_of(window) == start]
        return published + sum(seq < last for seq in came), sum(seq >= last for seq in came)

    def complete(seq):
        for start in sorted({period_of(window) for _, window, _ in late}):
            published, missed = totals(start)
            if missed and is_open(start, base) and published / (published + missed) < target:
                recalls.append((seq, start))
            published, missed = totals(start)
            assert not is_open(start, base) or published >= target * (published + missed)

    def complete_periods(began):
        for start in {period_of(w) for w in windows} | {period_of(w) for _, w, _ in late}:
            if start not in closed_at and not is_open(start, began):
                closed_at[start] = totals(start)

    for seq, ts in enumerate(times):
        if step is not None and max(clock, ts) // grid.slide_us > step:
            complete(seq)
            base = watermark
            complete_periods(base)
        clock = max(clock, ts)
        step = clock // grid.slide_us
        watermark = max(watermark, clock - slack)
        rows.append((seq, ts))
        for window in range(grid.first_of(ts), grid.last_of(ts) + 1):
            if grid.end(window) <= watermark:
                late.append((seq, window, is_open(period_of(window), base)))
        close(seq, watermark)
    return recalls, {start: of for start, of in closed_at.items() if sum(of)}


class Run:
    """The control plane and the budget, as the stage uses them, with counted results in place of Spark."""

    def __init__(self, grid, period, slack, target):
        self.grid, self.period, self.target = grid, period, target
        self.control = WindowControl(grid, period, Fixed(slack))
        self.budget = RecallBudget(target, period)
        self.carry, self.seq, self.late, self.held = [NEVER], 0, [], {}
        self.recalls, self.counts = [], {}

    def batch(self, times, flush=False):
        grid, seq_from, seq_to = self.grid, self.seq, self.seq + len(times)
        rows = len(times)
        new = Arrivals.of(
            np.arange(seq_from, seq_to), np.array(times, np.int64), np.zeros(rows, np.int8), np.zeros(rows, np.int32),
            self.carry,
        )  # fmt: skip
        counts = ArrivalCounts.of(new, grid, 1)
        before, held = grid.last_closed(self.control.watermark()), self.control.panes
        interval = self.control.interval
        table = self.control.step(counts.intervals[0], {})
        closed = last_closed(new, [table], grid)
        end = (seq_to, self.control.t_last_us) if flush else None
        closing = [ClosingSteps.of(new, closed, 0)]
        answered = closed_windows(grid, closing, counts, [before], [held], None if end is None else (end[0], [end[1]]))
        for seq, ts, last in zip(new.seq.tolist(), times, closed.tolist(), strict=True):
            for window in range(grid.first_of(ts), grid.last_of(ts) + 1):
                if window <= last:
                    self.late.append((seq, window, window))
                else:
                    self.held.setdefault(window, []).append(seq)
        amounts = []
        for window, by in zip(answered.window.tolist(), answered.seq.tolist(), strict=True):
            if window in self.held:  # else its rows were all late
                start = (grid.end(window) - 1) // self.period * self.period
                amounts.append(Amount(by, start, len(self.held[window])))
        if flush:
            self.control.flush()
        steps = steps_of(new, table, interval, grid.slide_us, end)
        late = [entry for entry in self.late if entry[0] >= self.budget.step_from]
        late = LateWindows.of(*np.array(late, np.int64).reshape(-1, 3).T, grid, self.period)
        is_open = self.budget.open_rows(late, steps)
        missed = self.changed(late, steps)
        recalls, noted = self.budget.advance(steps, amounts, late.where(is_open), missed)
        self.recalls += [(seq, start) for start, seqs in recalls.items() for seq in seqs]
        for start, sums in noted.items():
            account = self.counts.setdefault(start, {})
            for name, amount in sums.items():
                account[name] = account.get(name, 0) + amount
        state = json.loads(json.dumps(self.budget.to_dict()))
        self.budget = RecallBudget.from_dict(state, self.target, self.period, replaces=self.budget.replaces)
        self.carry, self.seq = new.carry, seq_to

    def changed(self, late, steps):
        """Count the rows that were late, by the completion of their step and period."""
        missed = {}
        for at, start in zip(self.budget.completions(late, steps).tolist(), late.period_us.tolist(), strict=True):
            if at < FOREVER:
                missed[at, start] = missed.get((at, start), 0) + 1
        return [Amount(at, start, results) for (at, start), results in missed.items()]

    def at_close(self):
        return {
            start: (sums["due"] - sums["unpublished"], sums["unpublished"])
            for start, sums in self.counts.items()
            if "due" in sums
        }


class Revisions(Run):
    """The same for counts that are replaced; in place of Spark, rows are counted here."""

    def __init__(self, grid, period, slack, error):
        super().__init__(grid, period, slack, 1.0)
        self.budget = RecallBudget(1.0, period, replaces=True)
        self.error, self.revisions, self.published = error, [], {}

    def changed(self, late, steps):
        completion = self.budget.completions(late, steps)
        for window, seqs in self.held.items():
            if grid_closed(self, window):
                self.published.setdefault(window, len(seqs))
        amounts = {}
        touched = {
            (at, window)
            for at, first, last in zip(completion.tolist(), late.first.tolist(), late.last.tolist(), strict=True)
            for window in range(first, last + 1)
            if at < FOREVER
        }
        for at, window in sorted(touched):
            late_rows = sum(seq < at and first <= window <= last for seq, first, last in self.late)
            new, known = len(self.held.get(window, [])) + late_rows, self.published.get(window, 0)
            if abs(known - new) / new >= self.error:
                self.revisions.append((at, window, None, new))
                self.published[window] = new
                key = at, (self.grid.end(window) - 1) // self.period * self.period
                amounts[key] = amounts.get(key, 0) + 1
        return [Amount(at, start, rows) for (at, start), rows in amounts.items()]


def grid_closed(run, window):
    return run.grid.end(window) <= run.control.watermark()


STREAMS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 0, 1, 3, 6, 12, 30])), min_size=5, max_size=60)
GRIDS = st.sampled_from([Grid(2, 2), Grid(4, 2), Grid(5, 2), Grid(3, 3)])


def stream(drawn):
    """Return event times, from pairs: by how much the clock goes on, and by how much a row is late."""
    clock, times = 100, []
    for passes, delay in drawn:
        clock += passes
        times.append(clock - delay)
    return times


@settings(max_examples=150, deadline=None)
@given(STREAMS, GRIDS, st.sampled_from([2, 4, 7, 10]), st.integers(0, 3), st.sampled_from([0.5, 0.9, 1.0]), st.data())
@example([(1, 0)] * 20 + [(0, 8)] * 3 + [(1, 0)] * 30, Grid(2, 2), 10, 0, 0.9, None)
def test_every_cut_decides_as_the_definition_does(drawn, grid, period, slack, target, data):
    times = stream(drawn)
    recalls, closed = by_definition(times, grid, period, slack, target)
    cuts = [] if data is None else data.draw(st.lists(st.integers(1, len(times)), max_size=6))
    for places in ([], sorted(cuts), range(1, len(times))):
        run, last = Run(grid, period, slack, target), 0
        for place in [*places, len(times)]:
            run.batch(times[last:place])
            last = place
        assert sorted(run.recalls) == sorted(recalls)
        assert run.at_close() == closed
        assert all(published >= target * (published + missed) for published, missed in closed.values())
        decided = run.budget.decided_to
        assert all(seq >= decided or start not in run.budget.periods or any(
            at > seq for at, of in recalls if of == start
        ) for seq, window, _ in run.late for start in [(grid.end(window) - 1) // period * period])  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(STREAMS, GRIDS, st.sampled_from([2, 4, 7, 10]), st.integers(0, 3), st.sampled_from([0.1, 0.3, 1.0]), st.data())
@example([(1, 0)] * 20 + [(0, 8)] * 3 + [(1, 0)] * 30, Grid(2, 2), 10, 0, 0.3, None)
def test_answers_that_late_rows_moved_are_published_again_at_once(drawn, grid, period, slack, error, data):
    """Test any cut: each answer is right when its period closes, and until then repair leaves its rows alone."""
    times = stream(drawn)
    revisions, closed = revised_by_definition(
        [(time, None) for time in times], grid, period, slack,
        answers=lambda rows: {None: len(rows)}, moved=lambda known, new: abs((known or 0) - new) / new >= error,
    )  # fmt: skip
    cuts = [] if data is None else data.draw(st.lists(st.integers(1, len(times)), max_size=6))
    for places in ([], sorted(cuts), range(1, len(times))):
        run, last = Revisions(grid, period, slack, error), 0
        for place in [*places, len(times)]:
            run.batch(times[last:place])
            last = place
            waiting = [seq for seq, window, _ in run.late if is_open_in(run, window)]
            assert run.budget.decided_to <= min(waiting, default=FOREVER), "`run` alone numbers these revisions"
        assert sorted(run.revisions) == sorted(revisions)
    assert data is not None or revisions == [(24, 56, None, 5)], (
        "three late rows at the end of one step are one revision"
    )
    for windows in closed.values():
        assert all(abs(known[None] - new[None]) / new[None] < error for known, new in windows.values())


def is_open_in(run, window):
    start = (run.grid.end(window) - 1) // run.period * run.period
    return run.grid.end(window) <= run.control.watermark() and start + 2 * run.period > run.budget.base_us


@settings(max_examples=60, deadline=None)
@given(STREAMS, STREAMS, GRIDS, st.integers(0, 3), st.data())
def test_a_flush_closes_its_periods_and_counts_no_result_twice(drawn, more, grid, slack, data):
    first, period, target = stream(drawn), 6, 0.9
    second = [time + max(first) - 100 for time in stream(more)]
    outcomes = []
    for cut in (len(second), data.draw(st.integers(0, len(second)))):
        run = Run(grid, period, slack, target)
        run.batch(first, flush=True)
        assert run.budget.decided_to == FOREVER and not run.budget.periods
        flushed = set(run.at_close())
        run.budget.flushed = {}  # the stage subtracts them from what it finds; here nothing is found twice
        run.batch(second[:cut])
        run.batch(second[cut:], flush=True)
        assert not {start for seq, start in run.recalls if seq > len(first)} & flushed
        on_time = sum(len(rows) for rows in run.held.values())
        recalled = sum(sums.get("recalled", 0) for sums in run.counts.values())
        shares = run.at_close()
        assert sum(published for published, _ in shares.values()) == on_time + recalled
        assert all(published >= target * (published + missed) for published, missed in shares.values())
        outcomes.append((sorted(run.recalls), run.counts))
    assert outcomes[0] == outcomes[1]


def test_what_a_flush_of_repair_published_early_is_published():
    run = Run(Grid(2, 2), 10, 0, 0.5)
    run.batch([*range(100, 110), 104, 104, 111, 107])
    assert not run.recalls and run.budget.periods[100].missed == 2 and run.budget.decided_to == 10
    late = LateWindows.of(*np.array(run.late, np.int64).reshape(-1, 3).T, run.grid, run.period)
    assert run.budget.take_repaired(11, late.where(late.seq > 11)) == {}, "one late row is left"
    assert run.budget.periods[100].missed == 2 and run.budget.decided_to == 13
    assert run.budget.take_repaired(13, late.where(late.seq > 13)) == {100: {"repaired_early": 2}}
    assert run.budget.periods[100].missed == 0 and run.budget.decided_to == FOREVER and run.budget.step_from == 14
    run.batch([113, *[101] * 9, 115])
    assert run.recalls == [] and run.budget.periods[100].missed == 9, "the row that was repaired counts nowhere"
    run.batch([*[101] * 9, 117])
    assert run.recalls == [(34, 100)]


@pytest.mark.parametrize("grid", [Grid(2, 2), Grid(5, 2), Grid(7, 3)])
@pytest.mark.parametrize("period", [2, 3, 10])
def test_a_period_has_the_windows_whose_last_moment_it_holds(grid, period):
    numbers = np.arange(-12, 12)
    first, last = windows_of_period(grid, numbers, period)
    for number, low, high in zip(numbers.tolist(), first.tolist(), last.tolist(), strict=True):
        windows = [m for m in range(-200, 200) if (grid.end(m) - 1) // period == number]
        assert windows == list(range(low, high + 1))


def test_late_rows_are_divided_by_period():
    late = LateWindows.of(np.array([5, 9]), np.array([0, 3]), np.array([4, 3]), Grid(4, 2), 4)
    assert [*zip(late.seq, late.period_us, late.first, late.last, strict=True)] == [
        (5, 0, 0, 0), (5, 4, 1, 2), (5, 8, 3, 4), (9, 8, 3, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "strategy", "revises"),
    [
        ("aggregate", "calibrated", False), ("aggregate", "{name: calibrated, revise: true}", True),
        ("topk", "calibrated", False), ("topk", "{name: none, revise: true}", True),
        ("aggregate", "{name: calibrated, shards: 2}", False),
    ],
)  # fmt: skip
def test_queries_revise_where_their_file_says_so(kind, strategy, revises):
    select = "group_by: [k]\nselect: {n: count()}\n" if kind == "aggregate" else "score: v\nk: 2\n"
    promise = "error: 0.1" if kind == "aggregate" else "hit_rate: 0.9"
    text = f"name: q\nkind: {kind}\nstreams: {{s: a}}\nwindow: 1 s\n{select}quality: {{{promise}, period: 10 s}}\n"
    spec = parse_query(f"{text}strategy: {strategy}\n")
    budget = recall_budget(spec, None)
    assert (budget is not None and budget.replaces) == revises
