"""The join's control plane, and its data plane in memory, against the reference that joins tuple at a time."""

import json

import numpy as np
import pytest
from latecomer.bench.join_simulator import Input, band_pairs, qjoin, reordered, stream_times, waits
from latecomer.core.gamma_batches import assign, gamma_batches
from latecomer.core.join.control import HeldRows, IntervalSummary, JoinControl, held_bucket_us
from latecomer.core.join.k_slack import ArrivalClock, slack_watermark
from latecomer.core.join.retention_policies import RetentionParameters
from latecomer.core.join.statistics import SAMPLE_FRACTION
from latecomer.core.time import FOREVER, NEVER
from latecomer.reference import join as reference
from latecomer.strategies.join import retention_policy

from tests.support import events

W, P, L, G = 2_000_000, 10_000_000, 166_666, 10_000


def settings(estimator):
    return RetentionParameters("qjoin", estimator, 0.9, 0.95, W, P, L, G, G)


def control(estimator):
    return JoinControl(
        retention_policy(settings(estimator), None, None), window_us=W, interval_us=L, granularity_us=G, period_us=P
    )


def as_input(table):
    frame = table.to_pandas()
    sides = [frame[frame.stream == name] for name in ("a", "b")]
    pairs = band_pairs(*(s.event_ts.to_numpy() for s in sides), W, *(s.k.to_numpy() for s in sides))
    return Input(tuple(s.seq.to_numpy() for s in sides), tuple(s.event_ts.to_numpy() for s in sides), pairs)


def seqs(data, keep):
    chosen = data.pairs[keep]
    return set(zip(data.seq[0][chosen[:, 0]].tolist(), data.seq[1][chosen[:, 1]].tolist(), strict=True))


@pytest.mark.parametrize("estimator", ["calibrated", "empirical"])
@pytest.mark.parametrize("seed", range(8))
def test_set_formula_equals_the_two_buffers(estimator, seed):
    table = events.disordered(seed, rows=400)
    data = as_input(table)
    rng = np.random.default_rng(seed)
    match = lambda x, y: x.row["k"] == y.row["k"]  # noqa: E731
    answer = reference.qjoin(
        events.arrivals(table, "a", "b"), window=W, interval=L, granularity=G, match=match,
        policy=retention_policy(settings(estimator), None, None),
    )  # fmt: skip
    for cuts in (None, sorted(rng.integers(0, 400, 6).tolist()), list(range(0, 400, 1)) if seed == 0 else [200]):
        output = qjoin(data, control(estimator), cuts)
        assert seqs(data, output.produced) == set(answer.on_time)
        for side in (0, 1):
            registered = set(data.seq[side][output.late[side]].tolist())
            assert registered == {seq for seq, s, _, _ in answer.late if s == side}
    assert seqs(data, np.ones(len(data.pairs), bool)) == reference.exact_join(
        events.arrivals(table, "a", "b"), W, match
    )


def test_state_survives_json():
    table = events.disordered(3, rows=300)
    data = as_input(table)
    whole = control("calibrated")
    qjoin(data, whole)
    state = json.loads(json.dumps(whole.to_dict()))
    again = JoinControl.from_dict(
        state, retention_policy(settings("calibrated"), state["policy"], None),
        window_us=W, interval_us=L, granularity_us=G, period_us=P,
    )  # fmt: skip
    assert json.dumps(again.to_dict(), sort_keys=True) == json.dumps(whole.to_dict(), sort_keys=True)


def test_rows_held_are_never_more_than_came():
    """The sample's rows that still lie in the buffers are not held twice."""
    data = as_input(events.disordered(3, rows=2_000))
    whole = control("calibrated")
    qjoin(data, whole)
    most = max(account.held_max for account in whole.accounts.values())
    assert 0 < most <= sum(whole.arrivals) and whole._sample_rows() > 0
    whole.retention, whole.base = [FOREVER, FOREVER], [NEVER, NEVER]
    whole.held = [HeldRows(10, np.array([0]), np.array([rows])) for rows in whole.arrivals]
    account = whole.account(whole._period_of(whole.interval), as_of_now=True)
    assert account.held_max == sum(whole.arrivals)


class Short:
    """A constant retention that needs the sample."""

    needs_pairs, needs_candidates, needs_lateness, expires = True, False, False, True

    def observe(self, stats):
        pass

    def choose(self, interval):
        return 0, 0


