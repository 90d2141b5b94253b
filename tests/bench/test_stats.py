"""The statistics against scipy, enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench import stats

SEEDS = 5
SIMULATIONS = 200
NOMINAL = 0.05


def numbers(seed: int, size: int = SEEDS, centre: float = 100.0, spread: float = 10.0) -> list[float]:
    return np.random.default_rng(seed).normal(centre, spread, size).tolist()


def all_resamples(values: list[float]) -> np.ndarray:
    """Return every resample ``[n^n, n]``: the bootstrap without chance."""
    return np.array(list(itertools.product(values, repeat=len(values))))


def test_the_interval_of_the_median_is_that_of_all_resamples() -> None:
    values = numbers(1, size=6)
    exact = np.quantile(np.median(all_resamples(values), axis=1), [0.025, 0.975])
    interval = stats.median_interval(values)
    assert interval is not None and interval.method == "percentile"
    assert interval.low == pytest.approx(exact[0]) and interval.high == pytest.approx(exact[1])
    assert interval == stats.median_interval(values), "the draws are seeded"
    assert interval.low <= stats.median(values) <= interval.high


def test_from_five_seeds_the_interval_is_the_range() -> None:
    """What the page on statistics says, with the two figures it gives for it."""
    values = numbers(2)
    interval = stats.median_interval(values)
    assert interval is not None and (interval.low, interval.high) == (min(values), max(values))
    medians = np.median(all_resamples(values), axis=1)
    assert (medians == min(values)).mean() == pytest.approx(0.05792)
    # It misses the true median if all five lie on one side of it.
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(20_000, SEEDS))
    covered = (draws.min(axis=1) < 0) & (draws.max(axis=1) > 0)
    assert covered.mean() == pytest.approx(1 - 2 / 2**SEEDS, abs=0.005)
    ten = stats.median_interval(numbers(2, size=10))
    assert ten is not None and ten.low > min(numbers(2, size=10))


def test_no_interval_from_one_seed_and_a_point_from_equal_ones() -> None:
    assert stats.median_interval([3.0]) is None and stats.trimmed_mean_interval([3.0]) is None
    for interval in (stats.median_interval([500.0] * 5), stats.trimmed_mean_interval([500.0] * 5)):
        assert interval is not None and (interval.low, interval.high) == (500.0, 500.0)
        assert interval.method == "percentile"  # BCa is not defined without any spread


def test_bca_is_scipys_where_it_is_defined() -> None:
    values = numbers(3, size=8)
    ours = stats.trimmed_mean_interval(values)
    theirs = scipy_stats.bootstrap(
        (np.array(values),),
        lambda x, axis: scipy_stats.trim_mean(x, 0.25, axis=axis),
        n_resamples=stats.RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert ours is not None and ours.method == "BCa"
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    percentile = stats.bootstrap_interval(values, statistic=np.mean)
    assert percentile is not None and percentile.method == "percentile"


def test_the_trimmed_mean_leaves_a_quarter_out_at_each_end() -> None:
    values = [9.0, 1.0, 1_000.0, 2.0, 3.0, -50.0, 4.0, 6.0]
    assert stats.trimmed_mean(values) == pytest.approx(np.mean([2, 3, 4, 6]))
    assert stats.trimmed_mean([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx(3.0)
    assert stats.trimmed_mean(values, 0.0) == pytest.approx(np.mean(values))


def test_probability_of_improvement_is_u_over_the_pairs() -> None:
    values, baseline = [3.0, 5.0, 5.0, 9.0], [1.0, 5.0, 6.0]
    wins = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(values, baseline)]
    ours = stats.probability_of_improvement(values, baseline)
    assert ours == pytest.approx(np.mean(wins))
    assert ours == pytest.approx(scipy_stats.mannwhitneyu(values, baseline).statistic / 12)
    assert stats.probability_of_improvement([math.inf], [1.0]) == 1.0
    interval = stats.probability_interval(values, baseline)
    assert interval is not None and 0 <= interval.low < ours < interval.high <= 1


def test_the_permutation_test_goes_through_every_assignment() -> None:
    values, baseline = [3.0, 8.0, 4.0, 7.0, 7.0], [1.0, 2.0, 7.0, 2.5]
    ranks = scipy_stats.rankdata(values + baseline)
    places = range(len(ranks))

    def gap(chosen: tuple[int, ...]) -> float:
        rest = [place for place in places if place not in chosen]
        return float(ranks[list(chosen)].mean() - ranks[rest].mean())

    gaps = np.array([gap(chosen) for chosen in itertools.combinations(places, len(values))])
    seen = gap(tuple(range(len(values))))
    one_sided = min((gaps >= seen - 1e-12).mean(), (gaps <= seen + 1e-12).mean())
    assert stats.permutation_p_value(values, baseline) == pytest.approx(min(1.0, 2 * one_sided))
    assert stats.permutation_p_value([500.0] * 5, [500.0] * 5) == 1.0


def test_it_is_mann_and_whitneys_exact_test_without_ties() -> None:
    for seed in range(5):
        values, baseline = numbers(seed), numbers(seed + 50, centre=110.0)
        theirs = scipy_stats.mannwhitneyu(values, baseline, method="exact").pvalue
        assert stats.permutation_p_value(values, baseline) == pytest.approx(theirs)
        assert stats.permutation_p_value(baseline, values) == pytest.approx(theirs)


def test_ratio_of_medians_and_its_interval() -> None:
    values, baseline = numbers(4, centre=150.0), numbers(5)
    ratio = stats.ratio_of_medians(values, baseline)
    assert ratio == pytest.approx(np.median(values) / np.median(baseline))
    interval = stats.ratio_interval(values, baseline)
    medians = [np.median(all_resamples(group), axis=1) for group in (values, baseline)]
    draws = np.random.default_rng(0).integers(len(medians[0]), size=(2, 200_000))
    exact = np.quantile(medians[0][draws[0]] / medians[1][draws[1]], [0.025, 0.975])
    assert interval is not None and interval.low < ratio < interval.high
    assert (interval.low, interval.high) == pytest.approx(tuple(exact), rel=0.02)


@pytest.mark.parametrize(
    "values, baseline",
    [([1.0, 2.0], [0.0, 1.0]), ([-1.0, 2.0], [1.0, 2.0]), ([1.0, math.inf], [1.0, 2.0])],
)
def test_a_ratio_that_means_nothing_is_none(values: list[float], baseline: list[float]) -> None:
    assert stats.ratio_of_medians(values, baseline) is None
    assert stats.ratio_interval(values, baseline) is None
    assert stats.compared(values, baseline).ratio is None


def alarms(draw: object) -> float:
    """Return how often two groups from one distribution are told apart."""
    generator = np.random.default_rng(7)
    pairs = [(draw(generator), draw(generator)) for _ in range(SIMULATIONS)]  # type: ignore[operator]
    return float(np.mean([stats.difference_shown(one, other) for one, other in pairs]))


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: generator.normal(100, 10, SEEDS),
        lambda generator: np.minimum(500, generator.normal(490, 20, SEEDS)),  # many ties
        lambda generator: generator.standard_cauchy(SEEDS),
        lambda generator: np.where(generator.random(SEEDS) < 0.3, math.inf, generator.random(SEEDS)),
    ],
    ids=["normal", "clipped", "heavy tails", "some never solve"],
)
def test_identical_strategies_are_not_told_apart(draw: object) -> None:
    assert alarms(draw) <= NOMINAL


def test_with_five_seeds_the_rule_is_that_the_two_groups_do_not_mix() -> None:
    """So it is met by chance in 2 of 252 cases, and the page on statistics can say what it finds."""
    generator = np.random.default_rng(7)
    for shift in (0.0, 2.0, 3.0):
        pairs = np.add(generator.normal(size=(20, 2, SEEDS)), [[0.0], [shift]])
        apart = (pairs[:, 0].max(axis=1) < pairs[:, 1].min(axis=1)) | (
            pairs[:, 1].max(axis=1) < pairs[:, 0].min(axis=1)
        )
        assert [stats.difference_shown(one, other) for one, other in pairs] == apart.tolist()
    assert math.comb(10, 5) == 252
    assert stats.permutation_p_value([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == pytest.approx(2 / 252)
    assert stats.permutation_p_value([6, 7, 8, 9], [1, 2, 3, 4]) == pytest.approx(2 / 70)
    assert stats.permutation_p_value([6, 7, 8], [1, 2, 3]) == pytest.approx(2 / 20)


def test_what_five_seeds_can_find() -> None:
    """The shares that the page on statistics gives, by the distance in standard deviations."""
    draws = np.random.default_rng(0).normal(size=(50_000, 2, SEEDS))
    found = {}
    for distance in (0, 1, 2, 3, 4):
        apart = draws[:, 0].max(axis=1) < draws[:, 1].min(axis=1) + distance
        apart |= draws[:, 1].max(axis=1) + distance < draws[:, 0].min(axis=1)
        found[distance] = float(apart.mean())
    expected = {0: 0.008, 1: 0.08, 2: 0.38, 3: 0.77, 4: 0.96}
    assert found == pytest.approx(expected, abs=0.01)
    assert found[0] <= NOMINAL / 6


def test_a_planted_difference_is_found() -> None:
    found, covered = [], []
    for seed in range(40):
        values, baseline = numbers(seed, centre=150.0), numbers(seed + 1_000)
        result = stats.compared(values, baseline)
        found.append(result.difference_shown)
        assert result.ratio_interval is not None and result.probability_interval is not None
        covered.append(result.ratio_interval.low <= 1.5 <= result.ratio_interval.high)
        assert result.difference_shown <= (result.p_value <= NOMINAL)
    assert np.mean(found) > 0.95 and np.mean(covered) > 0.85
    small = [stats.difference_shown(numbers(s, centre=103.0), numbers(s + 99)) for s in range(40)]
    assert np.mean(small) < 0.3, "a difference of a third of the spread is beyond five seeds"


def test_the_verdict_agrees_with_the_intervals_that_are_printed() -> None:
    overlapping = ([1.0, 10.0, 11.0, 12.0, 13.0], [0.1, 0.2, 0.3, 0.4, 2.0])
    assert stats.permutation_p_value(*overlapping) <= NOMINAL
    assert not stats.difference_shown(*overlapping)
    apart = ([3.0, 10.0, 11.0, 12.0, 13.0], overlapping[1])
    assert stats.difference_shown(*apart) and stats.difference_shown(*apart[::-1])


@pytest.mark.parametrize("size, shown", [(1, False), (2, False), (3, False), (4, True)])
def test_fewer_than_four_seeds_show_nothing(size: int, shown: bool) -> None:
    values, baseline = [100.0 + i for i in range(size)], [1.0 + i for i in range(size)]
    assert stats.difference_shown(values, baseline) is shown
    assert stats.probability_of_improvement(values, baseline) == 1.0


def test_never_solving_is_worse_than_solving_late() -> None:
    never, late = [math.inf] * 5, [90.0, 95.0, 80.0, 85.0, 99.0]
    assert stats.difference_shown(never, late) and not stats.difference_shown(never, never)
    result = stats.compared([80.0, 90.0, 95.0, math.inf, math.inf], late)
    assert result.ratio is None and not result.difference_shown
    assert result.probability > 0.5
