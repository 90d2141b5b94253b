"""The Universal Scalability Law on data with known coefficients."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bench.comparison import Budget, Comparison
from bench.scalability import Coefficients, _efficiency_lines, _law_line, best_number, fit, of_table
from common.config import ConfigError

COUNTS = (1, 2, 4, 8)


def synthetic(
    law: Coefficients, noise: float, counts: tuple[int, ...] = COUNTS
) -> dict[int, list[float]]:
    generator = np.random.default_rng(0)
    return {n: [law.throughput(n) * generator.normal(1, noise) for _ in range(5)] for n in counts}


@pytest.mark.parametrize("contention, coherency", [(0.2, 0.01), (0.0, 0.05), (0.3, 0.0), (0.0, 0.0)])
def test_it_recovers_known_coefficients(contention: float, coherency: float) -> None:
    law = Coefficients(20_000.0, contention, coherency)
    exact = fit(synthetic(law, noise=0.0)).coefficients
    assert exact.one_worker == pytest.approx(law.one_worker)
    assert (exact.contention, exact.coherency) == pytest.approx((contention, coherency), abs=1e-9)
    noisy = fit(synthetic(law, noise=0.03))
    assert noisy.contention_interval is not None and noisy.coherency_interval is not None
    low, high = noisy.contention_interval
    assert low - 1e-9 <= contention <= high + 0.02
    low, high = noisy.coherency_interval
    assert low - 1e-9 <= coherency <= high + 0.005
    assert noisy.largest_error < 0.05


def test_the_law_is_written_as_published() -> None:
    law = Coefficients(10.0, 0.1, 0.02)
    assert law.throughput(1) == 10.0
    assert law.throughput(5) == pytest.approx(10 * 5 / (1 + 0.1 * 4 + 0.02 * 5 * 4))
    amdahl = Coefficients(1.0, 0.25, 0.0)
    assert amdahl.throughput(1e9) == pytest.approx(1 / 0.25)
    assert amdahl.peak == math.inf and best_number(amdahl) is None


@pytest.mark.parametrize("contention, coherency", [(0.1, 0.02), (0.5, 0.004), (0.0, 0.3), (1.2, 0.1)])
def test_the_peak_is_the_best_of_all_numbers(contention: float, coherency: float) -> None:
    law = Coefficients(1_000.0, contention, coherency)
    best = max(range(1, 200), key=law.throughput)
    assert best_number(law) == best
    assert law.throughput(best) >= law.throughput(law.peak) * 0.9


def test_efficiency_is_over_as_many_times_one_and_a_serial_half_is_named() -> None:
    assert _efficiency_lines({2: [150.0, 170.0, 160.0], 1: [100.0]}) == [
        "Efficiency, env steps/s over as many times those of one worker: 1: 100%, 2: 80%."
    ]
    assert _efficiency_lines({2: [1.0], 4: [2.0]}) == []  # nothing to compare with
    for contention, is_said in ((0.6, True), (0.4, False)):
        law = fit(synthetic(Coefficients(100.0, contention, 0.0), 0.0))
        assert ("More than half" in _law_line(law, COUNTS)) == is_said
        assert (law.coefficients.throughput(1e6) < 200) == is_said


def test_throughput_that_falls_faster_than_any_law_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="falls faster than one over the workers"):
        fit({2: [1_000.0], 4: [100.0], 8: [10.0], 16: [1.0]})


def test_it_refuses_fewer_than_four_numbers_of_workers() -> None:
    law = Coefficients(20_000.0, 0.2, 0.01)
    with pytest.raises(ConfigError, match="3 numbers of workers are too few") as caught:
        fit(synthetic(law, 0.0, counts=(1, 2, 4)))
    assert "at least 4" in str(caught.value)
    assert fit(synthetic(law, 0.0)).coefficients.contention == pytest.approx(0.2)


def test_one_seed_gives_no_interval() -> None:
    law = fit({n: [1_000.0 * n] for n in COUNTS})
    assert law.contention_interval is None and law.peak_interval is None
    assert law.coefficients.throughput(16) == pytest.approx(16_000)


def sweep_of_workers() -> Comparison:
    return Comparison(
        folder=Path(),
        kind="sweep",
        env_id="CartPole-v1",
        budgets=[Budget("seconds", seconds=5.0)],
        strategies=["apex"],
        seeds=[0],
        param={"names": ["workers"], "values": [list(COUNTS)]},
        machine={"usable_cores": 4},
    )


def budget_with(points: dict[int, list[float]]) -> dict[str, object]:
    rows = [
        {"param": {"workers": n}, "metrics": {"env_steps_per_second": {"values": values}}}
        for n, values in points.items()
    ]
    return {"name": "seconds", "rows": rows}


def test_what_it_says_is_labelled_as_a_prediction() -> None:
    law = Coefficients(20_000.0, 0.05, 0.05)
    (found,) = of_table(sweep_of_workers(), [budget_with(synthetic(law, 0.01))])
    text = " ".join(found["lines"])
    assert found["fit"]["best_workers"] == 4 and "up to 4 [" in text and "workers pay off" in text
    assert "Prediction, not a measurement: 16 workers" in text and "32 workers" in text
    assert "With 4, 8 workers beside a learner there are more processes than the 4 cores" in text
    assert [each["workers"] for each in found["predictions"]] == [16, 32]


def test_what_it_says_without_a_peak_or_without_a_fit() -> None:
    law = Coefficients(20_000.0, 0.05, 0.0)
    points = synthetic(law, 0.0)
    (found,) = of_table(sweep_of_workers(), [budget_with(points)])
    assert "up to the largest number measured, 8" in " ".join(found["lines"])
    del points[8]
    (found,) = of_table(sweep_of_workers(), [budget_with({**points, 8: []})])
    assert found["fit"] is None and found["predictions"] == []
    assert found["lines"][0].endswith("those of one worker: 1: 100%, 2: 95%, 4: 87%.")
    assert found["lines"][1:] == [
        "Scalability: 3 numbers of workers are too few to fit how throughput grows, so nothing is "
        "predicted; give at least 4."
    ]
