"""Trials of keys that are chosen before they are counted: those with most people (`privacy.top`).

As for the most common value, the audit brings the other people. Of as many keys of the one person's as are chosen, and
as many that the person does not have, the others are so much more common that without the person each of them is chosen
in about four of five cases. What the person adds comes from the engine; the choices, and the noise on the counts that
they show, are the product's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpsql.audit.losses import Trials
from dpsql.noise.apply import add_noise
from dpsql.noise.samplers import Sampler
from dpsql.release import Measurement
from dpsql.tables import ExactTable, NoisyTable
from dpsql.types import Value

Counts = dict[tuple[Value, ...], int]  # units by key


def most_scores(
    measurement: Measurement, one: Sequence[ExactTable], other: Sequence[ExactTable], sampler: Sampler, trials: int
) -> tuple[tuple[Trials, Trials], tuple[Trials, Trials]]:
    """Scores of what is chosen with the person and without, and the noisy counts that are shown."""
    with_unit, without = _counts(one), _counts(other)
    added = {key: with_unit.get(key, 0) - without.get(key, 0) for key in measurement.every_cell}
    assert measurement.top is not None
    ordered = sorted(added, key=lambda key: -added[key])
    mine, rivals = ordered[: measurement.top.keys], ordered[-measurement.top.keys :]
    if added[mine[0]] == added[rivals[-1]]:
        nothing = np.zeros(trials)
        return (nothing, nothing), (nothing, nothing)
    ahead = math.ceil(1.5 * float(measurement.top.noise.scale))
    others = dict.fromkeys(mine, 0) | dict.fromkeys(rivals, ahead)
    both = {key: others[key] + added[key] for key in others}
    # Keys that nobody has would be chosen now and then, and tell nothing.
    asked = replace(measurement, cells=tuple(others), remainder=())
    drawn = [_drawn(asked, counts, sampler, trials) for counts in (both, others)]
    found = [np.array([_score(asked, table, others, added) for table in tables]) for tables in drawn]
    shown = [np.array([table.sums[0].sum() for table in tables], dtype=np.float64) for tables in drawn]
    return (found[0], found[1]), (shown[0], shown[1])


def _counts(tables: Sequence[ExactTable]) -> Counts:
    (table,) = tables
    return dict(zip(table.keys, table.sums[0].tolist(), strict=True))


def _drawn(measurement: Measurement, counts: Counts, sampler: Sampler, trials: int) -> list[NoisyTable]:
    table = ExactTable(tuple(counts), (np.array(list(counts.values()), dtype=np.int64),))
    return [add_noise(measurement, [table], sampler) for _ in range(trials)]


def _score(measurement: Measurement, table: NoisyTable, others: Counts, added: Counts) -> float:
    """The log of the likelihood ratio, of the choices (but for what all have in common) and of the counts shown."""
    assert measurement.top is not None
    (noise,), total = measurement.noises, 0.0
    for key, value in zip(table.keys, table.sums[0].tolist(), strict=True):
        total += added[key] / float(measurement.top.noise.scale)
        far, near = abs(value - others[key]), abs(value - others[key] - added[key])
        if noise.law == "laplace":
            total += (far - near) / float(noise.scale)
        else:
            total += (far**2 - near**2) / (2 * float(noise.scale))
    return total
