"""A picture of the table: how far off each system is, query by query; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.accuracy.measure import DPSQL, NAIVE, OPENDP, ORACLE, SMARTNOISE, Line

_MARKS = {
    DPSQL: ("o", "#c1272d", 60, 5),
    SMARTNOISE: ("s", "#1b6ca8", 34, 3),
    OPENDP: ("^", "#2e8b57", 40, 3),
    NAIVE: ("x", "#8c8c8c", 30, 2),
    ORACLE: ("|", "#000000", 90, 4),
}


def plot(path: Path, lines: Sequence[Line]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Page

    answered = [line for line in lines if any(figure.value is not None for figure in line.figures.values())]
    errors = [line for line in answered if not line.case.unknown]
    keys = [line for line in answered if line.case.unknown]
    heights = [len(errors) + 2, len(keys) + 2]
    page = Page(figsize=(10, 0.21 * sum(heights) + 1), layout="constrained")
    FigureCanvasAgg(page)
    above, below = page.subplots(2, 1, height_ratios=heights)
    _panel(above, errors, "median relative error, total epsilon 1, delta 1e-6 (left is better)", 100, 1e-4)
    above.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    above.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=len(_MARKS), frameon=False)
    _panel(below, keys, "unknown keys returned (right is better)", 1)
    below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    below.xaxis.set_minor_formatter(lambda _value, _: "")
    page.savefig(path)


def _panel(axes: Any, lines: Sequence[Line], title: str, factor: float, least: float = 1) -> None:
    """Values below `least` are drawn there."""
    names = [line.case.label + (" *" if line.case.held_out else "") for line in lines]
    places = list(range(len(lines)))[::-1]
    for system, (mark, colour, size, depth) in _MARKS.items():
        points = [
            (figure.value * factor, place)
            for line, place in zip(lines, places, strict=True)
            if (figure := line.figures.get(system)) is not None and figure.value is not None
        ]
        if points:
            across, up = zip(*points, strict=True)
            axes.scatter(
                [max(value, least) for value in across],
                up,
                marker=mark,
                color=colour,
                s=size,
                zorder=depth,
                label=system,
            )
    axes.set_xscale("log")
    axes.set_yticks(places, names, fontsize="x-small")
    axes.set_ylim(-1, len(lines))
    axes.set_xlabel(title)
    axes.grid(axis="both", alpha=0.25)
