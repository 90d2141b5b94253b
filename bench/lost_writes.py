"""``lost_writes.npz``: how many writes each single weight lost, for the heat map in a report.

It holds ``lost`` ``[P]``, in the order of the flat weight vector, and ``layout``, a JSON text with the
name and the shape of each part. It is written only when something was lost.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.types import IntArray, RunResult

LOST_WRITES = "lost_writes.npz"
MAX_ELEMENTS = 2**22  # 16 MiB before compression; a larger network's map could not be looked at


class LostWrites(NamedTuple):
    """Lost writes of one part of the weights.

    Attributes:
        name: the parameter's name, as in ``model.pt``.
        lost: in the parameter's own shape.
    """

    name: str
    lost: IntArray


def write_lost_writes(folder: Path, result: RunResult) -> None:
    """Write the file into a run's folder, if any write was lost."""
    lost = result.lost_by_element
    if lost is None or not lost.any() or len(lost) > MAX_ELEMENTS:
        return
    smallest = np.min_scalar_type(int(lost.max()))
    layout = np.array(json.dumps(result.layout))
    np.savez_compressed(folder / LOST_WRITES, lost=lost.astype(smallest), layout=layout)


def load_lost_writes(folder: Path) -> list[LostWrites]:
    """Return the lost writes part by part; nothing if there is no file or it is not one of ours."""
    try:
        with np.load(folder / LOST_WRITES, allow_pickle=False) as file:
            lost, layout = file["lost"].astype(np.int64), json.loads(str(file["layout"]))
        sizes = [math.prod(shape) for _, shape in layout]
        if sum(sizes) != len(lost):
            return []
        parts = np.split(lost, np.cumsum(sizes)[:-1])
        return [
            LostWrites(str(name), part.reshape(shape))
            for (name, shape), part in zip(layout, parts, strict=True)
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error):
        return []
