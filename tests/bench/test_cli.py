"""What the command line refuses, and what it says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import click
import pytest

import strategies
from bench.options import SHORT_NAMES, Whole, config_options, make_config
from common.config import Config, ConfigError

BAD_RUNS = {
    "no strategy": ((), ("single, vector", "--strategy")),
    "unknown strategy": (("--strategy", "apx"), ("'apx'", "did you mean 'apex'")),
    "unknown env": (("--env", "CartPol-v1"), ("CartPol-v1", "did you mean CartPole-v1")),
    "unknown module": (("--env", "nosuch:Env-v0"), ("nosuch:Env-v0", "No module named")),
    "continuous actions": (("--env", "Pendulum-v1"), ("Pendulum-v1", "Discrete")),
    "dict observation": (("--env", "badenvs:DictObservation-v0"), ("Dict", "Box")),
    "constructor raises": (("--env", "badenvs:ConstructorRaises-v0"), ("constructor went wrong",)),
    "constructor exits": (("--env", "badenvs:ConstructorExits-v0"), ("SystemExit: 7",)),
    "no workers": (("--strategy", "apex", "--workers", "0"), ("workers 0", "at least 1")),
    "negative workers": (("--strategy", "apex", "--workers", "-1"), ("workers -1", "at least 1")),
    "workers of one process": (("--workers", "2"), ("workers 2", "single is one process")),
    "ratio 0": (("--replay-ratio", "0"), ("replay ratio 0", "above 0")),
    "negative ratio": (("--replay-ratio", "-0.5"), ("replay ratio -0.5", "above 0")),
    "ratio in words": (("--replay-ratio", "much"), ("replay ratio 'much'", "'free'")),
    "free ratio": (("--replay-ratio", "free"), ("'free' has no use in single",)),
    "capacity below batch": (("--replay-capacity", "64"), ("64", "at least the batch size")),
    "steps below warm-up": (
        ("--steps", "100", "--warmup-env-steps", "200"),
        ("steps 100", "warm-up of 200"),
    ),
    "half a step": (("--steps", "1.5"), ("'1.5' is not a whole number", "1e6")),
    "not a number": (("--gamma", "high"), ("--gamma", "'high' is not a number")),
    "infinite": (("--seconds", "inf"), ("seconds inf", "finite")),
    "out of range": (("--gamma", "1.5"), ("gamma 1.5", "at most 1")),
    "useless option": (("--envs-per-worker", "2"), ("envs per worker has no use in single",)),
    "useless flag": (
        ("--strategy", "apex", "--no-prioritized"),
        ("prioritized has no use in apex",),
    ),
    "replay ratio of rollouts": (
        ("--strategy", "impala", "--replay-ratio", "1"),
        ("replay ratio has no use in impala",),
    ),
    "write of one writer": (("--write", "copy-back"), ("write has no use in single",)),
    "lock of one writer": (("--strategy", "apex", "--lock"), ("lock has no use in apex",)),
    "staleness without it": (
        ("--strategy", "hogwild", "--max-staleness", "1"),
        ("max staleness has no use in hogwild",),
    ),
    "unknown write": (
        ("--strategy", "hogwild", "--write", "sideways"),
        ("write 'sideways'", "in-place, copy-back"),
    ),
    "free ratio of rounds": (
        ("--strategy", "sync", "--replay-ratio", "free"),
        ("'free' has no use in sync",),
    ),
    "bad straggler": (("--straggler", "fast"), ("'fast'", "WORKER:MILLISECONDS")),
    "unknown option": (("--no-such-option",), ("--no-such-option",)),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_bad_input_is_one_sentence(case: str, invoke: Any, tmp_path: Path) -> None:
    arguments, expected = BAD_RUNS[case]
    if "--strategy" not in arguments and case != "no strategy":
        arguments = ("--strategy", "single", *arguments)
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    for words in expected:
        assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "MinAtar/Breakout-v1"])
def test_missing_extra_is_named(env_id: str, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium

    from common.envs import EXTRAS, inspect_env

    inspect_env.cache_clear()
    for name in ("Box2D", "minatar", "minatar.gym"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    for name in [name for name in gymnasium.registry if name.startswith("MinAtar/")]:
        monkeypatch.delitem(gymnasium.registry, name)
    result = invoke("run", "--strategy", "single", "--env", env_id)
    (extra,) = [name for prefix, name in EXTRAS.items() if env_id.startswith(prefix)]
    assert result.exit_code == 2
    assert f"{env_id} needs the extra '{extra}'" in result.stderr and "Traceback" not in result.stderr


def test_missing_tensorboard_is_named(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = invoke("run", "--strategy", "single", "--tensorboard")
    assert result.exit_code == 2
    assert "extra 'tensorboard'" in result.stderr and not Path("runs").exists()


def test_output_folder_must_be_empty(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    result = invoke("run", "--strategy", "single", "--output", "full")
    assert result.exit_code == 2 and "full is not empty" in result.stderr
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep"


def test_output_folder_must_be_writable(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    result = invoke("run", "--strategy", "single", "--output", "file/below/it")
    assert result.exit_code == 2 and "cannot be written" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("output", [(), ("--output", "some/new/folder")])
def test_too_little_memory_leaves_no_folder(
    output: tuple[str, ...], invoke: Any, tmp_path: Path
) -> None:
    result = invoke("run", "--strategy", "apex", "--replay-capacity", "1e12", "--quiet", *output)
    assert result.exit_code == 2 and "smaller replay capacity" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_whole_numbers_may_be_written_in_three_ways() -> None:
    spelled = [Whole().convert(text, None, None) for text in ("1000000", "1e6", "1_000_000")]
    assert spelled == [1_000_000] * 3 and all(type(number) is int for number in spelled)
    for text in ("1.5", "many", "inf", "nan", ""):
        with pytest.raises(click.BadParameter, match="whole number"):
            Whole().convert(text, None, None)


def test_options_are_the_fields_of_the_configs() -> None:
    options = {option.name: option for option in config_options()}
    configs = [Config, *(strategies.load(name).Config for name in strategies.STRATEGIES)]
    fields = [item for config in configs for item in dataclasses.fields(config)]
    assert set(options) == {item.name for item in fields}
    for item in fields:
        assert item.metadata["help"] in (options[item.name].help or "")
    hints = typing.get_type_hints(Config)
    for name, option in options.items():
        spelled = SHORT_NAMES.get(name, name).replace("_", "-")
        assert f"--{spelled}" in option.opts
        if hints.get(name) is bool:
            assert f"--no-{spelled}" in option.secondary_opts


def test_only_explicit_choices_override_presets() -> None:
    module = strategies.load("apex")
    plain = module.Config.for_env("CartPole-v1")
    assert make_config("apex", {}) == plain
    assert make_config("apex", {"seed": 4}) == dataclasses.replace(plain, seed=4)
    with pytest.raises(ConfigError, match="no use"):
        make_config("apex", {"epsilon_start": plain.epsilon_start})


def test_list_shows_every_strategy(invoke: Any) -> None:
    text = invoke("list")
    assert text.exit_code == 0 and "\x1b" not in text.stdout
    assert max(len(line) for line in text.stdout.splitlines()) <= 80
    traits = json.loads(invoke("list", "--json").stdout)
    assert [item["name"] for item in traits] == list(strategies.STRATEGIES) and len(traits) == 8
    for item in traits:
        assert item["name"] in text.stdout and "can_go_wrong" in item


def own_options() -> list[tuple[str, str]]:
    """Return (strategy, option) of each option that only some strategies have."""
    common = {item.name for item in dataclasses.fields(Config)}
    return [
        (name, item.name)
        for name in strategies.STRATEGIES
        for item in dataclasses.fields(strategies.load(name).Config)
        if item.name not in common
    ]


def test_options_of_one_strategy_are_in_the_help_and_refused_elsewhere(invoke: Any) -> None:
    options = own_options()
    assert {"write", "lock", "max_staleness", "rollout_length"} <= {option for _, option in options}
    text = invoke("run", "--help").stdout
    for _, option in options:
        assert f"--{option.replace('_', '-')}" in text
        owners = {name for name, own in options if own == option}
        for stranger in set(strategies.STRATEGIES) - owners:
            with pytest.raises(ConfigError, match=f"has no use in {stranger}"):
                make_config(stranger, {option: 1})


def test_unused_options_are_refused() -> None:
    for name in strategies.STRATEGIES:
        for option in strategies.traits_of(name).unused_options:
            with pytest.raises(ConfigError, match=f"has no use in {name}"):
                make_config(name, {option: 1})
    assert "replay_ratio" in strategies.traits_of("pqn").unused_options


@pytest.mark.parametrize("command", ["list", "run", "evaluate", "compare", "sweep"])
def test_help_has_an_example(command: str, invoke: Any) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"Example: bench {command}" in result.stdout


@pytest.mark.parametrize("contents", [None, "", "{}", '{"strategy": "single", "config": {"x": 1}}'])
def test_evaluate_refuses_what_is_no_run(contents: str | None, invoke: Any, tmp_path: Path) -> None:
    if contents is not None:
        (tmp_path / "config.json").write_text(contents)
    result = invoke("evaluate", str(tmp_path if contents is not None else tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and "config" in result.stderr


def test_command_line_is_light_to_import() -> None:
    code = "import sys, bench.cli; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    code = "import sys, bench.runner, bench.display, bench.options; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_thread_variables_are_those_of_common() -> None:
    from common.processes import THREAD_VARIABLES

    code = f"import os, bench; print([os.environ.get(name) for name in {THREAD_VARIABLES}])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(found.stdout) == ["1"] * len(THREAD_VARIABLES)
    assert len(THREAD_VARIABLES) > 3
