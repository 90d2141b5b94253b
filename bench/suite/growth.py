"""How time grows with workers, capacity, batch, width and lanes, from a saved session.

    pytest bench/suite --benchmark-only --benchmark-json suite.json
    python -m bench.suite.growth suite.json

The slope in a log-log diagram: 0 does not grow, 1 grows in proportion, -1 is halved when there is twice
as much. The line is rarely straight: a fixed cost hides the growth at first, so the last slope, between
the two largest values, stands beside that of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from bench.suite.saved import Result, duration, read
from common.config import ConfigError

HEADERS = ("what", "axis", "from, to", "time, first to last", "slope", "last slope")
Point = tuple[float, float]


class Growth(NamedTuple):
    """One line of points: (value on the axis, median seconds)."""

    series: str
    axis: str
    points: list[Point]


def lines_of(results: Iterable[Result]) -> list[Growth]:
    """Return every series of at least two points, in order of the axis."""
    found: dict[tuple[str, str], list[Point]] = {}
    for result in results:
        if "series" in result.extra:
            key = (result.extra["axis"], result.extra["series"])
            found.setdefault(key, []).append((float(result.extra["at"]), result.median_seconds))
    return [
        Growth(series, axis, sorted(points))
        for (axis, series), points in sorted(found.items())
        if len(points) > 1
    ]


def slope(points: Sequence[Point]) -> float:
    """Return the least-squares slope of log(seconds) over log(value)."""
    x = [math.log(at) for at, _ in points]
    y = [math.log(seconds) for _, seconds in points]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return products / sum((a - x_mean) ** 2 for a in x)


def row(line: Growth) -> tuple[str, ...]:
    """Return a table row."""
    (first, first_seconds), (last, last_seconds) = line.points[0], line.points[-1]
    return (
        line.series,
        line.axis,
        f"{first:,.0f} to {last:,.0f}",
        f"{duration(first_seconds)} to {duration(last_seconds)}",
        f"{slope(line.points):+.2f}",
        f"{slope(line.points[-2:]):+.2f}",
    )


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def main(file: Path) -> None:
    """Print how the time of each part grows, as a slope in a log-log diagram.

    Example: python -m bench.suite.growth suite.json
    """
    try:
        lines = lines_of(read(file).results)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    rows = [HEADERS, *(row(line) for line in lines)]
    widths = [max(len(each[i]) for each in rows) for i in range(len(HEADERS))]
    for each in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)))


if __name__ == "__main__":
    main()
