"""How figures are shown: a table for people, JSON for machines, and what was missed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.accuracy.asked import Case
from tests.accuracy.measure import DPSQL, EXACT, SYSTEMS, Figure, Line, combined

HEADER = "| data | query | " + " | ".join(SYSTEMS) + " | ratio | wanted |"
RULE = "| --- | --- |" + " ---: |" * (len(SYSTEMS) + 2)


def row(line: Line) -> str:
    """One line of the table."""
    case = line.case
    shown = [_figure(case, line.figures.get(system)) for system in SYSTEMS]
    ratio = "" if line.ratio is None else f"{line.ratio:.2g}x" if line.ratio < 10 else f"{line.ratio:,.0f}x"
    if line.missed:
        ratio = f"**{ratio}**"
    wanted = f"{case.better:.2g}x" if case.better > 1 else ""
    data = f"{case.data}{' *' if case.held_out else ''}"
    return f"| {data} | {case.name} | {' | '.join(shown)} | {ratio} | {wanted} |"


def _figure(case: Case, figure: Figure | None) -> str:
    if figure is None:
        return ""
    if figure.value is None:
        return "cannot"
    return f"{figure.value:,.0f} keys" if case.unknown else percent(figure.value)


def percent(value: float) -> str:
    """Two digits that count."""
    if value <= EXACT:
        return "exact"
    shown = value * 100
    digits = 0 if shown >= 10 else 1 if shown >= 1 else 2 if shown >= 0.1 else 3 if shown >= 0.01 else 4
    return f"{shown:,.{digits}f} %"


def table(lines: Sequence[Line]) -> str:
    return "\n".join([HEADER, RULE, *(row(line) for line in lines)])


def refusals(lines: Sequence[Line]) -> list[str]:
    """In the words of each system, why it gave no answer."""
    found: dict[str, list[str]] = {}
    for line in lines:
        for system, figure in line.figures.items():
            if figure.refused:
                found.setdefault(f"{system}: {figure.refused}", []).append(line.case.label)
    return [f"{words} ({', '.join(labels)})" for words, labels in found.items()]


def missed(lines: Sequence[Line]) -> list[str]:
    said = []
    for line in lines:
        if line.missed and line.ratio is not None:
            said.append(f"{line.case.label}: {line.ratio:.2f}x, wanted {line.case.better:.2f}x")
        if line.figures.get(DPSQL, Figure(0)).refused:
            said.append(f"{line.case.label}: dpsql gives no answer")
    return said


def write_json(path: Path, lines: Sequence[Line], about: Mapping[str, Any]) -> None:
    rows = [
        {
            "data": line.case.data,
            "query": line.case.name,
            "accounting": line.case.accounting,
            "held_out": line.case.held_out,
            "wanted": line.case.better,
            "ratio": line.ratio,
            "figures": {system: asdict(figure) for system, figure in line.figures.items()},
        }
        for line in lines
    ]
    path.write_text(json.dumps({"about": dict(about), "lines": rows}, indent=1) + "\n")


def read_json(path: Path) -> tuple[dict[str, dict[str, Figure]], dict[str, Any]]:
    """The figures of an earlier run by case and system, and what it said about itself."""
    if not path.exists():
        return {}, {}
    stored = json.loads(path.read_text())
    figures = {
        f"{line['data']}: {line['query']}": {system: Figure(**figure) for system, figure in line["figures"].items()}
        for line in stored["lines"]
    }
    for figure in (figure for found in figures.values() for figure in found.values()):
        figure.value = combined(figure.parts) if figure.parts else figure.value
    return figures, stored["about"]
