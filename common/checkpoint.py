"""Saved models: a plain torch ``state_dict`` that ``torch.load(..., weights_only=True)`` reads."""

from __future__ import annotations

import os
import pickle
import pickletools
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from common.acting import NetworkSpec, parameter_views
from common.config import ConfigError
from common.types import FloatArray


def save_model(path: Path, spec: NetworkSpec, vector: FloatArray) -> None:
    """Write ``vector`` ``[P]`` as a ``state_dict``: whole, or not at all.

    Written without torch: the supervisor saves the models, and loading torch just for that would
    cost it 200 MiB and the better part of the 3 seconds in which Ctrl-C has to end a run.
    """
    temporary = path.with_name(path.name + ".tmp")
    tensors = parameter_views(spec, vector)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("model/data.pkl", _pickled_state_dict(tensors))
            archive.writestr("model/byteorder", sys.byteorder)
            for key, tensor in enumerate(tensors.values()):
                archive.writestr(f"model/data/{key}", tensor.astype(np.float32).tobytes())
            archive.writestr("model/version", "3\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # it is still there only if the disk was full or the like


def _pickled_state_dict(tensors: Mapping[str, FloatArray]) -> bytes:
    """Return what ``torch.save`` pickles for a dictionary of contiguous float32 tensors.

    A tensor is a call of ``_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad,
    hooks)``, and its storage a persistent id that names a file of the archive. The parts between are
    plain values, pickled the usual way; the codes are those of ``pickletools``.
    """
    parts = [b"\x80\x02}("]
    for key, (name, tensor) in enumerate(tensors.items()):
        strides = tuple(step // tensor.itemsize for step in np.empty(tensor.shape, np.float32).strides)
        parts += [
            _pickled(name),
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            _pickled("storage") + b"ctorch\nFloatStorage\n" + _pickled(str(key)) + _pickled("cpu"),
            _pickled(tensor.size) + b"tQ",
            _pickled(0) + _pickled(tensor.shape) + _pickled(strides),
            b"\x89ccollections\nOrderedDict\n)RtR",
        ]
    return b"".join(parts) + b"u."


def _pickled(value: str | int | tuple[int, ...]) -> bytes:
    """Return a value's pickle without the protocol header, the memo and the final stop."""
    plain = pickletools.optimize(pickle.dumps(value, protocol=2))
    return plain[2:-1]


def load_model(path: Path, spec: NetworkSpec) -> FloatArray:
    """Return the flat weights ``[P]`` of a saved model. Executes nothing from the file.

    Raises:
        ConfigError: the file is missing, damaged, or of another network.
    """
    import torch

    if not path.is_file():
        raise ConfigError(f"there is no saved model {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            intact = archive.testzip() is None  # torch itself does not look at the checksums
        state = torch.load(path, weights_only=True) if intact else {}
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    except Exception:  # torch's own messages advise to load the file unsafely
        state = {}
    if not state:
        raise ConfigError(f"{path} is not a saved model, or it is damaged")
    if shapes != dict(spec.layout()):
        differing = dict(shapes.items() ^ dict(spec.layout()).items())
        raise ConfigError(f"{path} is a model of another network: {min(differing)} differs")
    vector = np.empty(spec.num_parameters, dtype=np.float32)
    for name, view in parameter_views(spec, vector).items():
        view[...] = state[name].numpy()
    return vector
