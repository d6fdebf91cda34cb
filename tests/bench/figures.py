"""What was measured: figures, the time of actions side by side, and how all of it is shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = ("duckdb", "numpy", "psycopg", "sqlglot", "sqlglotc")


@dataclass(frozen=True)
class Figure:
    """One number; `beside` is what it is compared with, measured in the same minute."""

    section: str
    name: str
    value: float
    unit: str
    beside: float | None = None
    rows: int | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.beside if self.beside else None


Show = Callable[[Figure], None]


def side_by_side(actions: Sequence[Callable[[], object]], *, seconds: float, least: int = 3) -> list[float]:
    """The median milliseconds of each action. They take turns, so that a busy minute slows all of them alike."""
    times: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()  # once for what is only slow the first time
    until = time.perf_counter() + seconds
    while len(times[0]) < least or (time.perf_counter() < until and len(times[0]) < 1_000):
        for action, taken in zip(actions, times, strict=True):
            started = time.perf_counter()
            action()
            taken.append((time.perf_counter() - started) * 1_000)
    return [statistics.median(taken) for taken in times]


def line(figure: Figure) -> str:
    """One figure for people."""
    rows = "" if figure.rows is None else f"{figure.rows:,} rows"
    beside = "" if figure.beside is None else f"{figure.beside:11,.2f}"
    ratio = "" if figure.ratio is None else f"{figure.ratio:8.2f}x"
    measured = f"{figure.value:13,.2f} {figure.unit:<6}"
    return f"{figure.section:<18} {rows:>15}  {figure.name:<58} {measured} {beside:>11} {ratio}".rstrip()


HEADER = f"{'':<18} {'':>15}  {'':<58} {'measured':>13} {'':<6} {'beside':>11} {'ratio':>8}"


def machine() -> Mapping[str, object]:
    """Where it was measured."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
    } | {name: found for name in _LIBRARIES if (found := _version(name)) is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def write_json(path: Path, figures: Sequence[Figure]) -> None:
    rows = [asdict(figure) | {"ratio": figure.ratio} for figure in figures]
    path.write_text(json.dumps({"machine": dict(machine()), "figures": rows}, indent=2) + "\n")


def plot(path: Path, figures: Sequence[Figure]) -> None:
    """Cost against size: a panel for each engine, a line for each query, dpsql's own beside the raw ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Page

    panels: dict[str, dict[str, list[Figure]]] = defaultdict(lambda: defaultdict(list))
    for figure in figures:
        if figure.rows is not None and figure.beside is not None:
            panels[figure.section][figure.name].append(figure)
    across = min(max(1, len(panels)), 2)
    down = -(-max(1, len(panels)) // across)
    page = Page(figsize=(8 * across, 9 * down), layout="constrained")
    FigureCanvasAgg(page)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colours = {name: f"C{i % 10}" for i, name in enumerate(names)}
    markers = {name: "os^"[i // 10] for i, name in enumerate(names)}  # colours are used again with another mark
    for number, (section, lines) in enumerate(panels.items(), 1):
        axes = page.add_subplot(down, across, number)
        for name, points in lines.items():
            sizes = [point.rows for point in points]
            look = {"color": colours[name], "marker": markers[name], "markersize": 5}
            axes.loglog(sizes, [point.value for point in points], label=name, **look)
            axes.loglog(sizes, [point.beside for point in points], linestyle=":", **look)
        axes.set(title=f"{section}: dpsql, and dotted the raw engine", xlabel="rows", ylabel="milliseconds")
        axes.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    page.savefig(path)
