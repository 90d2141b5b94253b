"""Checkpoints on disk: at every moment the manifest names a whole one, and a damaged one is refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_rig import differences, first_part, role_states

from common import saved_run
from common.config import Config, ConfigError
from common.processes import Role
from common.saved_run import FOLDER, MANIFEST, load_saved_run
from common.saving import Checkpointer, shared_parts
from common.shared_memory import SharedArrays
from common.state_files import State
from common.telemetry import CONTROL, WORD, Telemetry


class Held:
    """A part of a process's state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state(self) -> State:
        return {"value": self.value, "array": np.full(500, self.value)}


class Supervised:
    """A checkpointer with processes that are played by hand."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("learner", "actor")) -> None:
        self.folder = folder
        self.arrays = SharedArrays({"rows": ((3,), np.int64)})
        roles = [Role(name, i, lambda: None, (self.arrays,)) for i, name in enumerate(names)]
        self.telemetry = Telemetry(len(roles))
        words = self.telemetry.arrays["words"]
        for name in ("started_ns", "ready_ns", "is_resumable"):
            words[:, WORD[name]] = 1
        resume = load_saved_run(folder) if (folder / FOLDER / MANIFEST).exists() else None
        self.saver = Checkpointer(
            Config(checkpoint_seconds=0.0), self.telemetry, roles, folder, {}, self.own_state, resume
        )
        states = [self.saver.role_state(i) for i in range(len(roles))]
        self.states = [state for state in states if state is not None]

    def own_state(self) -> State:
        return {"training_seconds": 1.0, "command_seconds": 2.0}

    def control(self, name: str) -> int:
        return int(self.telemetry.arrays["control"][CONTROL[name]])

    def save_role(self, role: int, value: int) -> None:
        state, words = self.states[role], self.telemetry.arrays["words"][role]
        state._parts = {"held": Held(value)}
        number = self.control("save_learner" if state.is_first else "save")
        words[WORD["save_failed"]] = state.save(number)
        words[WORD["saved"]] = number

    def save(self, value: int) -> None:
        """Make a checkpoint that holds this value everywhere."""
        self.arrays["rows"][:] = value
        self.telemetry.arrays["words"][0, WORD["env_steps"]] = value
        self.saver.want_last(30, "interrupted")
        for _ in range(2 + len(self.states)):
            self.saver.advance()
            for role, state in enumerate(self.states):
                asked = self.control("save_learner" if state.is_first else "save")
                if asked != self.telemetry.arrays["words"][role, WORD["saved"]]:
                    self.save_role(role, value)


def value_of(folder: Path) -> int:
    """Return the value that a whole checkpoint holds, having seen that it is the same everywhere."""
    saved = load_saved_run(folder)
    values = {int(state["held"]["value"]) for state in role_states(saved)}
    values |= {int(each) for state in role_states(saved) for each in state["held"]["array"]}
    (shared,) = saved.run["shared"].values()
    values |= {int(each) for each in shared["rows"]} | {int(saved.contents["env_steps"])}
    assert len(values) == 1, values
    return values.pop()


def test_the_learner_stands_still_first_and_then_all(tmp_path: Path) -> None:
    run = Supervised(tmp_path)
    run.saver.advance()
    assert run.control("save_learner") == 0  # none is due
    run.saver.want_last(30, "interrupted")
    run.saver.advance()
    assert (run.control("save_learner"), run.control("save")) == (1, 0)
    run.saver.advance()
    assert run.control("save") == 0  # the learner has not saved yet
    run.save_role(0, 5)
    run.saver.advance()
    assert run.control("save") == 1 and run.control("saves_done") == 0
    run.saver.advance()
    assert not (tmp_path / FOLDER / MANIFEST).exists() and not run.control("may_leave")
    run.save_role(1, 5)
    run.arrays["rows"][:] = run.telemetry.arrays["words"][0, WORD["env_steps"]] = 5
    run.saver.advance()
    assert run.control("saves_done") == 1 and run.control("may_leave") and run.saver.is_over
    assert value_of(tmp_path) == 5 and run.saver.report.saves == 1
    size = sum(path.stat().st_size for path in (tmp_path / FOLDER).iterdir())
    assert run.saver.report.num_bytes == size


def test_a_process_that_never_comes_ends_the_attempt_and_nothing_else(tmp_path: Path) -> None:
    run = Supervised(tmp_path)
    run.save(1)
    late = Supervised(tmp_path)
    late.saver.want_last(0.0, "interrupted")
    late.saver.advance()
    late.save_role(0, 2)
    late.saver.advance()
    assert late.saver.is_over and late.control("may_leave") and late.control("saves_done") == 2
    assert "in time" in (late.saver.report.error or "") and value_of(tmp_path) == 1


def test_a_role_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    run = Supervised(tmp_path)
    run.telemetry.arrays["words"][1, WORD["is_resumable"]] = 0
    run.saver.advance()
    assert run.saver.is_over and run.control("may_leave")
    assert "does not name" in (run.saver.report.error or "") and list(tmp_path.iterdir()) == []


def test_shared_memory_is_found_once_wherever_it_is() -> None:
    one, other = (SharedArrays({"a": ((2,), np.int64)}) for _ in range(2))

    class Holder:
        def __init__(self) -> None:
            self.inner = [Held(1)]
            self.arrays = one

    holder = Holder()
    roles = [Role("a", 0, lambda: None, (holder, 3, None)), Role("b", 1, lambda: None, (holder, other))]
    found = shared_parts(roles)
    assert list(found.values()) == [one, other] and list(found) == ["0-Holder", "1-SharedArrays"]


class Crash(BaseException):
    """The process ends here: nothing after it happens."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Yield a function that lets the n-th operation on files be the last one; half of it is done."""
    done: list[str] = []
    left = [10**9]

    def watched(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if left[0] <= 0:
                raise Crash
            left[0] -= 1
            done.append(name)
            if left[0] == 0:
                if name == "savez":
                    arguments[0].write(b"PK\x03\x04 half of it")
                elif name == "fsync":
                    function(*arguments, **named)
                raise Crash
            return function(*arguments, **named)

        return call

    for owner, name in (
        (os, "fsync"),
        (os, "replace"),
        (np, "savez"),
        (Path, "unlink"),
        (Path, "open"),
    ):
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))

    def crash(number: int) -> list[str]:
        left[0] = number
        done.clear()
        return done

    yield crash


