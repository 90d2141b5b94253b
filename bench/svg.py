"""Figures as files and as part of a page that is light or dark as its reader prefers."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bench.palette import variables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 160


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write ``name.png`` and ``name.svg`` into a folder and return the SVG's text."""
    svg = svg_text(figure)
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    figure.set_layout_engine("none")  # everything is in its place by now
    figure.savefig(folder / f"{name}.png", dpi=PNG_DPI)
    return svg


def svg_text(figure: Figure) -> str:
    """Return a figure as SVG without a date, so that the same data give the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline_svg(svg: str, name: str, label: str) -> str:
    """Return an SVG as an element of a page: named for screen readers, coloured by CSS variables.

    Args:
        svg: as matplotlib wrote it, in the light colours of ``bench.palette``.
        name: of the figure; goes before every id, so that figures on one page do not share any.
        label: what a screen reader says, escaped for an attribute.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", body)  # equal images have equal ones
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", body)
    names = {colour.light.lower(): variable for variable, colour in variables().items()}
    body = re.sub(
        r"#[0-9a-f]{6}\b",
        lambda found: f"var(--{names[found[0]]})" if found[0] in names else found[0],
        body,
    )
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body)[0]
    head = f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}">'
    return head + body[body.index(">") + 1 :]
