from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

import common.sum_tree
from common.sum_tree import SumTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_DRAWS = 200_000


def make_tree(priorities: Floats) -> SumTree:
    tree = SumTree(len(priorities))
    tree.set(np.arange(len(priorities)), priorities)
    return tree


def make_priorities(kind: str, capacity: int) -> Floats:
    rng = np.random.default_rng(capacity)
    uneven = rng.uniform(0.5, 2.0, capacity)
    priorities = {
        "equal": np.ones(capacity),
        "tiny": 1e-12 * uneven,
        "huge": 1e12 * uneven,
        "half zero": np.where(np.arange(capacity) % 2 == 0, uneven, 0.0),
        "mixed": rng.choice([0.0, 1e-12, 1.0, 1e12], capacity),
    }[kind]
    priorities[capacity // 2] = max(priorities[capacity // 2], 1e-12)
    return priorities


def p_value(counts: Ints, expected: Floats) -> float:
    """Return the chi-square p-value, with items too rare for the test pooled into one bin."""
    rare = expected < 5.0
    observed_bins = np.append(counts[~rare], counts[rare].sum())
    expected_bins = np.append(expected[~rare], expected[rare].sum())
    if expected_bins[-1] == 0.0:
        observed_bins, expected_bins = observed_bins[:-1], expected_bins[:-1]
    if len(observed_bins) == 1:
        return 1.0
    return float(stats.chisquare(observed_bins, expected_bins).pvalue)


@pytest.mark.parametrize("capacity", [1, 2, 3, 1000, 1023])
@pytest.mark.parametrize("kind", ["equal", "tiny", "huge", "half zero", "mixed"])
def test_items_are_drawn_in_proportion_to_their_priorities(kind: str, capacity: int) -> None:
    priorities = make_priorities(kind, capacity)
    tree = make_tree(priorities)
    expected = NUM_DRAWS * priorities / math.fsum(priorities)
    rng = np.random.default_rng(0)

    independent = tree.find(rng.random(NUM_DRAWS) * tree.total)
    counts = np.bincount(independent, minlength=capacity)
    assert len(counts) == capacity
    assert counts[priorities == 0.0].sum() == 0
    assert p_value(counts, expected) > 1e-3

    stratified, _ = tree.sample(NUM_DRAWS, rng)
    counts = np.bincount(stratified, minlength=capacity)
    assert len(counts) == capacity
    assert counts[priorities == 0.0].sum() == 0
    # A slice covers some strata whole and at most two in part.
    assert np.abs(counts - expected).max() < 2.0


def test_small_batches_are_unbiased() -> None:
    priorities = np.array([1.0, 0.0, 7.0, 3.0, 2.0])
    tree = make_tree(priorities)
    rng = np.random.default_rng(0)
    # One draw per batch: the draws are independent, so that the chi-square test is exact.
    indices = np.concatenate([tree.sample(1, rng)[0] for _ in range(20_000)])
    counts = np.bincount(indices, minlength=5)
    assert counts[1] == 0
    assert p_value(counts, 20_000 * priorities / 13.0) > 1e-3


def test_each_stratum_gives_one_draw() -> None:
    tree = make_tree(np.ones(64))
    rng = np.random.default_rng(0)
    batches = np.stack([tree.sample(16, rng)[0] for _ in range(1000)])
    assert (batches // 4 == np.arange(16)).all()
    positions_in_stratum = np.bincount((batches % 4).ravel())
    assert len(positions_in_stratum) == 4
    assert stats.chisquare(positions_in_stratum).pvalue > 1e-3


def test_mass_at_a_boundary_goes_right() -> None:
    tree = make_tree(np.array([10.0, 5.0, 2.0]))
    assert tree.total == 17.0
    assert np.bincount(tree.find(np.arange(17.0))).tolist() == [10, 5, 2]
    assert tree.find(np.array([0.0, 9.0, 10.0, 14.0, 15.0, 17.0])).tolist() == [0, 0, 1, 1, 2, 2]


# Sums of whole numbers have no rounding error, so that the prefix sums are exact.
@given(
    priorities=st.lists(st.integers(0, 3) | st.integers(0, 10**6), min_size=1, max_size=70).filter(any),
    fractions=st.lists(st.floats(0.0, 1.0, exclude_max=True), max_size=20),
)
@settings(deadline=None, max_examples=300)
def test_find_agrees_with_prefix_sums(priorities: list[int], fractions: list[float]) -> None:
    tree = make_tree(np.array(priorities, dtype=np.float64))
    ends = np.cumsum(priorities).astype(np.float64)
    boundaries = np.concatenate([[0.0], ends[ends < ends[-1]]])
    inside = np.minimum(np.array(fractions) * ends[-1], np.nextafter(ends[-1], 0.0))
    masses = np.concatenate([boundaries, np.nextafter(ends, 0.0).clip(0.0), inside])
    assert tree.total == ends[-1]
    assert tree.find(masses).tolist() == np.searchsorted(ends, masses, side="right").tolist()
    assert tree.find(ends[-1:]).tolist() == [np.flatnonzero(priorities)[-1]]


@given(
    priorities=st.lists(
        st.sampled_from([0.0, 5e-324, 1e-12, 0.1, 1e12]) | st.floats(0.0, 1e300),
        min_size=1,
        max_size=70,
    ).filter(any),
    fractions=st.lists(st.floats(0.0, 1.0), max_size=20),
)
@settings(deadline=None, max_examples=300)
def test_find_is_sound_despite_rounding(priorities: list[float], fractions: list[float]) -> None:
    tree = make_tree(np.array(priorities))
    ends = np.cumsum(priorities)
    boundaries = np.concatenate([[0.0], ends, np.nextafter(ends, 0.0).clip(0.0)])
    masses = np.append(boundaries, np.array(fractions) * tree.total)
    masses = np.sort(np.minimum(masses, tree.total))
    indices = tree.find(masses)
    rounding = 1e-13 * tree.total
    assert (tree.get(indices) > 0.0).all()
    assert (np.diff(indices) >= 0).all()
    assert (masses <= ends[indices] + rounding).all()
    assert (masses >= ends[indices] - np.array(priorities)[indices] - rounding).all()


def test_root_does_not_drift_over_a_million_updates() -> None:
    capacity, batch_size = 1000, 100
    rng = np.random.default_rng(0)
    tree = SumTree(capacity)
    leaves = np.zeros(capacity)
    for _ in range(10_000):
        indices = rng.integers(capacity, size=batch_size)
        # Adding differences would lose the small priorities in the rounding of the large ones.
        priorities = 10.0 ** rng.uniform(-8.0, 8.0, batch_size)
        tree.set(indices, priorities)
        leaves[indices] = priorities
    everything = np.arange(capacity)
    assert tree.get(everything).tolist() == leaves.tolist()
    assert tree.total == pytest.approx(math.fsum(leaves), rel=1e-9, abs=0.0)
    assert tree.total == make_tree(leaves).total

    tree.set(everything, np.full(capacity, 1e-8))
    assert tree.total == pytest.approx(1e-5, rel=1e-9, abs=0.0)
    tree.set(everything, np.zeros(capacity))
    assert tree.total == 0.0


def test_zero_priorities_are_never_drawn() -> None:
    capacity = 1001
    rng = np.random.default_rng(0)
    priorities = 10.0 ** rng.uniform(-6.0, 6.0, capacity)
    priorities[rng.permutation(capacity)[:500]] = 0.0
    priorities[[0, -1]] = 0.0
    tree = make_tree(priorities)

    draws = np.concatenate([tree.sample(1000, rng)[0] for _ in range(1000)])
    assert len(draws) == 10**6
    assert (priorities[draws] > 0.0).all()

    starts = np.minimum(np.concatenate([[0.0], np.cumsum(priorities)]), tree.total)
    nearby = [starts, np.nextafter(starts, 0.0), np.nextafter(starts, tree.total)]
    at_boundaries = tree.find(np.concatenate(nearby))
    assert (priorities[at_boundaries] > 0.0).all()
    used = np.flatnonzero(priorities)
    extremes = np.array([0.0, np.nextafter(tree.total, 0.0), tree.total])
    assert tree.find(extremes).tolist() == [used[0], used[-1], used[-1]]


def test_small_trees_draw_every_item() -> None:
    rng = np.random.default_rng(0)
    two, _ = make_tree(np.array([0.5, 0.5])).sample(1000, rng)
    assert set(two.tolist()) == {0, 1}
    one, probabilities = make_tree(np.array([0.3])).sample(1000, rng)
    assert set(one.tolist()) == {0}
    assert set(probabilities.tolist()) == {1.0}


def test_probabilities_are_priority_over_total() -> None:
    priorities = np.array([0.25, 0.0, 3.0, 1e-3, 7.5])
    tree = make_tree(priorities)
    indices, probabilities = tree.sample(500, np.random.default_rng(0))
    assert indices.dtype == np.int64 and indices.shape == (500,)
    assert probabilities.dtype == np.float64 and probabilities.shape == (500,)
    np.testing.assert_allclose(probabilities, priorities[indices] / priorities.sum(), rtol=1e-14)


def test_last_of_duplicate_indices_wins() -> None:
    tree = SumTree(5)
    tree.set(np.array([3, 1, 3, 1, 3]), np.array([9.0, 4.0, 8.0, 2.0, 1.0]))
    assert tree.get(np.arange(5)).tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]
    assert tree.get(np.array([3, 3])).tolist() == [1.0, 1.0]
    assert tree.total == 3.0


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_below_one_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=rf"capacity of at least 1, not {capacity}"):
        SumTree(capacity)
    assert SumTree(1).total == 0.0


