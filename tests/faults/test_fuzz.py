"""Files of a run, mutated at random: a clear error or a correct result, never a traceback or a hang."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strategies
from bench.clean import left_behind
from bench.playing import load_policy
from bench.runner import load_config
from common.acting import initial_weights, network_spec
from common.checkpoint import save_model
from common.config import Config, ConfigError
from common.envs import inspect_env
from common.owners import owner

MUTATIONS, MANY = 200, 2_400
MOST_SECONDS = 5.0
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "none", "apex", "\u0000", "os:system", "x" * 5_000, [], {}, [[]], {"a": {}},
    [1, "a", None], list(range(1_000)),
]  # fmt: skip


def make_run(folder: Path) -> None:
    """Write what a finished run leaves, without a training."""
    config = strategies.load("vector").Config.for_env("CartPole-v1", hidden_size=8)
    contents = {"schema": 1, "strategy": "vector", "config": dataclasses.asdict(config)}
    (folder / "config.json").write_text(json.dumps(contents))
    (folder / "owner.json").write_text(json.dumps(owner()))
    spec = network_spec(config, inspect_env(config.env_id))
    save_model(folder / "model.pt", spec, initial_weights(spec, 0))
    summary = {
        **contents,
        "env_id": "CartPole-v1", "seed": 0, "status": "completed", "error": None,
        "env_steps": 1000, "updates": 10, "returns": {"eval_mean": 1.0, "evaluations": [[1, 2, 3, 4]]},
        "audit": {"writes_lost": 0, "enabled": True}, "processes": {"restarts": 0, "deaths": []},
        "experience": {"workers": [{"worker": 0, "env_steps": 1000, "share_collected": 1.0}]},
        "time": {"roles": {"actor_learner": {"act": 0.5, "other": 0.5}}},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [{"kind": "progress", "env_steps": n, "updates": n, "seconds": n / 10} for n in range(20)]
    rows += [{"kind": "evaluation", "env_steps": 5, "updates": 1, "seconds": 1.0, "mean": 9.0}]
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_owner(folder: Path) -> None:
    """What ``bench clean`` asks; whoever lives is never found dead."""
    list(left_behind(folder))


# Which reader of the project takes which file.
READERS: dict[str, list[Callable[[Path], Any]]] = {
    "config.json": [load_config, load_policy],
    "owner.json": [read_owner],
}
if importlib.util.find_spec("bench.saved"):  # what a report is made from
    saved = importlib.import_module("bench.saved")

    def read_saved(folder: Path) -> None:
        for run in saved.load_runs(folder).runs:
            assert run.env_id and run.name and run.number("env_steps") is not False
            assert all(isinstance(row, dict) for row in run.rows("progress"))

    READERS |= {"summary.json": [read_saved], "events.jsonl": [read_saved]}


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Flip, cut, double or insert."""
    mutated = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutated) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(mutated):
            mutated[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del mutated[at : at + chance.randint(1, 30)]
        elif kind == 2:
            mutated[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
        elif kind == 3:
            mutated[at:at] = mutated[at : at + chance.randint(1, 200)]
        else:
            mutated = mutated[:at]
    return bytes(mutated)


def mutate_values(data: bytes, chance: random.Random) -> bytes:
    """Put something strange where a value, or a name, was; in each line of a file with several."""
    lines = data.decode().splitlines()
    number = chance.randrange(len(lines))
    value = json.loads(lines[number]) if len(lines) > 1 else json.loads(data)
    parent, key = value, None
    while isinstance(parent, dict) and parent:
        key = chance.choice(list(parent))
        if not isinstance(parent[key], dict) or chance.random() < 0.2:
            break
        parent = parent[key]
    if chance.random() < 0.1 or key is None:
        value = chance.choice(STRANGE)
    elif chance.random() < 0.15:
        parent[str(chance.choice(STRANGE))[:20]] = parent.pop(key)
    else:
        parent[key] = chance.choice(STRANGE)
    text = json.dumps(value)
    lines = [*lines[:number], text, *lines[number + 1 :]] if len(lines) > 1 else [text]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize("number", [MUTATIONS, pytest.param(MANY, marks=pytest.mark.slow)])
def test_mutated_files_are_refused_in_a_sentence_or_read(number: int, tmp_path: Path) -> None:
    make_run(tmp_path)
    chance = random.Random(number)
    whole = {name: (tmp_path / name).read_bytes() for name in READERS}
    for reader in [reader for readers in READERS.values() for reader in readers]:
        reader(tmp_path)  # unharmed, it is read
    refused = read = 0
    for turn in range(number):
        name = chance.choice(list(READERS))
        mutate = chance.choice((mutate_bytes, mutate_values))
        data = mutate(whole[name], chance)
        (tmp_path / name).write_bytes(data)
        for reader in READERS[name]:
            began = time.perf_counter()
            try:
                reader(tmp_path)
                read += 1
            except ConfigError as error:
                refused += 1
                assert len(str(error)) < 1_000 and str(error).strip() and "\n" not in str(error)
            except Exception as error:
                raise AssertionError(
                    f"turn {turn}: {name} as {data[:300]!r} raised {error!r}"
                ) from error
            assert time.perf_counter() - began < MOST_SECONDS
        (tmp_path / name).write_bytes(whole[name])
    assert refused > number // 4 and read > number // 20, (refused, read)
    assert (tmp_path / "model.pt").is_file() and (tmp_path / "config.json").is_file()


def test_evaluate_says_in_a_line_what_is_wrong(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from bench.cli import cli

    make_run(tmp_path)
    whole, chance = (tmp_path / "config.json").read_bytes(), random.Random(5)
    codes = []
    for _ in range(25):
        (tmp_path / "config.json").write_bytes(mutate_values(whole, chance))
        result = CliRunner().invoke(cli, ["evaluate", str(tmp_path), "--episodes", "1"])
        codes.append(result.exit_code)
        assert result.exit_code in (0, 2) and "Traceback" not in result.output
        if result.exit_code:
            assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert set(codes) == {0, 2}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        "1" * 10_000,
        '{"strategy": 1, "config": [1]}',
        "\xff\xfe",
        "null",
    ],
)
def test_hostile_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    (tmp_path / "owner.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="is not the configuration of a run") as caught:
        load_config(tmp_path)
    assert len(str(caught.value)) < 500
    assert list(left_behind(tmp_path)) == []


@pytest.mark.parametrize(
    "name, value",
    [("hidden_size", "128"), ("hidden_size", 128.0), ("double", 1), ("seed", True), ("env_id", 3)],
)
def test_a_saved_value_has_its_type(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="is of the wrong type") as caught:
        Config.from_saved({name: value})
    assert name.replace("_", " ") in str(caught.value)
    saved_values = dataclasses.asdict(Config(gamma=1, seconds=5))
    assert Config.from_saved(saved_values) == Config(gamma=1, seconds=5)
    assert isinstance(np.float32(1), np.floating) and Config.from_saved({}) == Config()
