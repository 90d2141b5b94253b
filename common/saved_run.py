"""A checkpoint on disk: which files it consists of, and whether they are whole.

``checkpoint/`` in a run's folder holds one file per process, one of what all of them share, and
``manifest.json``, which names the others with their size and SHA-256, and is itself guarded by one. The
files of a new checkpoint get new names and the manifest is replaced last, in one step of the file
system. So at every moment the manifest names a whole checkpoint: the new one or the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import ConfigError
from common.state_files import State, StateError, describe_file, read_state

SCHEMA = 1
FOLDER = "checkpoint"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 10_000_000
FILE_NAME = re.compile(r"(run|role-\d+)-\d+\.npz")


@dataclass(frozen=True)
class SavedRun:
    """A whole checkpoint, read and found undamaged.

    Attributes:
        folder: where its files are.
        contents: of the manifest: who was saved when, and the files.
        run: what the processes share, and what the supervisor knew.
    """

    folder: Path
    contents: Mapping[str, Any]
    run: State

    @property
    def number(self) -> int:
        """Which checkpoint of the run it is, from 1."""
        return int(self.contents["number"])

    @property
    def num_roles(self) -> int:
        """Processes that it consists of."""
        return len(self.contents["files"]) - 1

    def role_file(self, role: int) -> Path:
        """Return the file of one process."""
        (name,) = [each for each in self.contents["files"] if each.startswith(f"role-{role}-")]
        return self.folder / str(name)


def run_file(number: int) -> str:
    """Return the name of the file with what the processes of checkpoint ``number`` share."""
    return f"run-{number}.npz"


def write_manifest(folder: Path, contents: Mapping[str, Any], names: Sequence[str]) -> int:
    """Make written files the checkpoint of a folder, and return their size in bytes.

    Raises:
        OSError: the disk is full or the like; the checkpoint before stays.
    """
    files = {name: describe_file(folder / name) for name in names}
    whole = {"schema": SCHEMA, **contents, "files": files}
    text = json.dumps({"contents": whole, "sha256": _fingerprint(whole)}, indent=1)
    temporary = folder / (MANIFEST + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(folder)
        os.replace(temporary, folder / MANIFEST)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(folder)
    return sum(int(each["bytes"]) for each in files.values()) + len(text)


def remove_others(folder: Path, names: Sequence[str]) -> None:
    """Remove the files of other checkpoints than the one that consists of these."""
    with contextlib.suppress(OSError):  # they are in nobody's way
        for path in folder.iterdir():
            if FILE_NAME.fullmatch(path.name) and path.name not in names:
                path.unlink()


def load_saved_run(folder: Path) -> SavedRun:
    """Return the checkpoint of a run's folder. Executes nothing from it.

    Raises:
        ConfigError: there is none, or it is damaged, or another version's.
    """
    place = folder / FOLDER
    if not (place / MANIFEST).is_file():
        raise ConfigError(f"{folder} holds no checkpoint: there is no {place / MANIFEST}")
    try:
        contents = _read_manifest(place / MANIFEST)
        states = {name: _read_whole(place / name, told) for name, told in contents["files"].items()}
        return SavedRun(place, contents, states[run_file(contents["number"])])
    except ConfigError:
        raise
    except StateError as error:
        raise ConfigError(f"the checkpoint {place} is damaged: {error}") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"the checkpoint {place} is damaged: it cannot be read") from None


def _read_manifest(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise StateError(f"{path.name} is too long")
    told = json.loads(path.read_text(encoding="utf-8"))
    contents = told["contents"]
    if told["sha256"] != _fingerprint(contents):
        raise StateError(f"{path.name} is not what was written")
    if contents["schema"] != SCHEMA:
        raise ConfigError(
            f"the checkpoint {path.parent} has the schema {contents['schema']}, of another version of "
            f"this program; this one reads {SCHEMA}"
        )
    files: dict[str, Any] = contents["files"]
    roles = [f"role-{role}-{contents['number']}.npz" for role in range(len(files) - 1)]
    if sorted(files) != sorted([run_file(contents["number"]), *roles]):
        raise StateError(f"{path.name} names other files than a checkpoint has")
    return dict(contents)


def _read_whole(path: Path, told: Mapping[str, Any]) -> State:
    if not path.is_file():
        raise StateError(f"{path.name} is missing")
    if path.stat().st_size != told["bytes"]:
        raise StateError(f"{path.name} has {path.stat().st_size} bytes, not {told['bytes']}")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != told["sha256"]:
        raise StateError(f"{path.name} is not what was written")
    try:
        return read_state(content)
    except StateError:
        raise StateError(f"{path.name} holds no state") from None


def _fingerprint(contents: Mapping[str, Any]) -> str:
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk, where the system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