def test_float32_priorities_are_checked_as_strictly() -> None:
    tree = SumTree(2)
    tree.set(np.arange(2), np.array([0.5, 2.0], dtype=np.float32))
    with pytest.raises(ValueError, match="priority inf is not allowed"):
        tree.set(np.arange(2), np.array([1.0, np.inf], dtype=np.float32))
    assert tree.get(np.arange(2)).tolist() == [0.5, 2.0]
    assert tree.total == 2.5


@pytest.mark.parametrize("priority", [-1.0, -1e-300, np.nan, np.inf, -np.inf, 1.7e308])
def test_bad_priority_is_named_and_changes_nothing(priority: float) -> None:
    tree = make_tree(np.array([1.0, 2.0, 4.0]))
    with pytest.raises(ValueError) as error:
        tree.set(np.array([0, 1]), np.array([5.0, priority]))
    assert f"priority {priority} is not allowed" in str(error.value)
    assert tree.get(np.arange(3)).tolist() == [1.0, 2.0, 4.0]
    assert tree.total == 7.0


def test_largest_allowed_priorities_do_not_overflow() -> None:
    largest = float(np.finfo(np.float64).max) / 4
    tree = make_tree(np.full(3, largest))
    assert math.isfinite(tree.total)
    indices, probabilities = tree.sample(30, np.random.default_rng(0))
    assert np.bincount(indices).tolist() == [10, 10, 10]
    assert probabilities.tolist() == pytest.approx([1 / 3] * 30)