def test_a_crash_at_any_point_leaves_a_whole_checkpoint(
    tmp_path: Path, crash_at: Callable[[int], list[str]]
) -> None:
    old_or_new, number = set(), 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        crash_at(10**9)
        Supervised(folder).save(1)
        second = Supervised(folder)
        operations = crash_at(number)
        try:
            second.save(2)
        except Crash:
            crash_at(10**9)
            old_or_new.add(value_of(folder))
            Supervised(folder).save(3)  # what the crash left behind is in nobody's way
            assert value_of(folder) == 3
            assert len(list((folder / FOLDER).iterdir())) == 4
            continue
        used = set(operations)
        crash_at(10**9)
        assert value_of(folder) == 2
        break
    assert old_or_new == {1, 2} and number > 15
    assert used == {"fsync", "replace", "savez", "unlink", "open"}


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_full_disk_leaves_the_checkpoint_before(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Supervised(tmp_path).save(1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    second = Supervised(tmp_path)
    monkeypatch.setattr(saved_run.os, function, full)
    second.save(2)
    monkeypatch.undo()
    assert second.saver.report.error == "No space left on device" and second.saver.report.saves == 0
    assert value_of(tmp_path) == 1 and second.control("may_leave") == 1
    assert len(list((tmp_path / FOLDER).iterdir())) == 4


def test_a_process_with_a_full_disk_says_so(tmp_path: Path) -> None:
    run = Supervised(tmp_path)
    run.saver.want_last(30, "interrupted")
    run.saver.advance()
    os.rmdir(tmp_path / FOLDER)  # so that nothing can be written there
    run.save_role(0, 1)
    run.saver.advance()
    run.save_role(1, 1)
    run.saver.advance()
    assert run.saver.report.error == os.strerror(2) and run.saver.is_over
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        load_saved_run(tmp_path)


# --- Damage ---


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run's checkpoint."""
    folder = tmp_path_factory.mktemp("original")
    first_part("single", folder, steps=300).run(interrupt_at=150)
    return folder


def copied(original: Path, to: Path) -> Path:
    (to / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in (original / FOLDER).iterdir():
        (to / FOLDER / path.name).write_bytes(path.read_bytes())
    return to / FOLDER


def mutate(place: Path, rng: random.Random) -> str:
    """Change one file at random and return what was done."""
    path = rng.choice(sorted(place.iterdir()))
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    what = rng.choice(
        ["flip", "set", "cut", "drop", "insert", "swap", "empty", "remove", "digit", "add"]
    )
    if what == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif what == "set":
        content[at : at + 4] = rng.randbytes(4)
    elif what == "cut":
        del content[at:]
    elif what == "drop":
        del content[at : at + rng.randrange(1, 50)]
    elif what == "insert":
        content[at:at] = rng.randbytes(rng.randrange(1, 50))
    elif what == "swap":
        content = bytearray(rng.choice(sorted(place.iterdir())).read_bytes())
    elif what == "empty":
        content.clear()
    elif what == "digit":
        digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
        content[rng.choice(digits)] = ord(rng.choice("0123456789"))
    elif what == "add":
        content += rng.randbytes(rng.randrange(1, 50))
    path.write_bytes(content)
    if what == "remove":
        path.unlink()
    return f"{what} {path.name} at {at}"


def everything(folder: Path) -> list[Any]:
    saved = load_saved_run(folder)
    return [dict(saved.contents), saved.run, *role_states(saved)]


@pytest.mark.parametrize("number", [100, pytest.param(2_500, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(
    number: int, original: Path, tmp_path: Path
) -> None:
    rng, whole, refused = random.Random(number), everything(original), 0
    for _ in range(number):
        place = copied(original, tmp_path)
        done = mutate(place, rng)
        try:
            assert differences(everything(tmp_path), whole) == [], done
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error) and str(tmp_path) in str(error), done
            assert len(str(error)) < 2 * len(str(tmp_path)) + 200, done
    assert 0.8 * number < refused <= number


def test_a_forged_manifest_is_refused_or_loads(original: Path, tmp_path: Path) -> None:
    """Whoever writes the right checksum as well can still not make it load anything else than files."""
    place = copied(original, tmp_path)
    contents = json.loads((place / MANIFEST).read_text())["contents"]
    names = sorted(contents["files"])
    forged: list[Any] = [
        {**contents, "schema": 99},
        {**contents, "number": "x"},
        {**contents, "files": []},
        {**contents, "files": dict.fromkeys(names)},
        {**contents, "files": {**contents["files"], "../../secret.npz": contents["files"][names[0]]}},
        {key: value for key, value in contents.items() if key != "files"},
        [1],
        None,
    ]
    for each in forged:
        told = {"contents": each, "sha256": saved_run._fingerprint(each)}
        (place / MANIFEST).write_text(json.dumps(told))
        with pytest.raises(ConfigError) as caught:
            load_saved_run(tmp_path)
        assert "\n" not in str(caught.value)
    (place / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="damaged"):
        load_saved_run(tmp_path)
    honest = {"contents": contents, "sha256": saved_run._fingerprint(contents)}
    (place / MANIFEST).write_text(json.dumps(honest))
    assert load_saved_run(tmp_path).contents == contents
