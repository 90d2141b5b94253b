"""Binned counts against numpy on the numbers themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import distributions as d


def counted(values: list[int]) -> np.ndarray:
    places = np.zeros(d.NUM_PLACES, dtype=np.int64)
    d.add_values(places, np.array(values, dtype=np.int64))
    return places


@given(st.lists(st.integers(0, 63), min_size=1, max_size=200))
def test_small_numbers_are_exact(values: list[int]) -> None:
    found = d.quantiles(counted(values))
    for name, share in d.QUANTILES.items():
        assert found[name] == np.quantile(values, share, method="inverted_cdf")
    assert found["max"] == max(values)


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=50))
def test_large_numbers_are_right_to_a_sixteenth_of_a_doubling(values: list[int]) -> None:
    found = d.quantiles(counted(values))
    for name, share in d.QUANTILES.items():
        exact = np.quantile(values, share, method="inverted_cdf")
        assert found[name] <= exact <= max(found[name] + 1, found[name] * 2 ** (1 / 16) + 1)
    assert found["max"] == max(values)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 9)), min_size=1, max_size=40))
def test_three_ways_of_counting_agree(pairs: list[tuple[int, int]]) -> None:
    one_by_one, at_once = np.zeros((2, d.NUM_PLACES), dtype=np.int64)
    for value, count in pairs:
        d.add_value(one_by_one, value, count)
    d.add_counts(at_once, *np.array(pairs, dtype=np.int64).T)
    repeated = counted([value for value, count in pairs for _ in range(count)])
    assert (one_by_one == at_once).all() and (at_once == repeated).all()


def test_processes_add_up_and_nothing_is_nothing() -> None:
    parts = np.stack([counted([1, 2, 900]), counted([5, 5]), np.zeros(d.NUM_PLACES, dtype=np.int64)])
    assert (d.merge(parts) == counted([1, 2, 900, 5, 5])).all()
    assert d.quantiles(parts[2]) is None
    assert d.as_event(parts[2]) == {"edges": [], "counts": []}


@pytest.mark.parametrize("values", [[3], [0, 0, 7, 100_000], list(range(300))])
def test_an_event_holds_every_count_between_its_edges(values: list[int]) -> None:
    event = d.as_event(counted(values))
    assert len(event["edges"]) == len(event["counts"]) + 1
    assert (np.histogram(values, bins=event["edges"])[0] == event["counts"]).all()
