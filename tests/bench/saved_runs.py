"""Makes run folders and comparisons without training, in the format that real runs have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.lost_writes import LOST_WRITES

PARALLEL = {"sync": 2, "hogwild": 2, "a3c": 2, "impala": 2, "apex": 2}
LEARNING_PROCESS = ("sync", "impala", "apex")
MACHINE = {"cpu": "Test CPU", "cores": 2, "logical_cores": 2, "usable_cores": 2, "memory_mib": 4096}
LAYOUT = [["linears.0.weight", [8, 4]], ["linears.0.bias", [8]], ["advantage_head.weight", [2, 8]]]
NUM_ELEMENTS = 8 * 4 + 8 + 2 * 8
LAG_EDGES = [0, 1, 2, 3, 4, 6, 8, 16]


def make_summary(strategy: str = "apex", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a summary with every field of the format; ``changes`` name top-level fields."""
    generator = np.random.default_rng([len(strategy), ord(strategy[0]), seed])
    draw = generator.uniform
    workers = PARALLEL.get(strategy, 1)
    updates, can_lose = int(draw(400, 900)), strategy in ("hogwild", "a3c")
    lost = int(draw(100, 300)) if can_lose else 0
    issued = updates * NUM_ELEMENTS
    shares = generator.dirichlet([20.0] * workers).tolist()
    consumed = generator.dirichlet([20.0] * workers).tolist()
    lag = {"p50": 2, "p95": int(draw(4, 9)), "max": 15, "unit": "updates", "milliseconds": None}
    summary = {
        "schema": 1,
        "strategy": strategy,
        "env_id": "CartPole-v1",
        "seed": seed,
        "status": "completed",
        "config": {"env_id": "CartPole-v1", "seed": seed, "workers": workers, "steps": 3000},
        "machine": MACHINE,
        "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
        "commit": "0123abcd",
        "wall_seconds": draw(5, 9),
        "env_steps": int(draw(3000, 3100)),
        "updates": updates,
        "env_steps_per_second": draw(500, 20_000),
        "updates_per_second": draw(200, 900),
        "training_seconds": draw(3, 5),
        "replay_ratio": {"requested": 0.25, "achieved": draw(0.24, 0.25)},
        "returns": {
            "eval_mean": draw(100, 500),
            "eval_std": 20.0,
            "eval_episodes": 100,
            "threshold": 475.0,
            "solved_at_seconds": draw(2, 3) if seed % 2 else None,
            "solved_at_env_steps": int(draw(1000, 2900)) if seed % 2 else None,
            "solved_after_command_seconds": draw(4, 6) if seed % 2 else None,
        },
        "audit": {
            "enabled": True,
            "writes_issued": issued,
            "writes_lost": lost,
            "lost_fraction": lost / issued,
            "elements": NUM_ELEMENTS,
            "elements_affected": min(lost, NUM_ELEMENTS),
            "worst_element_lost": -(-lost // NUM_ELEMENTS),
            "damaged_updates_at_least": -(-lost // NUM_ELEMENTS),
            "updates_issued": updates,
            "auditable": True,
            "reason": None,
        },
        "policy_lag": lag if strategy in LEARNING_PROCESS else None,
        "gradient_staleness": lag if can_lose else None,
        "sample_age": {"p50": 900, "p95": 2500, "max": 3000, "unit": "env steps"},
        "experience": {
            "workers": [
                {"worker": i, "share_collected": shares[i], "share_consumed": consumed[i]}
                for i in range(workers)
            ],
            "episode_length": [
                {"from": 8, "to": 20, "share_collected": 0.3, "share_consumed": 0.5},
                {"from": 20, "to": 500, "share_collected": 0.7, "share_consumed": 0.5},
            ],
            "jain_collected": draw(0.9, 1.0),
            "jain_consumed": draw(0.8, 1.0),
        },
        "health": {"q_mean": 20.0, "q_max": draw(60, 99), "q_bound": 100.0, "alarms": []},
        "time": {
            "roles": role_times(strategy, generator),
            "bottleneck": "update",
            "verdict": f"{strategy} is bound by the update",
            "suggestion": "--batch-size 64",
        },
        "processes": {"peak_rss_mib": {"learner": draw(300, 400)}, "cpu_utilisation": draw(0.5, 1)},
        "answers": [
            {"question": f"question {i}", "answer": f"answer {i} of {strategy}, seed {seed}"}
            for i in range(6)
        ],
        "error": None,
    }
    return {**summary, **changes}


def role_times(strategy: str, generator: Any) -> dict[str, dict[str, float]]:
    """Return fractions of time that add up to 1 for each role."""
    roles = {"actor_learner": ("env_step", "act", "write", "sample", "update")}
    if strategy in LEARNING_PROCESS:
        roles = {
            "actor": ("env_step", "act", "pull", "wait"),
            "learner": ("sample", "update", "publish"),
        }
    return {
        role: dict(zip(names, generator.dirichlet([3.0] * len(names)).tolist(), strict=True))
        for role, names in roles.items()
    }


def make_events(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a log that fits a summary."""
    seed, pace = summary["seed"], 10 + 5 * (sum(summary["strategy"].encode()) % 9)
    steps = np.linspace(500, 2900, 9 + seed % 3)
    rows: list[dict[str, Any]] = []
    for i, at in enumerate(steps.tolist()):
        clock = {"env_steps": int(at), "updates": int(at / 5), "seconds": at / 1000 + seed / 50}
        rows.append(
            {
                "kind": "evaluation",
                **clock,
                "mean": 20.0 + pace * i + 5 * seed,
                "std": 3.0,
                "best": True,
            }
        )
        rows.append(
            {"kind": "health", **clock, "q_mean": 1.0, "q_max": 0.2 * pace * i + seed, "q_bound": 100.0}
        )
        rows.append({"kind": "progress", **clock, "train_return_mean": None})
    for name in ("policy_lag", "gradient_staleness"):
        if summary.get(name):
            # As in a real run, the bins reach from its own smallest value to its largest.
            edges, counts = LAG_EDGES[seed % 2 :], [10, 30, 40 + seed, 15, 3, 1, 1][seed % 2 :]
            row = {"kind": "histogram", "name": name, "unit": "updates"}
            rows.append({**row, "edges": LAG_EDGES[:2], "counts": [1]})  # of the beginning of the run
            rows.append({**row, "edges": edges, "counts": counts})
    return rows


def write_run(folder: Path, strategy: str = "apex", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Write a whole run folder and return its summary."""
    folder.mkdir(parents=True)
    summary = make_summary(strategy, seed, **changes)
    config = {"schema": 1, "strategy": strategy, "config": summary.get("config")}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [json.dumps(row) for row in make_events(summary)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    if strategy == "hogwild":
        write_lost(folder, summary["audit"]["writes_lost"], seed)
    if strategy in PARALLEL:
        (folder / "timeline.json").write_text(json.dumps(make_timeline(strategy)))
    return summary


def write_lost(folder: Path, total: int, seed: int = 0) -> None:
    """Write lost writes of single weights that add up to ``total``."""
    generator = np.random.default_rng(seed)
    lost = np.bincount(generator.integers(NUM_ELEMENTS, size=total), minlength=NUM_ELEMENTS)
    np.savez_compressed(folder / LOST_WRITES, lost=lost, layout=np.array(json.dumps(LAYOUT)))


def make_timeline(strategy: str, workers: int = 2, updates: int = 8) -> dict[str, Any]:
    """Return a saved timeline: every process reads, computes, writes and waits in turn."""
    parts = (("pull", 30.0), ("update", 700.0), ("publish", 20.0), ("wait", 250.0))
    roles = []
    for worker in range(workers):
        spans, now = [], 100.0 * worker
        for activity, length in parts * updates:
            spans.append([now, now + length, activity])
            now += length
        roles.append({"name": "actor_learner", "worker": worker, "pid": 0, "spans": spans})
    mark = {"kind": "undone", "at": 1750.0, "role": 0, "by": 1, "by_at": 1830.0}
    return {
        "schema": 1,
        "strategy": strategy,
        "window_us": 1000.0 * updates,
        "all_at_work": True,
        "roles": roles,
        "meetings": [mark] if strategy == "hogwild" else [],
    }


def write_comparison(
    folder: Path,
    strategies: Sequence[str],
    seeds: int = 3,
    budgets: Sequence[str] = ("steps",),
    **changes: Any,
) -> dict[str, Any]:
    """Write a comparison with every run completed and return its ``comparison.json``."""
    runs = [
        {
            "run": f"runs/{budget}/{strategy}/seed{seed}",
            "strategy": strategy,
            "seed": seed,
            "budget": budget,
            "param": None,
            "status": "completed",
            "error": None,
        }
        for budget in budgets
        for seed in range(seeds)
        for strategy in strategies
    ]
    for run in runs:
        write_run(folder / run["run"], run["strategy"], run["seed"])
    return save_comparison(folder, "compare", runs, strategies, seeds, budgets, **changes)


def write_sweep(
    folder: Path,
    name: str,
    values: Sequence[Any],
    strategy: str = "apex",
    seeds: int = 2,
    **changes: Any,
) -> dict[str, Any]:
    """Write a sweep in which the alarms fire from the second last value on."""
    runs = []
    for seed in range(seeds):
        for i, value in enumerate(values):
            run = f"runs/steps/{strategy}-{name}={value}/seed{seed}"
            alarm = {"name": "q_bound", "value": 300.0, "limit": 150.0, "at_env_steps": 900}
            alarm |= {"meaning": "the Q values are impossible", "remedy": "give --layer-norm"}
            health = {"q_mean": 1.0, "alarms": [alarm] if i >= len(values) - 2 else []}
            speed = 1000.0 * (i + 1) + seed
            write_run(folder / run, strategy, seed, health=health, env_steps_per_second=speed)
            runs.append(
                {
                    "run": run,
                    "strategy": strategy,
                    "seed": seed,
                    "budget": "steps",
                    "param": {name: value},
                    "status": "completed",
                    "error": None,
                }
            )
    param = {"names": [name], "values": [list(values)]}
    return save_comparison(folder, "sweep", runs, [strategy], seeds, ("steps",), param=param, **changes)


def save_comparison(
    folder: Path,
    kind: str,
    runs: list[dict[str, Any]],
    strategies: Sequence[str],
    seeds: int,
    budgets: Sequence[str],
    **changes: Any,
) -> dict[str, Any]:
    """Write ``comparison.json``."""
    limits = {"steps": {"steps": 3000, "seconds": None}, "seconds": {"steps": None, "seconds": 10.0}}
    comparison: dict[str, Any] = {
        "schema": 1,
        "kind": kind,
        "env_id": "CartPole-v1",
        "budgets": [{"name": name, **limits[name]} for name in budgets],
        "strategies": list(strategies),
        "seeds": list(range(seeds)),
        "param": None,
        "workers": 2,
        "options": {},
        "runs": runs,
        "machine": MACHINE,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(comparison))
    return comparison
