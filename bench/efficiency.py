"""What running together costs: actors with and without a learner, a learner with and without actors.

    python -m bench.efficiency

Collection efficiency: env steps/s of the actors of a running free ``apex``, over those of the same
actors without a learner. Learning efficiency: updates/s of the running learner, over those of the
same update in a bare loop on a full buffer that nobody writes. Each round runs the three one after
another, so that a machine whose speed drifts gives a ratio all the same. No evaluation, and no more
processes than cores.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from typing import Any

import click
import numpy as np

from common.audit import MasterWriter, SharedMaster
from common.config import Config
from common.experience import ExperienceBuffer, SegmentWriter
from common.probe import Probe
from common.processes import Role, random_stream
from common.replay import make_replay
from common.supervisor import RunProbe, Shared, run_roles
from common.types import LaneStep, RunResult
from common.weights import SharedWeights
from strategies import apex

NEVER = 10**12


def bare_learner(
    config: Config,
    probe: Probe,
    buffer: ExperienceBuffer,
    weights: SharedWeights,
    master: SharedMaster,
) -> None:
    """Sample, gather, update and write priorities on a full buffer that nobody writes."""
    from common.learner import Learner

    fill_buffer(config, buffer)
    draws = np.random.default_rng(random_stream(config.seed, "replay"))
    replay = make_replay(config, buffer, draws, probe)
    replay.take_in()
    trainer = Learner(config, weights.spec, weights.latest()[0], MasterWriter(master))
    while not probe.should_stop():
        batch = replay.sample()
        result = trainer.update(batch, 0)
        probe.count_update()
        replay.update_priorities(batch, result.td_error)


def fill_buffer(config: Config, buffer: ExperienceBuffer) -> None:
    """Write random rows into every segment until its ring is full. Counts no env steps."""
    generator = np.random.default_rng(0)
    uncounted = _Uncounted()
    num_lanes = buffer.num_lanes
    shape = (num_lanes, *buffer["observation"].shape[3:])
    nothing = np.zeros(num_lanes, dtype=bool)
    for worker in range(buffer.num_workers):
        writer = SegmentWriter(buffer, worker, config)
        for _ in range(buffer.num_rows):
            observation = generator.normal(size=shape).astype(buffer["observation"].dtype)
            reward = generator.random(num_lanes, dtype=np.float32)
            q_values = generator.random((num_lanes, 2), dtype=np.float32)
            action = generator.integers(2, size=num_lanes)
            step = LaneStep(observation, reward, nothing, nothing, ~nothing)
            writer.write(observation, q_values, action, reward, step, 0)
            writer.publish_when_full(uncounted)  # type: ignore[arg-type]


class _Uncounted:
    def count(self, name: str, number: int = 1) -> None:
        """Forget it."""


def run_together(config: apex.Config) -> RunResult:
    """Run ``apex`` as it is."""
    return apex.train(config, RunProbe())


def run_actors(config: apex.Config) -> RunResult:
    """Run the same actors without a learner."""
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [
        Role("actor", worker, apex.actor, (buffer, shared.weights, worker))
        for worker in range(config.workers)
    ]
    return run_roles(config, RunProbe(), roles, shared, buffer)


def run_learner(config: apex.Config) -> RunResult:
    """Run the same update without actors."""
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [Role("learner", 0, bare_learner, (buffer, shared.weights, shared.master))]
    return run_roles(config, RunProbe(), roles, shared, buffer)


def measure(config: apex.Config) -> dict[str, float]:
    """Run the three once and return rates per second and the two efficiencies."""
    together, actors, learner = run_together(config), run_actors(config), run_learner(config)
    for result in (together, actors, learner):
        if result.status != "completed":
            raise click.ClickException(result.error or result.status)
    assert together.steady_seconds is not None and learner.steady_seconds is not None
    rates = {
        "env_steps_together": together.steady_env_steps / together.steady_seconds,
        "env_steps_alone": actors.env_steps / actors.training_seconds,
        "updates_together": together.steady_updates / together.steady_seconds,
        "updates_alone": learner.steady_updates / learner.steady_seconds,
    }
    rates["collection"] = rates["env_steps_together"] / rates["env_steps_alone"]
    rates["learning"] = rates["updates_together"] / rates["updates_alone"]
    return rates


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Interleaved rounds.")
@click.option("--seconds", default=6.0, show_default=True, help="Seconds of each run.")
@click.option("--env", "env_id", default="CartPole-v1", show_default=True, help="Gymnasium id.")
def main(rounds: int, seconds: float, env_id: str) -> None:
    """Print both efficiencies, round by round and as medians."""
    workers = max(1, (os.cpu_count() or 2) - 1)
    choices: dict[str, Any] = {"workers": workers, "replay_ratio": "free", "seconds": seconds}
    config = apex.Config.for_env(env_id, steps=NEVER, **choices)
    config = dataclasses.replace(config, evaluate_every_env_steps=NEVER)
    rows = []
    for number in range(rounds):
        rows.append(measure(config))
        click.echo(_line(f"round {number + 1}", rows[-1]))
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    click.echo(_line("median ", medians))


def _line(label: str, row: dict[str, float]) -> str:
    return (
        f"{label}: env steps/s {row['env_steps_together']:,.0f} of {row['env_steps_alone']:,.0f}, "
        f"collection efficiency {row['collection']:.2f}; updates/s {row['updates_together']:,.0f} of "
        f"{row['updates_alone']:,.0f}, learning efficiency {row['learning']:.2f}"
    )


if __name__ == "__main__":
    main()
