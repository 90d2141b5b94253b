"""Random processes are killed at random moments: nothing hangs, nothing torn is used, all is reported.

The figures in docs/explanation/faults.md come from

    python -m pytest -m slow -s tests/faults/test_random_kills.py
"""

from __future__ import annotations

import kill_harness
import numpy as np
import pytest
from kill_harness import Ended
from watched_roles import PULLS, TORN_PULLS, TRANSITIONS, WRONG_TRANSITIONS

pytestmark = pytest.mark.multiprocess
KILLS = 24
STRATEGIES = ("apex", "impala", "sync", "hogwild", "a3c")


def check(ended: Ended, kills: int) -> None:
    """What holds for every run, whoever was killed in it."""
    result, killed = ended.result, len(ended.killed)
    assert (result.status, result.error) == ("completed", None) and killed == kills
    # Every death is reported, but that of an evaluator which had nothing to do any more.
    idle = ended.killed.count("evaluator-0") - sum(d.role == "evaluator" for d in result.deaths)
    assert 0 <= idle <= 1 and len(result.deaths) == killed - idle == len(ended.outcomes)
    assert all(death.reason == "was ended by signal SIGKILL" for death in result.deaths)
    assert result.restarts <= len(result.deaths)
    assert ended.counts[TRANSITIONS] > 500 and ended.counts[WRONG_TRANSITIONS] == 0
    assert ended.counts[TORN_PULLS] == 0
    assert result.env_steps == ended.accounted > 0 and result.updates > 10
    assert np.isfinite(result.final_weights).all()
    assert result.audit is not None and result.audit["auditable"]
    assert ended.left == [] and ended.descriptors == 0


@pytest.mark.timeout(300)
def test_a_few_kills_of_apex() -> None:
    ended = kill_harness.train("apex", kills=3, seed=2)
    check(ended, 3)
    assert ended.counts[PULLS] > 10, "the weights that act were looked at"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STRATEGIES)
def test_many_kills(name: str) -> None:
    ended = kill_harness.train(name, kills=KILLS, seed=3)
    roles = {each.split("-")[0] for each in ended.killed}
    result, counts = ended.result, ended.counts
    print(
        f"\n| {name} | {len(ended.killed)} ({', '.join(sorted(roles))}) | {len(result.deaths)} | "
        f"{result.restarts} | {counts[TRANSITIONS]:,} | {counts[WRONG_TRANSITIONS]} | "
        f"{counts[PULLS]:,} | {counts[TORN_PULLS]} | {result.env_steps - ended.accounted} | "
        f"{len(ended.left)} | {ended.descriptors} | {ended.seconds:.0f} |"
    )
    check(ended, KILLS)
    assert len({death.worker for death in result.deaths if death.role != "evaluator"}) == 2
