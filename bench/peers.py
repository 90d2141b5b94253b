"""What a reader would otherwise use: stable-baselines3's DQN, in the same table.

    python -m bench.peers --output DIR --env CartPole-v1 --seed 0 --steps 100000

One process, one thread, the same environment, network widths, batch size, replay ratio, budget and
greedy evaluation as ``single``; every other setting that both have is the one of ``single``, too. What
stays different: plain instead of double Q-learning, one head instead of value and advantage, another
initialisation of the weights, torch instead of numpy for acting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.answers import answers
from bench.comparison import PEER
from bench.machine import commit, machine, process_started_at, versions
from bench.options import config_options, make_config
from bench.runner import Recorder, RunFacts, RunFolder
from bench.summary import finite, make_summary, write_json
from common.config import Config, ConfigError
from common.envs import Lanes, inspect_env
from common.evaluate import FINAL_EPISODES, EvaluationRecord, play_lanes
from common.events import EventLog
from common.policy import linear_decay
from common.processes import limit_torch_threads, random_stream, thread_limits
from common.supervisor import private_mib
from common.types import Evaluation, RoleReport, RunResult

PACKAGE = "stable-baselines3"
BASE = "single"
# Options of ``single`` that stable-baselines3's DQN has no counterpart for.
UNUSED = (
    *("workers", "envs_per_worker", "until_solved", "straggler", "audit", "layer_norm", "double"),
    *("prioritized", "priority_exponent", "importance_exponent", "chunk_steps"),
)
TICK_SECONDS = 0.25
LARGEST_PERIOD = 1_000  # env steps after which a replay ratio such as 0.3 comes out even


def require_peer() -> None:
    """Check that the extra is installed.

    Raises:
        ConfigError: it is not.
    """
    from importlib.util import find_spec

    if find_spec("stable_baselines3") is None:
        raise ConfigError(
            "--peers needs the extra 'peers': pip install -c constraints.txt \".[peers]\""
        )


def peer_config(choices: Mapping[str, Any]) -> Config:
    """Return the configuration of ``single`` that the peer follows.

    Raises:
        ConfigError: a value is not allowed, or the peer cannot do what is asked.
    """
    for name in choices:
        if name in UNUSED:
            raise ConfigError(f"{name.replace('_', ' ')} has no use in {PEER}; leave the option out")
    config = make_config(BASE, choices)
    info = inspect_env(config.env_id)
    if len(info.observation_shape) != 1 or info.first_action != 0:
        raise ConfigError(
            f"{PEER} takes observations that are vectors and actions from 0, and {config.env_id} has "
            f"observations of shape {info.observation_shape} and actions from {info.first_action}"
        )
    return config


def settings(config: Config, env_steps: int) -> dict[str, Any]:
    """Return the arguments of stable-baselines3's ``DQN``.

    Args:
        config: of ``single``.
        env_steps: what its progress is counted against.
    """
    ratio = Fraction(float(config.replay_ratio)).limit_denominator(LARGEST_PERIOD)
    polyak = config.target_update < 1
    copy_updates = 1.0 if polyak else config.target_update
    end = config.learning_rate if config.learning_rate_end is None else config.learning_rate_end

    def learning_rate(progress_left: float) -> float:
        done = round((1 - progress_left) * env_steps)
        decay = config.learning_rate_decay_env_steps
        return float(linear_decay(done, config.learning_rate, end, decay))

    return {
        "learning_rate": learning_rate,
        "buffer_size": config.replay_capacity,
        "learning_starts": config.warmup_env_steps,
        "batch_size": config.batch_size,
        "gamma": config.gamma,
        "n_steps": config.n_step,
        "train_freq": ratio.denominator,
        "gradient_steps": ratio.numerator,
        "tau": config.target_update if polyak else 1.0,
        "target_update_interval": max(1, round(copy_updates / ratio)),
        "exploration_initial_eps": config.epsilon_start,
        "exploration_final_eps": config.epsilon_end,
        "exploration_fraction": config.epsilon_decay_env_steps / env_steps,
        "max_grad_norm": config.max_grad_norm or float("inf"),
        "policy_kwargs": {
            "net_arch": [config.hidden_size, config.hidden_size],
            "optimizer_kwargs": {"eps": config.adam_epsilon},
        },
        "seed": config.seed,
        "device": "cpu",
    }


class PeerRun:
    """A run of the peer: its clock, its evaluations and its result.

    Args:
        config: of ``single``.
        recorder: hears ticks and evaluations.
        command_started_at: on the ``perf_counter`` clock.
    """

    def __init__(self, config: Config, recorder: Recorder, command_started_at: float) -> None:
        self._config, self._recorder = config, recorder
        self._command_started_at = command_started_at
        self._record = EvaluationRecord(inspect_env(config.env_id).reward_threshold)
        self._model: Any = None
        self._held_seconds = self._held_at_first_update = 0.0
        self._first_update_at: float | None = None
        self._first_update_env_steps = 0
        self._next_evaluation, self._updates_at_evaluation = config.evaluate_every_env_steps, 0
        self._next_tick = 0.0
        self._rss_mib = 0.0

    def run(self) -> RunResult:
        """Train to the budget and return what there is to say about it."""
        import gymnasium
        from stable_baselines3 import DQN

        limit_torch_threads()
        env_steps = self._config.steps
        env = gymnasium.make(self._config.env_id)
        self._model = DQN("MlpPolicy", env, **settings(self._config, env_steps))
        self._started_at, cpu_started = time.perf_counter(), time.process_time()
        self._model.learn(env_steps, callback=self._on_step)
        ended_at, cpu_seconds = time.perf_counter(), time.process_time() - cpu_started
        final = self._evaluation(self._play(FINAL_EPISODES, 0, confirm=2), ended_at)
        return self._result(final, ended_at, cpu_seconds)

    def save(self, folder: Path) -> None:
        """Save the model as stable-baselines3 does."""
        self._model.save(folder / "model.zip")

    @property
    def _updates(self) -> int:
        return int(self._model._n_updates)  # its only count of them, also in its own log

    def _training_seconds(self, now: float) -> float:
        return now - self._started_at - self._held_seconds

    def _on_step(self, local: dict[str, Any], other: dict[str, Any]) -> bool:
        """Look at the clock and evaluate if it is due; False ends the training."""
        now = time.perf_counter()
        if self._first_update_at is None and self._updates > 0:
            self._first_update_at, self._held_at_first_update = now, self._held_seconds
            self._first_update_env_steps = self._model.num_timesteps
        if now >= self._next_tick:
            self._tick(now)
        due = self._model.num_timesteps >= self._next_evaluation
        if due and self._updates >= (self._updates_at_evaluation + self._config.evaluation_min_updates):
            self._evaluate(now)
        seconds = self._config.seconds
        return seconds is None or self._training_seconds(time.perf_counter()) < seconds

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_SECONDS
        self._rss_mib = max(self._rss_mib, private_mib(os.getpid()))
        returns = [episode["r"] for episode in self._model.ep_info_buffer or ()]
        self._recorder.on_tick(
            self._model.num_timesteps, self._updates, self._training_seconds(now), returns
        )

    def _evaluate(self, began: float) -> None:
        """Play greedy episodes off the training clock, as the supervisor does for our own."""
        every = self._config.evaluate_every_env_steps
        self._next_evaluation = (self._model.num_timesteps // every + 1) * every
        self._updates_at_evaluation = self._updates
        number = self._record.num_evaluations
        returns = self._play(self._config.evaluation_episodes, number)
        evaluation = self._evaluation(returns, began)
        best = self._record.add(evaluation, np.zeros(0, dtype=np.float32))
        self._recorder.on_evaluation(evaluation, best)
        if self._record.wants_confirmation:
            self._record.confirm(self._play(FINAL_EPISODES, number, confirm=1))
        self._held_seconds += time.perf_counter() - began

    def _play(self, episodes: int, number: int, confirm: int = 0) -> tuple[float, ...]:
        seeds = random_stream(self._config.seed, "evaluation", confirm, number)
        lanes = Lanes(self._config.env_id, episodes, seeds)
        try:
            return play_lanes(
                lanes, lambda observation: self._model.predict(observation, deterministic=True)[0]
            )
        finally:
            lanes.close()

    def _evaluation(self, returns: tuple[float, ...], now: float) -> Evaluation:
        return Evaluation(
            env_steps=self._model.num_timesteps,
            updates=self._updates,
            training_seconds=self._training_seconds(now),
            command_seconds=time.perf_counter() - self._command_started_at,
            episode_returns=returns,
        )

    def _result(self, final: Evaluation, ended_at: float, cpu_seconds: float) -> RunResult:
        env_steps, updates = int(self._model.num_timesteps), self._updates
        result = self._recorder.failed_result("")
        result.status, result.error = "completed", None
        result.env_steps, result.updates = env_steps, updates
        result.training_seconds = self._training_seconds(ended_at)
        result.best_mean, result.solved_at = self._record.best_mean, self._record.solved_at
        result.final_evaluation = final
        result.train_returns = [float(episode["r"]) for episode in self._model.ep_info_buffer or ()]
        if self._first_update_at is not None:
            held = self._held_seconds - self._held_at_first_update
            result.steady_seconds = ended_at - self._first_update_at - held
            result.steady_env_steps = env_steps - self._first_update_env_steps
            result.steady_updates = updates
        result.roles = [self._role(env_steps, updates, cpu_seconds)]
        return result

    def _role(self, env_steps: int, updates: int, cpu_seconds: float) -> RoleReport:
        return RoleReport(
            name="actor_learner",
            worker=0,
            pid=os.getpid(),
            peak_rss_mib=max(self._rss_mib, private_mib(os.getpid())),
            threads=thread_limits(),
            imports_torch=True,
            cpu_seconds=cpu_seconds,
            counters={
                "env_steps": env_steps,
                "updates": updates,
                "stored": env_steps,
                "episodes": int(self._model._episode_num),
            },
        )


def run(choices: Mapping[str, Any], output: Path, started: float) -> dict[str, Any]:
    """Train once and leave a run folder behind, as ``bench run`` does."""
    config = peer_config(choices)
    folder = RunFolder(PEER, config, output)
    log = EventLog(folder.path / "events.jsonl")
    peer = PeerRun(config, Recorder(log, []), started)
    result = peer.run()
    peer.save(folder.path)
    log.close()
    facts = RunFacts(
        run_id=folder.run_id,
        folder=folder.path,
        started_at=folder.started_at,
        threshold=inspect_env(config.env_id).reward_threshold,
        supervisor_rss_mib=0.0,
        machine=machine(),
        versions={**versions(), PACKAGE: version(PACKAGE)},
        commit=commit(),
        wall_seconds=time.perf_counter() - started,
    )
    summary = as_peer(make_summary(BASE, config, result, facts))
    summary["answers"] = answers(summary)
    write_json(folder.path / "summary.json", finite(summary))
    return summary


def as_peer(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary of ``single`` as the peer's: what was not measured there is null."""
    processes = {**summary["processes"], "shared_mib": 0.0, "supervisor_rss_mib": None}
    nothing = {name: None for name in summary["audit"] if name != "enabled"}
    reason = "stable-baselines3 writes its weights itself"
    audit = {**nothing, "enabled": False, "auditable": False, "reason": reason}
    experience = {**summary["experience"], "jain_collected": None}
    health = dict.fromkeys(summary["health"])
    return {
        **summary,
        "strategy": PEER,
        "audit": {name: audit[name] for name in summary["audit"]},
        "replay_ratio": {**summary["replay_ratio"], "target_copies": None},
        "experience": experience,
        "health": {**health, "alarms": []},
        "processes": processes,
    }


@click.command(params=[*config_options(), click.Option(["--output"], type=click.Path(path_type=Path))])
def main(output: Path, **values: Any) -> None:
    """Train stable-baselines3's DQN. Called by ``bench compare --peers``."""
    choices = {name: value for name, value in values.items() if value is not None}
    run(choices, output, process_started_at())


if __name__ == "__main__":
    from bench.child import leave_with_starter

    leave_with_starter()
    main()
