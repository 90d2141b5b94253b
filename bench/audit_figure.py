"""The races of ``bench audit`` as a figure. Seaborn and matplotlib are loaded when it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.audit_tables import Result, at
from bench.write_paths import LOSES_NOTHING, PATHS, num_elements

MARKERS = dict(zip(PATHS, "osDXP", strict=True))

SMALLEST = 1e-7  # below this the axis is linear, so that an exact 0 has a place on it


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the lost share against workers, elements and work, and write it as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    base = results[0]
    width = {"hidden_size": base["hidden_size"]}
    work = {"work_milliseconds": base["work_milliseconds"]}
    number = results[-1]["workers"]  # of the races against the size and the work, which come last
    racing = [r for r in results if r["path"] not in LOSES_NOTHING and r["workers"] == number]
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, centre, right = figure.subplots(1, 3, sharey=True)
    _panel(left, at(results, **width, **work), "workers", "workers")
    sizes = [{**r, "elements": num_elements(r["hidden_size"])} for r in at(racing, **work)]
    _panel(centre, sizes, "elements", f"weights, with {number} workers")
    works = at(racing, **width)
    _panel(right, works, "work_milliseconds", f"ms between read and write, with {number} workers")
    elements = num_elements(base["hidden_size"])
    figure.suptitle(
        f"Element writes that are lost, as a share of those issued (left and right: {elements:,} "
        f"weights; left and centre: {base['work_milliseconds']:g} ms between read and write)",
        fontsize=11,
    )
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, format="png", dpi=150)


def _panel(axes: Any, results: Sequence[Result], name: str, label: str) -> None:
    import seaborn

    known = [r for r in results if r["audit"]["auditable"]]
    values = sorted({r[name] for r in known})
    paths = [path for path in PATHS if path in {r["path"] for r in known}]
    colours = dict(zip(PATHS, seaborn.color_palette("colorblind"), strict=False))
    seaborn.lineplot(
        x=[values.index(r[name]) for r in known],
        y=[r["audit"]["lost_fraction"] for r in known],
        hue=[r["path"] for r in known],
        style=[r["path"] for r in known],
        hue_order=paths,
        style_order=paths,
        palette=colours,
        markers={path: MARKERS[path] for path in paths},
        dashes=False,
        markersize=8,
        errorbar=None,
        legend="brief" if name == "workers" else False,
        ax=axes,
    )
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    axes.set_xticks(range(len(values)), [f"{value:,g}" for value in values])
    axes.set_xlim(-0.4, len(values) - 0.6)
    axes.set_yscale("symlog", linthresh=SMALLEST)
    axes.set_ylim(-SMALLEST / 2, 1.5)
    axes.set_yticks([0, *(10.0**-power for power in range(7, -1, -1))])
    axes.minorticks_off()
    nothing = [p for p in paths if not any(r["audit"]["writes_lost"] for r in known if r["path"] == p)]
    if nothing:  # their lines lie on each other
        axes.text(-0.35, SMALLEST / 6, f"0: {', '.join(nothing)}", fontsize=8)
    axes.set_xlabel(label)
    axes.set_ylabel("lost share (0 is exact)")
    axes.grid(axis="y", alpha=0.3)
