"""The join's control plane and its in-memory data plane against the tuple-at-a-time reference."""

import numpy as np
import pytest
from latecomer.core.join import JoinControl
from latecomer.core.join_pairs import Input, band_pairs, qjoin
from latecomer.core.policies import RetentionParameters, restore_policy
from latecomer.core.repair import assign, gamma_batches
from latecomer.reference import join as reference

from tests.support import events

W, P, L, G = 2_000_000, 10_000_000, 166_666, 10_000


def settings(estimator):
    return RetentionParameters("qjoin", estimator, 0.9, 0.95, W, P, L, G, G)


def control(estimator):
    return JoinControl(
        restore_policy(settings(estimator), None, None), window_us=W, interval_us=L, granularity_us=G, period_us=P
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
        policy=restore_policy(settings(estimator), None, None),
    )  # fmt: skip
    for cuts in (None, sorted(rng.integers(0, 400, 6).tolist()), list(range(0, 400, 1)) if seed == 0 else [200]):
        found = qjoin(data, control(estimator), cuts)
        assert seqs(data, found.produced) == set(answer.on_time)
        for side in (0, 1):
            registered = set(data.seq[side][found.late[side]].tolist())
            assert registered == {seq for seq, s, _, _ in answer.late if s == side}
    assert seqs(data, np.ones(len(data.pairs), bool)) == reference.exact_join(
        events.arrivals(table, "a", "b"), W, match
    )


def test_state_survives_json():
    import json

    table = events.disordered(3, rows=300)
    data = as_input(table)
    whole = control("calibrated")
    qjoin(data, whole)
    again = JoinControl(
        restore_policy(settings("calibrated"), json.loads(json.dumps(whole.to_dict()))["policy"], None),
        window_us=W, interval_us=L, granularity_us=G, period_us=P,
    )  # fmt: skip
    again.restore(json.loads(json.dumps(whole.to_dict())))
    assert json.dumps(again.to_dict(), sort_keys=True) == json.dumps(whole.to_dict(), sort_keys=True)


def test_every_missed_pair_has_a_registered_row():
    for seed in range(5):
        data = as_input(events.disordered(seed, rows=500))
        found = qjoin(data, control("calibrated"))
        missed = data.pairs[~found.produced]
        later_left = found.earlier_side[~found.produced] == 1
        assert found.late[0][missed[later_left, 0]].all() and found.late[1][missed[~later_left, 1]].all()


def test_gamma_batches_close_where_the_span_exceeds():
    times = np.array([0, 3, 5, 6, 100, 100, 107, 1], np.int64)
    assert gamma_batches(times, 5).tolist() == [3, 6]
    assert assign(np.array([2, 4, 9]), np.array([3, 8])).tolist() == [3, 8, -1]
    assert gamma_batches(times[:0], 5).tolist() == []
