"""Workers, buffer and replay of a run in one process, with a log to check every transition against."""

from __future__ import annotations

import functools
from typing import Any

import counting_env as ce
import numpy as np

from common.config import Config
from common.envs import Lanes
from common.experience import ExperienceBuffer, SegmentWriter
from common.probe import Probe
from common.replay import make_replay
from common.telemetry import Telemetry
from common.types import Batch

GAMMA = 0.9
Key = tuple[int, int, int]  # stream, episode, step

expected_transition = functools.lru_cache(None)(ce.expected_transition)


def q_value(key: Key, action: int) -> float:
    """A worker's Q-value: any fixed function, as long as no two are alike."""
    stream, episode, step = key
    return ((stream * 31 + episode * 17 + step * 7 + action * 13) % 101) / 8


def first_priority(key: Key, n_step: int) -> float:
    """|n-step TD error| by ``q_value``, in plain Python."""
    action, total, discount, bootstrap = expected_transition(key, n_step, GAMMA)
    best = max(q_value(bootstrap, a) for a in range(ce.NUM_ACTIONS))
    return abs(total + discount * best - q_value(key, action))


def keys(observation: np.ndarray) -> list[Key]:
    return [(int(a), int(b), int(c)) for a, b, c in observation]


class Rig:
    """One learner and ``workers`` workers that step when they are told to."""

    def __init__(self, env_id: str = ce.PLAIN, seed: int = 0, **choices: Any) -> None:
        fixed: dict[str, Any] = {
            "gamma": GAMMA, "warmup_env_steps": 0, "chunk_steps": 2, "batch_size": 32,
            "replay_capacity": 64,
        }  # fmt: skip
        self.config = Config(env_id=env_id, **{**fixed, **choices})
        workers = self.config.workers
        self.telemetry = Telemetry(workers + 1, workers)
        self.probes = [Probe(self.telemetry, role, self.config) for role in range(workers + 1)]
        self.lanes = [
            Lanes(env_id, self.config.envs_per_worker, np.random.SeedSequence([seed, worker]))
            for worker in range(workers)
        ]
        self.buffer = ExperienceBuffer(self.config, self.lanes[0].info)
        self.writers = [SegmentWriter(self.buffer, w, self.config) for w in range(workers)]
        self.observation = [lanes.reset() for lanes in self.lanes]
        self.home = {
            int(observation[lane, 0]): (worker, lane)
            for worker, observation in enumerate(self.observation)
            for lane in range(self.config.envs_per_worker)
        }
        # Per worker and row: what each lane saw, and whether it was a step.
        self.log: list[list[tuple[list[Key], list[bool]]]] = [[] for _ in range(workers)]
        self.stopped_at: dict[int, Key] = {}
        self.replay = make_replay(
            self.config, self.buffer, np.random.default_rng(seed), self.probes[-1]
        )

    def run(self, worker: int, steps: int) -> None:
        for _ in range(steps):
            self.write(worker)
            self.writers[worker].publish_when_full(self.probes[worker])

    def write(self, worker: int) -> None:
        observation = self.observation[worker]
        action = ce.scripted_action(observation)
        q_values = np.array(
            [[q_value(key, a) for a in range(ce.NUM_ACTIONS)] for key in keys(observation)],
            dtype=np.float32,
        )
        step = self.lanes[worker].step(action)
        probability = np.full(len(action), 0.25 + len(self.log[worker]), dtype=np.float32)
        version = len(self.log[worker])
        self.writers[worker].write(observation, q_values, action, probability, step, version)
        self.log[worker].append((keys(observation), step.valid.tolist()))
        self.observation[worker] = step.observation

    def flush(self) -> None:
        for worker, writer in enumerate(self.writers):
            writer.flush(self.observation[worker], self.probes[worker])
            self.stopped_at |= {key[0]: key for key in keys(self.observation[worker])}

    def count(self, name: str) -> int:
        return self.telemetry.word(len(self.writers), name)

    def env_steps(self, worker: int, first: int, until: int) -> int:
        """Count the env steps in some rows of the log."""
        return sum(sum(valid) for _, valid in self.log[worker][first:until])

    def transitions(self, worker: int, first: int, until: int) -> set[Key]:
        return {
            key
            for seen, valid in self.log[worker][first:until]
            for key, is_step in zip(seen, valid, strict=True)
            if is_step
        }

    def oldest(self, worker: int) -> int:
        """Return the oldest row that a replay may still use: the contract, written out again."""
        guard = 4 * self.config.chunk_steps + self.config.n_step + 1
        return max(0, self.buffer.writing(worker) - self.buffer.num_rows + guard)

    def stored(self) -> set[Key]:
        """Return what can be sampled right after ``take_in``."""
        return {
            key
            for worker in range(len(self.writers))
            for key in self.transitions(worker, self.oldest(worker), self.buffer.published(worker))
        }

    def check(self, batch: Batch) -> list[Key]:
        """Compare every transition with brute force; return which they are."""
        sampled = keys(batch.observation)
        for i, key in enumerate(sampled):
            worker, lane = self.home[key[0]]
            place = int(batch.place[i])
            slots, at_lane = divmod(place, self.config.envs_per_worker)
            assert (slots // self.buffer.num_rows, at_lane) == (worker, lane)
            row = int(batch.row[i])
            seen, valid = self.log[worker][row]
            assert (seen[lane], valid[lane]) == (key, True)
            assert batch.weights_version[i] == row
            action, total, discount, bootstrap = expected_transition(
                key, self.config.n_step, GAMMA, self.stopped_at.get(key[0])
            )
            assert batch.action[i] == action
            assert abs(batch.n_step_return[i] - total) < 3e-4
            assert abs(batch.bootstrap_discount[i] - discount) < 1e-6
            assert keys(batch.bootstrap_observation[i : i + 1]) == [bootstrap]
        return sampled

    def sample_all(self, batches: int = 200) -> set[Key]:
        """Sample and check until everything must have been seen."""
        found: set[Key] = set()
        for _ in range(batches):
            found |= set(self.check(self.replay.sample()))
        return found
