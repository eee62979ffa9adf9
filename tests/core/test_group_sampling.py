"""Group sampling: a window of sampled groups shows these groups, times the number of groups that each stands for."""

import numpy as np
import pytest
from latecomer.core.aggregate.coverage import Cells, Function, required_answers, required_coverage
from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import COUNTED_BITS, SAMPLED_GROUPS, GroupSample, crowded, is_sampled
from latecomer.core.windows.observation import Span

GRID = Grid(3_000, 1_000)
SPANS = [Span(0, 4, 10**9), Span(2, 7, 10_500)]
SAMPLE = GroupSample(np.array([2, 3, 6]), np.array([1, 3, 2]))


def columns(seed: int, groups: int = 300, rows: int = 3_000):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-(2**63), 2**63 - 1, groups, dtype=np.int64)
    pane = np.sort(rng.integers(0, 9, rows))
    bucket = np.where(rng.random(rows) < 0.5, -1, rng.integers(0, 4_000, rows))
    return codes[rng.integers(0, groups, rows)], pane, bucket, rng.normal(5, 2, rows)


def shift_of(window: int) -> int:
    return max((s for p, s in zip([2, 3, 6], [1, 3, 2], strict=True) if window <= p < window + 3), default=0)


def answers(kind: str, seed: int, keep=None, sample=None):
    code, pane, bucket, value = columns(seed)
    if keep is not None:
        kept = keep(code)
        code, pane, bucket, value = code[kept], pane[kept], bucket[kept], value[kept]
    if kind == "members":
        at = np.arange(len(code))
        return required_members(Candidates(code, pane, bucket, value, at, at), 2, GRID, SPANS, sample)
    by_column = ({0: column} for column in (np.ones(len(code)), value, value**2, value, value))
    cells = Cells(code, pane, bucket, np.ones(len(code), np.int64), *by_column).ordered()
    functions = [Function("avg", 0), Function("max", 0)]
    if kind == "answers":
        return required_answers(cells, GRID, SPANS, functions, 0.05, sample)
    return required_coverage(cells, GRID, SPANS, functions, 0.05, 0.1, sample)


@pytest.mark.parametrize("kind", ["answers", "coverage", "members"])
@pytest.mark.parametrize("seed", range(5))
def test_a_window_shows_its_sampled_groups(kind: str, seed: int) -> None:
    found = answers(kind, seed, sample=SAMPLE)
    shifts = {observed.window: shift_of(observed.window) for windows in found for observed in windows}
    assert sorted(set(shifts.values())) == [0, 1, 2, 3]
    for place, windows in enumerate(found):
        assert len(windows) > 3
        for observed in windows:
            shift = shifts[observed.window]
            bits = 64 - shift
            alone = answers(
                kind, seed, keep=lambda code, bits=bits: np.array([(int(c) % 2**64) >> bits == 0 for c in code])
            )
            truth = next(other for other in alone[place] if other.window == observed.window)
            assert observed.required_us.tolist() == truth.required_us.tolist()
            assert observed.weight.tolist() == (truth.weight * 2**shift).tolist()
            assert observed.total == truth.total * 2**shift
            assert observed.needed_coverage == truth.needed_coverage


def test_one_group_in_a_power_of_two_is_sampled() -> None:
    rng = np.random.default_rng(3)
    code = rng.integers(-(2**63), 2**63 - 1, 100_000, dtype=np.int64)
    before = is_sampled(code, np.zeros(len(code), np.int64))
    assert before.all()
    for shift in (1, 4, 7):
        sampled = is_sampled(code, np.full(len(code), shift))
        assert sampled.mean() == pytest.approx(2.0**-shift, rel=0.1)
        assert not (sampled & ~before).any()  # a greater shift has a part of the groups of a smaller one
        before = sampled


def test_shifts_keep_about_as_many_groups_as_may_be_sampled() -> None:
    counted = np.array([0, SAMPLED_GROUPS >> COUNTED_BITS, (SAMPLED_GROUPS >> COUNTED_BITS) + 1, SAMPLED_GROUPS])
    found = GroupSample.of_counts(np.array([7, 5, 3, 1]), counted)
    assert found.panes.tolist() == [1, 3]
    assert found.shift.tolist() == [COUNTED_BITS, 1]
    assert found.estimate_groups(10) == 10 << COUNTED_BITS
    assert GroupSample.all_groups().estimate_groups(10) == 10
    rows = np.array([4 * SAMPLED_GROUPS, 4 * SAMPLED_GROUPS + 1])
    assert crowded(np.array([1, 2]), rows).tolist() == [2]
