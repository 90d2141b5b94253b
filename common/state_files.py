"""Files that hold the state of something: plain values and arrays, and nothing that could be executed.

A state is a tree of dictionaries and lists whose leaves are numbers, text, truth values, None and numpy
arrays. In the file, a zip archive as ``numpy.savez`` makes it, the tree is JSON in which each array is
replaced by its number, and the arrays lie beside it. Every bit comes back: JSON numbers of Python are
exact, integers of any size and NaN included.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = dict[str, Any]

TREE = "tree"
ARRAY = "__array__"

_parsing = threading.Lock()  # of this process alone


class StateError(ValueError):
    """A file is no state, or not a whole one."""


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state to a new file.

    Raises:
        OSError: the disk is full or the like; what was written of the file is removed.
        TypeError: a leaf is none of the kinds above.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = json.dumps(_without_arrays(state, arrays))
    try:
        with path.open("wb") as file:
            named: dict[str, Any] = {TREE: np.frombuffer(tree.encode(), dtype=np.uint8), **arrays}
            np.savez(file, **named)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read_state(content: bytes) -> State:
    """Return the state in a file's content. Executes nothing from it.

    Raises:
        StateError: it is none, or not a whole one.
    """
    try:
        # numpy parses headers with ast, which CPython 3.11 does not do safely in several threads.
        with _parsing, np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        tree = json.loads(arrays.pop(TREE).tobytes())
        state = _with_arrays(tree, arrays)
    except Exception:  # zipfile, numpy and json each have a dozen ways to say that a file is not theirs
        raise StateError("it cannot be read") from None
    if not isinstance(state, dict):
        raise StateError("it holds no state")
    return state


def fill(array: NDArray[Any], saved: Any, name: str) -> None:
    """Copy a saved array into one that has been made for it.

    Raises:
        StateError: they differ in shape or type.
    """
    if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (array.shape, array.dtype):
        raise StateError(f"{name} has another size")
    np.copyto(array, saved)


def describe_file(path: Path) -> dict[str, Any]:
    """Bring a file to the disk, and return its size in bytes and its SHA-256."""
    with path.open("rb+") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": fingerprint}


def _without_arrays(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of objects is no state")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and key != ARRAY for key in value):
            raise TypeError(f"the keys of a state are text: {list(value)[:5]}")
        return {key: _without_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item, arrays) for item in value]
    return value


def _with_arrays(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {ARRAY}:
            return arrays[value[ARRAY]]
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value
