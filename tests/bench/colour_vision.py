"""How far apart two colours are for readers with and without a colour blindness."""

from __future__ import annotations

import numpy as np

# Machado, Oliveira and Fernandes 2009, full severity: protan, deutan, tritan; on linear RGB.
VISIONS = (
    np.eye(3),
    np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
)
# Ottosson 2020, OKLab: equal distances look equally large.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, two: str) -> float:
    """The ratio of WCAG 2."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05 for colour in (one, two))
    return high / low


def distance(one: str, two: str) -> float:
    """The smallest distance in OKLab over the four kinds of colour vision."""

    def lab(colour: str, vision: np.ndarray) -> np.ndarray:
        return TO_LAB @ np.cbrt(np.clip(TO_CONES @ (vision @ linear(colour)), 0, 1))

    return min(float(np.linalg.norm(lab(one, vision) - lab(two, vision))) for vision in VISIONS)