@pytest.mark.parametrize("index", [-1, 3, 4, 2**40])  # 3 is a surplus leaf: 3 items, 4 leaves
def test_index_out_of_range_changes_nothing(index: int) -> None:
    tree = make_tree(np.array([1.0, 2.0, 4.0]))
    with pytest.raises(IndexError, match=rf"index {index} is not in \[0, 3\)"):
        tree.set(np.array([0, index]), np.array([5.0, 5.0]))
    with pytest.raises(IndexError, match=rf"index {index} is not in \[0, 3\)"):
        tree.get(np.array([0, index]))
    assert tree.get(np.arange(3)).tolist() == [1.0, 2.0, 4.0]
    assert tree.total == 7.0


def test_shapes_that_differ_are_refused() -> None:
    tree = SumTree(4)
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(2,\)"):
        tree.set(np.arange(3), np.ones(2))
    with pytest.raises(ValueError, match=r"shapes \(2, 2\) and \(2, 2\)"):
        tree.set(np.arange(4).reshape(2, 2), np.ones((2, 2)))
    assert tree.total == 0.0


def test_empty_tree_has_nothing_to_draw() -> None:
    tree = SumTree(3)
    with pytest.raises(ValueError, match="all priorities are 0"):
        tree.sample(1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="all priorities are 0"):
        tree.find(np.array([0.0]))
    tree.set(np.array([1]), np.array([5e-324]))  # the smallest positive float64
    assert tree.sample(2, np.random.default_rng(0))[0].tolist() == [1, 1]


@pytest.mark.parametrize("mass", [-1e-9, 7.5, np.nan])
def test_mass_out_of_range_is_refused(mass: float) -> None:
    tree = make_tree(np.array([0.0, 3.0, 4.0]))
    with pytest.raises(ValueError) as error:
        tree.find(np.array([1.0, mass]))
    assert f"mass {mass} is not in [0, 7.0]" in str(error.value)
    assert tree.find(np.array([0.0, 7.0])).tolist() == [1, 2]


def test_works_where_numba_cannot_write_a_cache(tmp_path: Path) -> None:
    shutil.copy(common.sum_tree.__file__, tmp_path)
    # These are all the places numba tries: NUMBA_CACHE_DIR, __pycache__ beside the module, and the
    # user's cache directory. A file where a directory should be stops even the root user.
    (tmp_path / "__pycache__").touch()
    blocked = str(tmp_path / "__pycache__" / "missing")
    locations = ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"]
    script = (
        "import numpy as np, sum_tree\n"
        "try:\n"
        "    sum_tree.numba.njit(cache=True)(sum_tree.SumTree.set)\n"
        "except RuntimeError as error:\n"
        "    print(str(error)[:12])\n"
        "tree = sum_tree.SumTree(3)\n"
        "tree.set(np.arange(3), np.array([10.0, 5.0, 2.0]))\n"
        "print(np.bincount(tree.find(np.arange(17.0))))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, **dict.fromkeys(locations, blocked)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    # The first line shows that numba did refuse, the second that the tree works all the same.
    assert result.stdout.splitlines() == ["cannot cache", "[10  5  2]"]
