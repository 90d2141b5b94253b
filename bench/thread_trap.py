"""Thread oversubscription, measured: one process, and one per core, each with a thread or with many.

A numeric library starts a thread per core unless it is told otherwise. In one process that helps where
matrices are large; in as many processes as there are cores, cores x cores threads wait for each other
inside every small matrix product.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import strategies
from bench.aside import measure_aside
from common.acting import NetworkSpec, network_spec
from common.config import Config
from common.processes import thread_limits

ROUNDS = 2  # of both settings in turn, so that a machine whose speed drifts gives a ratio all the same
MOST_PROCESSES = 8  # enough to show it, and torch takes hundreds of MiB in each
WORK = {"acting": "env steps/s", "update": "updates/s"}


def compare_threads(
    strategy: str, config: Config, num_processes: int, seconds: float
) -> dict[str, Any]:
    """Return rates with one thread per process, with the libraries' own number, and their ratio.

    Args:
        strategy: whose update.
        config: its choices.
        num_processes: at a time, 8 at the most; one alone, or as many as cores as a user would start.
        seconds: of each measurement.
    """
    num_processes = min(num_processes, MOST_PROCESSES)
    found: dict[str, Any] = {"processes": num_processes}
    for work in WORK:
        arguments = {
            "work": work,
            "strategy": strategy,
            "choices": json.dumps(vars(config)),
            "seconds": seconds,
        }
        rounds = [
            {limited: _rate(arguments, num_processes, seconds, limited) for limited in (True, False)}
            for _ in range(ROUNDS)
        ]
        one = statistics.median(each[True]["per_second"] for each in rounds)
        own = statistics.median(each[False]["per_second"] for each in rounds)
        found[work] = {
            "one_thread": one,
            "default_threads": own,
            "ratio": one / own,
            "threads_by_default": rounds[0][False]["threads"],
        }
    return found


def _rate(
    arguments: Mapping[str, Any], number: int, seconds: float, with_limits: bool
) -> dict[str, Any]:
    answers = measure_aside(
        "bench.thread_trap:prepare", arguments, seconds=seconds, number=number, with_limits=with_limits
    )
    return {
        "per_second": sum(answer["per_second"] for answer in answers),
        "threads": max(answer["threads"] for answer in answers),
    }


def prepare(work: str, strategy: str, choices: str, seconds: float) -> Callable[[], dict[str, Any]]:
    """Return a function that works for some seconds and returns how much a second, and its threads."""
    from bench.ceilings import make_acting
    from common.envs import inspect_env

    config = strategies.load(strategy).Config(**json.loads(choices))
    spec = network_spec(config, inspect_env(config.env_id))
    do = make_acting(config, spec) if work == "acting" else _make_update(strategy, config, spec)
    do()

    def measure() -> dict[str, Any]:
        began, number = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            number += do()
        elapsed = time.perf_counter() - began
        threads = max(thread_limits().values(), default=1)
        return {"per_second": number / elapsed, "threads": threads}

    return measure


def _make_update(strategy: str, config: Config, spec: NetworkSpec) -> Callable[[], int]:
    """Return an update with as many threads as torch has by now: a learner would limit it to one."""
    import torch

    from bench.bare_updates import make_update

    number = torch.get_num_threads()
    update = make_update(strategy, config, spec)
    torch.set_num_threads(number)
    return update
