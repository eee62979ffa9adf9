"""Of panes with very many groups some are looked at: those windows say what these groups say, times how many each stands for."""

import numpy as np
import pytest
from latecomer.core.aggregate.coverage import Cells, Function, required_answers, required_coverage
from latecomer.core.topk.required_waits import Candidates, required_members
from latecomer.core.windows.grid import Grid
from latecomer.core.windows.group_sampling import COUNTED_BITS, SAMPLED_GROUPS, Thinning, crowded, is_sampled
from latecomer.core.windows.observation import Span

GRID = Grid(3_000, 1_000)
SPANS = [Span(0, 4, 10**9), Span(2, 7, 10_500)]
THINNING = Thinning(np.array([2, 3, 6]), np.array([1, 3, 2]))


def columns(seed: int, groups: int = 300, rows: int = 3_000):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-(2**63), 2**63 - 1, groups, dtype=np.int64)
    pane = np.sort(rng.integers(0, 9, rows))
    bucket = np.where(rng.random(rows) < 0.5, -1, rng.integers(0, 4_000, rows))
    return codes[rng.integers(0, groups, rows)], pane, bucket, rng.normal(5, 2, rows)


def shift_of(window: int) -> int:
    return max((s for p, s in zip([2, 3, 6], [1, 3, 2], strict=True) if window <= p < window + 3), default=0)


def answers(kind: str, seed: int, keep=None, thinning=None):
    code, pane, bucket, value = columns(seed)
    if keep is not None:
        mine = keep(code)
        code, pane, bucket, value = code[mine], pane[mine], bucket[mine], value[mine]
    if kind == "members":
        at = np.arange(len(code))
        return required_members(Candidates(code, pane, bucket, value, at, at), 2, GRID, SPANS, thinning)
    one = np.ones((1, len(code)))
    deep = (one, value[None], value[None] ** 2, value[None], value[None])
    cells = Cells(code, pane, bucket, np.ones(len(code), np.int64), *deep).ordered()
    functions = [Function("avg", 0), Function("max", 0)]
    if kind == "answers":
        return required_answers(cells, GRID, SPANS, functions, 0.05, thinning)
    return required_coverage(cells, GRID, SPANS, functions, 0.05, 0.1, thinning)


@pytest.mark.parametrize("kind", ["answers", "coverage", "members"])
@pytest.mark.parametrize("seed", range(5))
def test_a_window_says_what_its_sampled_groups_say(kind: str, seed: int) -> None:
    found = answers(kind, seed, thinning=THINNING)
    shifts = {window: shift_of(window) for seen in found for window in (each.window for each in seen)}
    assert sorted(set(shifts.values())) == [0, 1, 2, 3]
    for place, seen in enumerate(found):
        assert len(seen) > 3
        for each in seen:
            shift = shifts[each.window]
            bits = 64 - shift
            alone = answers(
                kind, seed, keep=lambda code, bits=bits: np.array([(int(c) % 2**64) >> bits == 0 for c in code])
            )
            truth = next(other for other in alone[place] if other.window == each.window)
            assert each.required_us.tolist() == truth.required_us.tolist()
            assert each.weight.tolist() == (truth.weight * 2**shift).tolist()
            assert each.total == truth.total * 2**shift
            assert each.needed_coverage == truth.needed_coverage


def test_one_group_in_a_power_of_two_is_sampled() -> None:
    rng = np.random.default_rng(3)
    code = rng.integers(-(2**63), 2**63 - 1, 100_000, dtype=np.int64)
    everything = is_sampled(code, np.zeros(len(code), np.int64))
    assert everything.all()
    for shift in (1, 4, 7):
        mine = is_sampled(code, np.full(len(code), shift))
        assert mine.mean() == pytest.approx(2.0**-shift, rel=0.1)
        assert not (mine & ~everything).any()  # what is thinned more has a part of what is thinned less
        everything = mine


def test_as_many_groups_are_left_as_are_wanted() -> None:
    counted = np.array([0, SAMPLED_GROUPS >> COUNTED_BITS, (SAMPLED_GROUPS >> COUNTED_BITS) + 1, SAMPLED_GROUPS])
    found = Thinning.of_counts(np.array([7, 5, 3, 1]), counted)
    assert found.panes.tolist() == [1, 3]
    assert found.shift.tolist() == [COUNTED_BITS, 1]
    assert found.about(10) == 10 << COUNTED_BITS
    assert Thinning.none().about(10) == 10
    rows = np.array([4 * SAMPLED_GROUPS, 4 * SAMPLED_GROUPS + 1])
    assert crowded(np.array([1, 2]), rows).tolist() == [2]
