"""The folder of a comparison: made once, and in the hands of one process at a time."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from bench.runner import RUNS
from bench.summary import write_json
from common.config import ConfigError


def make_folder(kind: str, output: Path | None) -> Path:
    """Return a new folder for a comparison, or the empty one that was named.

    Raises:
        ConfigError: it is not empty, or cannot be made.
    """
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{kind}"
    candidates = (RUNS / (f"{name}-{number}" if number else name) for number in itertools.count())
    folder = output or next(path for path in candidates if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"the output folder {folder} is not empty; name a new or an empty one, or go on with "
                "a comparison by --resume"
            )
    except OSError as error:
        raise ConfigError(
            f"the output folder {folder} cannot be written ({error.strerror}); name another one with "
            "--output"
        ) from None
    return folder


@contextlib.contextmanager
def sole_owner(folder: Path) -> Iterator[None]:
    """Keep a second process from going on with the same comparison meanwhile.

    Raises:
        ConfigError: one is at work on it.
    """
    path = folder / "owner.json"
    me = {"pid": os.getpid(), "created": psutil.Process().create_time()}
    other = _living_owner(path)
    if other not in (None, me):
        raise ConfigError(f"process {other['pid']} is at work on {folder}; wait for it, or end it")
    write_json(path, me)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _living_owner(path: Path) -> dict[str, Any] | None:
    """Return who wrote the file; None if that process is gone, or its number is another's now."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
        owner = json.loads(path.read_text(encoding="utf-8"))
        if psutil.Process(owner["pid"]).create_time() == owner["created"]:
            return dict(owner)
    return None
