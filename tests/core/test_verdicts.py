"""Periods are judged once, and the promise by the stored verdicts. Starts no Spark."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.time import FOREVER
from latecomer.lake import journal
from latecomer.lake.forget import forget
from latecomer.lake.lake import Lake
from latecomer.lake.lease import Lease
from latecomer.quality import messages, promise, verdicts
from latecomer.specs.errors import SpecError
from latecomer.specs.judging import Exclusion, Judging
from latecomer.specs.loading import parse_query

JOIN = "name: q\nkind: join\nstreams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.95, period: 1 h%s}\n"
SPEC = parse_query(JOIN % "")
START = pd.Timestamp("2024-01-01", tz="UTC")
HOUR = pd.Timedelta(hours=1)
HOUR_US = 3_600_000_000


def ledger(due, on_time, pending=(), **more):
    """Return the ledger of hours: results due and on time, and the numbers of hours whose late rows are pending."""
    due, on_time = np.asarray(due, float), np.asarray(on_time, float)
    start = START + HOUR * np.arange(len(due))
    rows = pd.DataFrame({"period_start": start, "period_end": start + HOUR, "target": 0.95})
    rows["expected"], rows["on_time"] = due, on_time
    rows["achieved_on_time"] = np.where(due > 0, on_time / np.maximum(due, 1), 1.0)
    rows.loc[list(pending), ["expected", "achieved_on_time"]] = np.nan
    return rows.assign(**more)


class Checks:
    """The verdicts of a query over several checks, as `verdicts/<query>` keeps them."""

    def __init__(self, spec=SPEC):
        self.spec, self.stored, self.commits = spec, pd.DataFrame(), 0

    def check(self, rows, complete_to_us=FOREVER):
        """Judge a ledger; return the judgement."""
        again = self.stored["period_start"] if len(self.stored) else None
        new = promise.changed(self.stored, promise.verdicts(self.spec, rows, complete_to_us, again))
        new = new.assign(rows=0, rows_ahead=0, new=True, commit=self.commits)
        self.added, self.commits = len(new), self.commits + 1
        self.stored = promise.merged(self.stored.assign(new=False), new)
        return promise.weigh(self.spec, self.stored)


def judged(due, on_time, spec=SPEC, rows=0, fast=0):
    """Return the judgement of periods that are all judged at once."""
    current = promise.verdicts(spec, ledger(due, on_time), FOREVER)
    return promise.weigh(spec, current.assign(judgement=0, rows=rows, rows_ahead=fast, new=True))


def test_the_same_two_old_misses_give_the_same_answer_while_pending_periods_come_and_go():
    """Two misses among 9, 7, 6 and 9 known periods would pass, fail, fail and pass."""
    due, on_time = [100] * 9, [90, 100, 90, *[100] * 6]
    pending = ((), (5, 6), (5, 6, 7), ())
    known = [ledger(due, on_time, hours)["achieved_on_time"].dropna() for hours in pending]
    assert [(k < 0.95).sum() <= promise.allowed_misses(len(k), 0.95) for k in known] == [True, False, False, True]
    checks = Checks()
    lines = set()
    for hours in pending:
        judgement = checks.check(ledger(due, on_time, hours))
        lines.add((judgement.kept, judgement.groups[0].missed, len(judgement.groups[0].rows)))
    assert lines == {(True, 2, 9)} and checks.added == 0
    open_hours = ledger([*due, 100], [*on_time, 0])
    assert checks.check(open_hours, promise.microseconds(open_hours["period_start"])[-1]).kept
    assert checks.added == 0, "an hour that is still coming in is not judged"


def test_a_promise_that_is_broken_stays_so_until_something_new_is_judged():
    due, on_time = [100] * 7, [90, 100, 90, *[100] * 4]
    checks = Checks()
    for hours in ((), (1,), (0, 2), (3, 4, 5, 6), ()):
        assert not checks.check(ledger(due, on_time, hours)).kept
    assert checks.check(ledger([*due, 100], [*on_time, 100])).kept
    assert checks.added == 1


def test_a_repair_that_changes_a_period_makes_a_new_verdict():
    checks = Checks()
    assert checks.check(ledger([100] * 3, [100] * 3)).groups[0].missed == 0
    assert checks.check(ledger([100, 200, 100], [100] * 3, pending=[1])).groups[0].missed == 0
    assert checks.check(ledger([100, 200, 100], [100] * 3)).groups[0].missed == 1
    assert checks.stored["judgement"].tolist() == [0, 1, 0] and checks.added == 1
    assert checks.stored["new"].tolist() == [False, True, False]
    checks.spec = parse_query(JOIN.replace("0.95", "0.5") % "")
    assert checks.check(ledger([100, 200, 100], [100] * 3)).groups[0].missed == 0, "another target judges anew"
    assert checks.stored["judgement"].tolist() == [1, 2, 1]


def test_what_is_never_judged():
    rows = ledger([100, 0, 100, 100, 100], [0, 0, 0, 0, 100], pending=[3], learning=[True, *[None] * 4])
    complete_to_us = promise.microseconds(rows["period_end"])
    assert promise.verdicts(SPEC, rows, complete_to_us[1])["due"].tolist() == []
    current = promise.verdicts(SPEC, rows, FOREVER)
    assert current["kept"].tolist() == [False, True]
    assert promise.standing(rows, current["period_start"], complete_to_us[-1]).tolist() == [
        "learning",
        "nothing due",
        "judged",
        "awaits repair",
        "judged",
    ]


histories = st.lists(
    st.tuples(
        st.integers(1, 50),  # due
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=3),  # on time, more due
        st.integers(0, 4),  # check at which the period is complete_to_us
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(histories, st.randoms(use_true_random=False), st.integers(1, 8))
def test_any_order_of_checks_and_repairs_ends_in_the_verdicts_of_the_final_state(periods, random, number):
    """Periods close one after another; late rows come in and are repaired; checks look at random moments."""
    checks, final = Checks(), []
    for check in range(number):
        due, on_time, pending = [], [], []
        for hour, (first, repairs, _) in enumerate(periods):
            done = random.randrange(len(repairs))
            due.append(first + sum(more for _, more in repairs[: done + 1]))
            on_time.append(min(repairs[done][0], due[-1]))
            if random.random() < 0.3:
                pending.append(hour)
        complete_to_us = [max(late for _, _, late in periods[: hour + 1]) <= check for hour in range(len(periods))]
        reached = int(np.sum(complete_to_us))
        checks.check(ledger(due, on_time, pending), promise.microseconds(pd.Series([START]))[0] + reached * HOUR_US)
    due = [first + sum(more for _, more in repairs) for first, repairs, _ in periods]
    final = ledger(due, [min(repairs[-1][0], d) for (_, repairs, _), d in zip(periods, due, strict=True)])
    judgement, once = checks.check(final), Checks()
    columns = ["period_start", *promise.DECIDING, "kept"]
    whole = once.check(final)
    assert checks.stored[columns].astype(str).equals(once.stored[columns].astype(str))
    assert (judgement.kept, judgement.due, judgement.on_time) == (whole.kept, whole.due, whole.on_time)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=40),
    st.sets(st.integers(0, 39)),
    st.integers(0, 5),
)
def test_pending_open_and_learning_periods_change_nothing(periods, pending, more):
    due = [due for due, _ in periods]
    on_time = [min(pair) for pair in periods]
    checks = Checks()
    first = checks.check(ledger(due, on_time))
    rows = ledger([*due, *[500] * more], [*on_time, *[0] * more], [hour for hour in pending if hour < len(due)])
    learning = [False] * len(due) + [number % 2 == 0 for number in range(more)]
    complete_to_us = promise.microseconds(pd.Series([START + HOUR * len(due)]))[0]
    again = checks.check(rows.assign(learning=learning), complete_to_us)
    assert checks.added == 0
    assert (again.kept, again.due, again.needed) == (first.kept, first.due, first.needed)
    assert [(g.name, g.missed, g.allowed) for g in again.groups] == [
        (g.name, g.missed, g.allowed) for g in first.groups
    ]


def chance(n, q):
    """Return the least number that Binomial(n, q) exceeds with probability 0.05 at most, term by term."""
    below = 0.0
    for k in range(n + 1):
        below += math.comb(n, k) * q**k * (1 - q) ** (n - k)
        if 1 - below <= 0.05 + 1e-9:
            return k
    return n


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 3, 40, 50, 700, 900]), st.integers(0, 12)), min_size=1, max_size=120))
def test_the_promise_is_what_the_rule_says(periods):
    """Compare with the rule in plain Python."""
    due = [due for due, _ in periods]
    on_time = [max(due - lost, 0) if lost > 8 else due for due, lost in periods]
    counted = [(d, d - t > 0.05 * d + 1e-9, t) for d, t in zip(due, on_time, strict=True)][-100:]
    sizes = sorted(d for d, _, _ in counted)
    usual, half, share = sizes[len(sizes) // 2], 0, 0
    for size in reversed(sizes):
        half, share = size, share + size
        if share >= sum(sizes) / 2:
            break
    votes = [p for p in counted if 10 * p[0] >= usual]
    large = [p for p in votes if 10 * p[0] >= half]
    small = [p for p in counted if 10 * p[0] < usual]
    groups = [votes, *([large] if len(large) < len(votes) else []), *([small] if len(small) >= 20 else [])]
    kept = all(sum(missed for _, missed, _ in group) <= chance(len(group), 0.05) for group in groups)
    total = sum(sizes)
    judgement = judged(due, on_time)
    assert [len(group.rows) for group in judgement.groups] == [len(group) for group in groups]
    assert judgement.needed == total - promise.allowed_misses(total, 0.95 * 0.95)
    kept &= sum(t for _, _, t in counted) >= judgement.needed - 1e-6
    assert judgement.kept == kept


def failing(judgement):
    """Return the names of the tests that fail."""
    whole = [] if judgement.on_time >= judgement.needed else ["whole"]
    return [group.name for group in judgement.groups if not group.kept] + whole


DAY = [5_000] * 14 + [5] * 10
"""Hours of a day and of its night."""


@pytest.mark.parametrize(
    ("due", "on_time", "broken"),
    [
        ([1, 2_759, 240], [1, 51, 240], ["large periods", "whole"]),  # case 13, had it no arrival times
        ([2_759], [51], ["periods", "whole"]),
        ([10_000, 10_000], [10_000, 1_400], ["whole"]),
        ([10_000, 10_000], [10_000, 9_400], []),
        ([1_000] * 10 + [50_000], [500] * 5 + [1_000] * 5 + [50_000], ["periods"]),
        (DAY * 4, ([5_000] * 14 + [4] * 10) * 4, ["small periods"]),
        (DAY * 4, ([4_700] * 5 + [5_000] * 9 + [5] * 10) * 4, ["periods"]),
        (DAY * 4, ([4_700] * 1 + [5_000] * 13 + [4] * 1 + [5] * 9) * 4, []),
        (DAY * 4, DAY * 4, []),
        (([5] * 20 + [5_000] * 4) * 4, ([5] * 20 + [4_700] * 2 + [5_000] * 2) * 4, ["large periods"]),
        ([1_000] * 10 + [1, 2, 1], [1_000] * 10 + [0, 0, 0], []),  # stray rows of a dead clock do not vote
        ([1_000] * 5, [900] * 5, ["periods"]),  # one device of ten is a day slow
        ([1] * 100, [0] * 9 + [1] * 91, []),
        ([1] * 100, [0] * 10 + [1] * 90, ["periods"]),
        ([1, 2] * 5, [1, 2] * 4 + [0, 2], []),
        ([0, 0, 100], [0, 0, 100], []),
    ],
)
def test_large_and_small_periods_do_not_hide_each_other(due, on_time, broken):
    judgement = judged(due, on_time)
    current = failing(judgement)
    assert [name for name in current if name in broken] == broken and judgement.kept == (not broken), current


def test_periods_of_suspected_clocks_do_not_vote_unless_all_clocks_are_fast():
    fast = judged([1, 2_759, 240], [1, 51, 240], rows=[1, 2_759, 240], fast=[0, 60, 240])
    assert fast.periods["vote"].tolist() == ["small", "votes", "clocks"]
    assert failing(fast) == ["periods", "whole"] and fast.due == 2_760
    zone = judged([100] * 3, [0] * 3, rows=[100] * 3, fast=[100] * 3)
    assert failing(zone) == ["periods", "whole"] and zone.periods["vote"].eq("votes").all()


def test_the_query_says_which_periods_count():
    due, on_time = [100] * 30, [*[0] * 10, *[100] * 20]
    assert not judged(due, on_time).kept
    assert judged(due, on_time, parse_query(JOIN % ", over: 20 periods")).kept
    assert judged(due, on_time, parse_query(JOIN % ", over: 21 periods")).groups[0].missed == 1
    assert judged(due, on_time, parse_query(JOIN % ", since: 2024-01-01 10:00:00")).due == 2_000
    why = parse_query(
        JOIN % ", exclude: [{from: 2024-01-01, to: 2024-01-01 09:30:00, why: power cut}], over: 20 periods"
    )
    judgement = judged(due, on_time, why)
    assert judgement.kept and judgement.periods["why"].tolist() == [*["power cut"] * 10, *[""] * 20]
    line = messages.promise_line(why, judgement, None, repaired=1_204, recalled=12, pending=3)
    assert line == (
        "promise kept: 0 of 20 periods missed (at most 3 may, by chance, at 95%), 10 periods excluded; "
        "1,204 late rows repaired, 12 recalled, 3 pending"
    )


def test_the_line_says_what_missed_and_what_is_new():
    due = [100] * 100
    checks = Checks()
    checks.check(ledger(due[:99], [90, *[100] * 98]))
    judgement = checks.check(ledger(due, [90, *[100] * 98, 80]))
    line = messages.promise_line(SPEC, judgement, 0.0, repaired=1, recalled=0, pending=0)
    assert line == (
        "promise kept: 2 of 100 periods missed (at most 9 may, by chance, at 95%), "
        "1 of them new since the check of 1970-01-01 00:00 UTC; 1 late row repaired, 0 pending"
    )
    nothing = promise.weigh(SPEC, checks.stored[:0])
    assert messages.promise_line(SPEC, nothing, None, repaired=0, recalled=0, pending=5) == (
        "promise not judged yet; 0 late rows repaired, 5 pending"
    )


def test_which_periods_count_is_read_and_checked():
    assert SPEC.judging == Judging() == Judging(100, None, ())
    several = parse_query(
        JOIN % ", since: 2013-01-31T12:00:00+02:00, exclude: [{from: 2013-02-01, to: 2013-02-02, why: x}]"
    )
    assert several.judging == Judging(
        100, 1_359_626_400_000_000, (Exclusion(1_359_676_800_000_000, 1_359_763_200_000_000, "x"),)
    )
    assert several.fingerprint() == SPEC.fingerprint()
    for keys, reason in (
        ("over: 30", "quality.over: 30: is not a number of periods; write 30 periods"),
        ("over: 0 periods", "write 100 periods"),
        ("since: soon", "quality.since: 'soon': is not a time; write it as 2013-01-31T12:00:00Z"),
        ("over: 3 periods, since: 2013-01-31", "state one"),
        ("exclude: {from: 2013-02-01}", "must be a list"),
        ("exclude: [{from: 2013-02-01, to: 2013-02-03}]", "quality.exclude[0].why: is missing"),
        ("exclude: [{from: 2013-02-03, to: 2013-02-01, why: x}]", "is not before to (2013-02-01)"),
        ("exclude: [{from: 2013-02-03, to: 2013-02-04, why: x, who: y}]", "is not a key here"),
    ):
        with pytest.raises(SpecError) as raised:
            parse_query(JOIN % f", {keys}")
        assert reason in str(raised.value), str(raised.value)


@pytest.fixture
def lake(tmp_path):
    """A lake in which query `q` has read ten rows."""
    lake = Lake(tmp_path / "lake")
    journal.save_state(lake, "q", journal.RunState(0, 10, False, "f", {}, {"rows_read": 10, "on_time": 3, "late": 0}))
    return lake


def current(lake, rows, seq_to=10, repaired_to=-1):
    return verdicts.find(lake, SPEC, rows, FOREVER, seq_to, repaired_to)


def test_verdicts_are_stored_once_and_the_last_one_counts(lake):
    rows = ledger([100] * 3, [100, 0, 100])
    first = current(lake, rows)
    assert len(first.added) == 3 and first.is_new(-1).all()
    assert verdicts.store(lake, "q", first) and not verdicts.store(lake, "q", first)
    again = current(lake, rows)
    assert len(again.added) == 0 and again.commit == 0 and verdicts.store(lake, "q", again)
    assert again.is_new(-1).all() and not again.is_new(0).any(), "new until a check has reported them"
    later = current(lake, ledger([100, 100, 200, 100], [100, 0, 100, 100]), repaired_to=7)
    assert later.added["judgement"].tolist() == [1, 0] and later.is_new(0).tolist() == [False, False, True, True]
    assert verdicts.store(lake, "q", later)
    assert current(lake, ledger([100, 100, 200, 100], [100, 0, 100, 100])).last["kept"].tolist() == [
        *[True, False],
        *[False, True],
    ]
    assert verdicts.history(lake, "q")["judgement"].tolist() == [0, 0, 0, 1, 0]
    assert lake.table("verdicts", "q").schema().names == verdicts.SCHEMA.names


def test_a_check_that_saw_less_or_meets_another_stores_nothing(lake, monkeypatch):
    monkeypatch.setattr(verdicts, "PAUSE_S", 0.0)
    assert verdicts.store(lake, "q", current(lake, ledger([100], [100]), repaired_to=5))
    assert not verdicts.store(lake, "q", current(lake, ledger([100], [90]), repaired_to=4)), "it read before the repair"
    other = current(lake, ledger([100], [80]), repaired_to=5)
    assert verdicts.store(lake, "q", current(lake, ledger([100], [70]), repaired_to=5))
    assert not verdicts.store(lake, "q", other), "another check was first"
    with Lease(lake, "check-q"):
        assert not verdicts.store(lake, "q", current(lake, ledger([100], [60]), repaired_to=5))
    late = current(lake, ledger([100], [60]), repaired_to=5)
    forget(lake, "q")
    assert not lake.table("verdicts", "q").exists()
    assert not verdicts.store(lake, "q", late) and not lake.table("verdicts", "q").exists()
