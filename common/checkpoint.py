"""Saved models: a plain torch ``state_dict`` that ``torch.load(..., weights_only=True)`` reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from common.acting import NetworkSpec, parameter_views
from common.config import ConfigError
from common.types import FloatArray


def save_model(path: Path, spec: NetworkSpec, vector: FloatArray) -> None:
    """Write ``vector`` ``[P]`` as a ``state_dict``: whole, or not at all."""
    import torch

    from common.network import state_dict_of

    temporary = path.with_name(path.name + ".tmp")
    torch.save(state_dict_of(spec, vector), temporary)
    os.replace(temporary, path)


def load_model(path: Path, spec: NetworkSpec) -> FloatArray:
    """Return the flat weights ``[P]`` of a saved model. Executes nothing from the file.

    Raises:
        ConfigError: the file is missing, damaged, or of another network.
    """
    import torch

    if not path.is_file():
        raise ConfigError(f"there is no saved model {path}")
    try:
        state = torch.load(path, weights_only=True)
        vector = np.empty(spec.num_parameters, dtype=np.float32)
        for name, view in parameter_views(spec, vector).items():
            view[...] = state.pop(name).numpy()
    except Exception as error:
        raise ConfigError(
            f"{path} is not a model of this network: {' '.join(str(error).split())[:200]}"
        ) from None
    if state:
        raise ConfigError(f"{path} has parameters this network lacks: {sorted(state)}")
    return vector
