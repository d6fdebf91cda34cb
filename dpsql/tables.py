"""Exact tables, which stay inside, and noisy ones, which may leave. Separate types, so that they cannot be confused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from dpsql.types import Cell, Type, Value

Integers = npt.NDArray[np.int64]


def columns_of(keys: Sequence[tuple[Value, ...]]) -> list[list[Value]]:
    """Keys column by column; none for no keys. (Unpacking all of them into `zip` takes ten times as long.)"""
    return [list(map(itemgetter(i), keys)) for i in range(len(keys[0]))] if keys else []


@dataclass(frozen=True, slots=True)
class ExactTable:
    """What the engine returned: group keys and exact integer sums. Private: never logged, never encoded."""

    keys: tuple[tuple[Value, ...], ...] = field(repr=False)
    sums: tuple[Integers, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class NoisyTable:
    """Released keys and noisy integers. Everything after this point is post-processing."""

    keys: tuple[tuple[Value, ...], ...]
    sums: tuple[Integers, ...]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class ResultTable:
    """The rows of an answer, computed from noisy and public tables only."""

    names: tuple[str, ...]
    types: tuple[Type, ...]
    rows: list[tuple[Cell, ...]]