def test_the_sample_is_held_for_the_delay_range_and_no_longer():
    """The sample of the right is held for the lateness of the left, 40 intervals; the left's sample is in its buffer.

    There are 1,000 rows per interval and side.
    """
    length, late_us = 1_000_000, 40_000_000
    plane = JoinControl(Short(), window_us=W, interval_us=length, granularity_us=G, period_us=P)
    cells, thousand = np.empty((0, 6), np.int64), np.array([1_000])
    for j in range(400):
        bucket = np.array([j * length // held_bucket_us(length, G)])
        delays = (np.array([late_us // G - 1]), thousand), (np.array([0]), thousand)
        plane.step([IntervalSummary(j, j * length + 999_999, ((bucket, thousand),) * 2, delays, cells)])
    held = [plane.account(period).held_area / P for period in plane.closed_periods()]
    sampled = SAMPLE_FRACTION * 1_000 * late_us / length
    assert held[-1] == pytest.approx(held[len(held) // 2], rel=0.01), "held for ever"
    buffers = sum(held_rows.count for held_rows in plane.held)
    assert sampled * 0.9 <= held[-1] - buffers <= sampled * 1.1


def test_rows_held_are_counted_as_they_come_and_go():
    rng = np.random.default_rng(4)
    held, left = HeldRows(10), {}
    for _ in range(200):
        buckets = np.unique(rng.integers(-30, 60, rng.integers(0, 6)))
        rows = rng.integers(1, 9, len(buckets))
        assert held.add(buckets, rows) == rows.sum()
        for bucket, count in zip(buckets.tolist(), rows.tolist(), strict=True):
            left[bucket] = left.get(bucket, 0) + count
        horizon = int(rng.integers(-400, 300))
        held.expire(horizon)
        left = {bucket: count for bucket, count in left.items() if bucket * 10 + 9 > horizon}
        assert dict(zip(held.buckets.tolist(), held.rows.tolist(), strict=True)) == left
        assert held.count == sum(left.values())


@pytest.mark.parametrize("delays", [False, True])
def test_statistics_are_sums_over_cells_in_any_order(delays):
    rng = np.random.default_rng(5)
    for _ in range(50):
        cells = np.unique(rng.integers(0, 5, (rng.integers(0, 30), 3)) - [0, 2, 1], axis=0)
        cells[:, 0] %= 2
        cells[:, 2] = cells[:, 2] if delays else -1
        cells = np.hstack([cells, np.sort(rng.integers(0, 3, (len(cells), 3)))[:, ::-1]])
        arrived = [(np.arange(3), rng.integers(1, 5, 3)) for _ in (0, 1)]
        censored = [int(c) for c in rng.integers(-3, 4, 2)]
        seen = IntervalSummary(7, 0, tuple(arrived), tuple(arrived), cells).stats(censored)
        again = IntervalSummary(7, 0, tuple(arrived), tuple(arrived), cells[rng.permutation(len(cells))]).stats(
            censored
        )
        assert seen.to_dict() == again.to_dict()
        for side, counts in enumerate((seen.left, seen.right)):
            pairs, sampled, met = (
                {},
                {},
                {b: [r, 0, 0] for b, r in zip(*map(np.ndarray.tolist, arrived[side]), strict=True)},
            )
            for x, need, late, candidates, results, drawn in cells.tolist():
                if x == side:
                    pairs[need] = pairs.get(need, 0) + (results if need < censored[side] else 0)
                    sampled[need] = sampled.get(need, 0) + drawn
                elif late >= 0 and need < censored[x]:
                    met.setdefault(late, [0, 0, 0])
                    met[late] = [met[late][0], met[late][1] + candidates, met[late][2] + results]
            needs = sorted(need for need in pairs if pairs[need] or sampled[need])
            assert counts.required_bucket.tolist() == needs
            assert counts.pairs.tolist() == [pairs[need] for need in needs]
            assert counts.sampled_pairs.tolist() == [sampled[need] for need in needs]
            columns = (counts.delay_rows, counts.delay_candidates, counts.delay_results)
            assert counts.delay_bucket.tolist() == sorted(met)
            assert np.stack(columns, axis=1).tolist() == [met[late] for late in sorted(met)]
            assert counts.rows == arrived[side][1].sum()


def test_every_missed_pair_has_a_registered_row():
    for seed in range(5):
        data = as_input(events.disordered(seed, rows=500))
        output = qjoin(data, control("calibrated"))
        missed = data.pairs[~output.produced]
        later_left = output.earlier_side[~output.produced] == 1
        assert output.late[0][missed[later_left, 0]].all() and output.late[1][missed[~later_left, 1]].all()


def test_gamma_batches_close_where_the_span_exceeds():
    times = np.array([0, 3, 5, 6, 100, 100, 107, 1], np.int64)
    assert gamma_batches(times, 5).tolist() == [3, 6]
    assert assign(np.array([2, 4, 9]), np.array([3, 8])).tolist() == [3, 8, -1]
    assert gamma_batches(times[:0], 5).tolist() == []


# -- the K-slack family ------------------------------------------------------------------------------------------------


def one_order(data, rows):
    """Return event time, stream time and delay per arrival, the pairs as (earlier, later), and as (left, right)."""
    ts, stream_time, delay = (np.full(rows, NEVER, np.int64) for _ in range(3))
    for side, (side_time, side_delay) in enumerate(zip(*stream_times(data), strict=True)):
        at = data.seq[side]
        ts[at], stream_time[at], delay[at] = data.ts[side], side_time, side_delay
    pairs = np.stack([data.seq[0][data.pairs[:, 0]], data.seq[1][data.pairs[:, 1]]], axis=1)
    return ts, stream_time, delay, np.sort(pairs, axis=1), pairs


@pytest.mark.parametrize("slack_us", [0, 2_000_000, None])
@pytest.mark.parametrize("seed", range(4))
def test_reordered_pairs_and_late_rows_equal_the_reference(seed, slack_us):
    table = events.disordered(seed, rows=300)
    ts, stream_time, delay, ordered, pairs = one_order(as_input(table), 300)
    match = lambda x, y: x.row["k"] == y.row["k"]  # noqa: E731
    arrivals = events.arrivals(table, "a", "b")
    whole, _ = slack_watermark(stream_time, delay, slack_us)
    carry, parts = (NEVER, 0), []
    for chunk in np.split(np.arange(300), [1, 2, 120, 121, 250]):
        part, carry = slack_watermark(stream_time[chunk], delay[chunk], slack_us, carry)
        parts.append(part)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    produced, output = reordered(ts, whole, ordered[:, 0], ordered[:, 1])
    assert {tuple(p) for p in pairs[produced].tolist()} == reference.k_slack(arrivals, W, slack_us, match)
    assert np.flatnonzero(ts < whole).tolist() == [seq for seq, _ in reference.behind(arrivals, slack_us)]
    assert produced.sum() > 0 and (slack_us is None or produced.sum() < len(pairs))
    spent = waits(stream_time, output, ordered[:, 1])[produced]
    assert (spent >= 0).all()
    # a pair that waits comes out at the very arrival that lets the watermark reach its later event time
    out = output[produced]
    waiting = (out < 300) & (out > ordered[produced, 1])
    due = ts[ordered[produced]].max(axis=1)[waiting]
    assert (whole[out[waiting]] >= due).all() and (whole[out[waiting] - 1] < due).all() and waiting.sum() > 5
    np.testing.assert_array_equal(
        spent[waiting], stream_time[out[waiting]] - stream_time[ordered[produced, 1][waiting]]
    )


def test_no_pairs_no_waits():
    none = np.empty(0, np.int64)
    assert len(waits(np.array([NEVER, NEVER]), none, none)) == 0
    assert slack_watermark(none, none, 5, (7, 3))[1] == (7, 3)


@pytest.mark.parametrize("seed", range(3))
def test_the_arrival_clock_is_exact_to_an_interval_for_any_cut(seed):
    rng = np.random.default_rng(seed)
    time = np.cumsum(rng.integers(0, L, 400)) + 1_700_000_000_000_000
    seq = np.arange(400) * 3 + 11

    def played(cuts):
        clock = ArrivalClock()
        for chunk in np.split(np.arange(400), cuts):
            _, first = np.unique(time[chunk] // L, return_index=True)
            clock.add(seq[chunk][first], time[chunk][first], L)
            clock = ArrivalClock.from_dict(json.loads(json.dumps(clock.to_dict())))
        return clock

    whole = played([])
    for cuts in ([137, 138, 300], list(range(1, 400))):
        assert played(cuts).to_dict() == whole.to_dict()
    known = whole.at(seq)
    assert ((time - known >= 0) & (time - known < L)).all() and (known == time).sum() < 400
    assert whole.at(seq[:1] - 5).tolist() == [int(time[0])]
    whole.forget(int(seq[200]))
    np.testing.assert_array_equal(whole.at(seq[200:]), known[200:])
    assert 0 < len(whole.seq) < 250
    assert ArrivalClock().at(seq[:2]).tolist() == [NEVER, NEVER]
