"""A picture of the audit: for each query, one noisy number with and without the person, as two outlines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from dpsql.audit import Finding
from dpsql.audit.losses import Trials

_WIDTH, _HEIGHT, _GAP, _COLUMNS = 260, 130, 16, 4
_BARS, _FEWEST = 48, 5
_HEAD = 58
_WITH, _WITHOUT, _DEFECT, _INK, _PALE = "#c2410c", "#1d4ed8", "#b91c1c", "#1f2937", "#6b7280"


def picture(findings: Sequence[Finding], currency: str) -> str:
    """A self-contained SVG."""
    rows = -(-len(findings) // _COLUMNS)
    width = _COLUMNS * (_WIDTH + _GAP) + _GAP
    height = _HEAD + rows * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="system-ui, sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_GAP}" y="24" font-size="15" fill="{_INK}">One noisy number of each answer,'
        f' <tspan fill="{_WITH}">with one person</tspan> and <tspan fill="{_WITHOUT}">without</tspan></text>',
        f'<text x="{_GAP}" y="43" fill="{_PALE}">The closer the two outlines, the less an answer reveals. '
        f"Under each name: {currency} shown of {currency} claimed.</text>",
    ]
    for number, finding in enumerate(findings):
        x = _GAP + number % _COLUMNS * (_WIDTH + _GAP)
        y = _HEAD + number // _COLUMNS * (_HEIGHT + _GAP)
        parts += _frame(finding, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _frame(finding: Finding, x: int, y: int) -> list[str]:
    question = finding.question
    colour = _DEFECT if finding.is_defect else _INK
    keys = "" if question.keys == "none" else f"; {question.keys} keys"
    name = escape(f"{question.tables}: {question.aggregate}")
    told = f"{finding.shown:.2f} of {finding.claimed:.2f}" + ("" if finding.has_power else ", no power") + keys
    base, top = y + _HEIGHT - 6, y + 36
    outlines = _outlines(*finding.distributions)
    return [
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" fill="#f9fafb" stroke="{colour}"'
        ' stroke-opacity="0.25"/>',
        f'<text x="{x + 8}" y="{y + 16}" fill="{colour}">{name}</text>',
        f'<text x="{x + 8}" y="{y + 30}" fill="{_PALE}">{told}</text>',
        *(
            f'<path d="{_path(heights, x + 8, base, _WIDTH - 16, base - top)}"'
            f' fill="{ink}" fill-opacity="0.12" stroke="{ink}"/>'
            for heights, ink in zip(outlines, (_WITH, _WITHOUT), strict=True)
        ),
    ]


def _outlines(one: Trials, other: Trials) -> tuple[Sequence[float], Sequence[float]]:
    """Histograms over one range, with highest bar 1. A sum that is missing in a trial is in no bar."""
    known = [trials[~np.isnan(trials)] for trials in (one, other)]
    both = np.concatenate(known)
    if not both.size:
        return [0.0] * _BARS, [0.0] * _BARS
    low, high = np.quantile(both, [0.001, 0.999])
    # Bar widths are whole multiples of the sums' grid step; others would look like a comb.
    values = np.unique(both)
    grain = float(np.diff(values).min()) if values.size > 1 else 1.0
    width = max(math.ceil((high - low) / grain / _BARS), 1) * grain
    bars = max(math.ceil((high - low + grain) / width), _FEWEST)
    edges = low - grain / 2 + width * np.arange(bars + 1)
    counts = [np.histogram(trials, edges)[0] for trials in known]
    most = max(1, *(int(each.max()) for each in counts))
    return (counts[0] / most).tolist(), (counts[1] / most).tolist()


def _path(heights: Sequence[float], x: float, base: float, width: float, height: float) -> str:
    step = width / len(heights)
    points = [f"M{x:.1f},{base:.1f}"]
    for number, each in enumerate(heights):
        level = base - each * height
        points.append(f"L{x + number * step:.1f},{level:.1f} L{x + (number + 1) * step:.1f},{level:.1f}")
    return " ".join([*points, f"L{x + width:.1f},{base:.1f} Z"])
