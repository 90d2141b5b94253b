"""Draws the rounds of a saved session: one panel for each table, one line for each benchmark.

    pytest bench/suite --benchmark-only --benchmark-json suite.json
    python -m bench.suite.histogram suite.json --group update --output update.png

A median hides two things that a picture shows: whether a benchmark has one typical time or two, and
whether two benchmarks overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.suite.saved import Result, Saved, read
from common.config import ConfigError

# The slowest rounds are not shown: on a shared machine they are a hundred times slower than the rest
# and would leave no room for it.
SHOWN_QUANTILE = 0.9
PANEL_INCHES = (8.0, 2.6)
FORMATS = (".png", ".svg", ".pdf")


def draw(saved: Saved, group: str, output: Path) -> int:
    """Draw the tables whose name begins with ``group``; return how many.

    Raises:
        ConfigError: there is no such table, or the file has no rounds.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn

    groups = {
        name: results
        for name, results in saved.groups.items()
        if name.startswith(group) and any(len(each.seconds) > 1 for each in results)
    }
    if not groups:
        raise ConfigError(
            f"no table whose name begins with {group!r} has more than one round; there are: "
            f"{', '.join(saved.groups)}"
        )
    with seaborn.axes_style("whitegrid"):
        width, height = PANEL_INCHES
        figure, axes = plt.subplots(
            len(groups), 1, figsize=(width, height * len(groups)), squeeze=False, layout="constrained"
        )
        for axis, (name, results) in zip(axes[:, 0], groups.items(), strict=True):
            _panel(axis, name, results)
        figure.savefig(output, dpi=120)
        plt.close(figure)
    return len(groups)


def _panel(axis: Any, name: str, results: list[Result]) -> None:
    import numpy as np
    import seaborn
    from matplotlib.ticker import LogLocator, NullFormatter

    microseconds = {
        each.name.removeprefix("test_"): 1e6 * np.array(each.seconds)
        for each in results
        if len(each.seconds) > 1
    }
    shown = {
        label: values[values <= np.quantile(values, SHOWN_QUANTILE)]
        for label, values in microseconds.items()
    }
    seaborn.histplot(
        shown,
        ax=axis,
        element="step",
        stat="percent",
        common_norm=False,
        bins=60,
        log_scale=True,
        palette="colorblind",
        alpha=0.35,
    )
    axis.set(title=name, xlabel="microseconds a call", ylabel="% of its rounds")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    seaborn.move_legend(axis, "upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, title=None)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--group", default="", metavar="TEXT", help="Only tables whose name begins with this.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("histogram.png"),
    show_default=True,
    metavar="FILE",
    help="The picture: .png, .svg or .pdf.",
)
def main(file: Path, group: str, output: Path) -> None:
    """Draw the rounds of a saved session, a panel for each table; the slowest tenth is left out.

    Example: python -m bench.suite.histogram suite.json --group update --output update.png
    """
    try:
        if output.suffix.lower() not in FORMATS:
            raise ConfigError(f"the picture {output} must end in one of {', '.join(FORMATS)}")
        number = draw(read(file), group, output)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"{number} tables drawn in {output}")


if __name__ == "__main__":
    main()
