"""The door from exact to noisy: which cells come out, in which order, with whose noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from fractions import Fraction

import numpy as np
import pytest

from dpsql.lowering.bounding import Branch
from dpsql.lowering.query import EngineQuery
from dpsql.noise.add_noise import add_noise
from dpsql.noise.samplers import Exact, Losses
from dpsql.privacy.accounting import Price
from dpsql.privacy.bounds import Interval
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.sums import Sums
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind
from dpsql.privacy.stability import Derivation, Sensitivity, Stability
from dpsql.release import Measurement
from dpsql.tables import ExactTable, Integers
from dpsql.types import Value

Key = tuple[Value, ...]

LAPLACE = Noise("laplace", Fraction(3))
GAUSSIAN = Noise("gaussian", Fraction(7))


@dataclass
class Sampler:
    """Hands out what `noise` says for each size, and remembers what was asked."""

    noise: Callable[[int], list[int]] = lambda size: [0] * size
    asked: list[tuple[str, Fraction, int]] = field(default_factory=list)

    def discrete_laplace(self, scale: Fraction, size: int) -> Integers:
        return self._draw("laplace", scale, size)

    def discrete_gaussian(self, variance: Fraction, size: int) -> Integers:
        return self._draw("gaussian", variance, size)

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        raise AssertionError(f"sums are not chosen: {widths}, {losses}, {scale}, {exact}")

    def salt(self) -> str:
        raise AssertionError("noise needs no salt")

    def _draw(self, law: str, scale: Fraction, size: int) -> Integers:
        self.asked.append((law, scale, size))
        return np.array(self.noise(size), dtype=np.int64)


def _statistic(factor: int = 1) -> Statistic:
    one = Fraction(1)
    return Statistic(
        StatisticKind.UNITS,
        None,
        None,
        Interval(Fraction(0), one),
        0,
        1,
        one,
        factor,
        factor,
        Sensitivity(1, one, one, one),
    )


def _measurement(
    cells: tuple[Key, ...] | None,
    noises: tuple[Noise, ...] = (LAPLACE,),
    *,
    factors: tuple[int, ...] | None = None,
    threshold: int | None = None,
    branches: tuple[tuple[int, ...], ...] | None = None,
) -> Measurement:
    """A measurement of which only the noise step is looked at; where keys are unknown, its first sum counts units."""
    places = branches or (tuple(range(len(noises))),)
    return Measurement(
        keys=(),
        cells=cells,
        bound=Cells(True, 1, True),
        statistics=tuple(map(_statistic, factors or (1,) * len(noises))),
        groups=tuple((i,) for i in range(len(noises))),
        noises=noises,
        mechanism=Sums() if threshold is None else PartitionSelection(0, threshold),
        branches=tuple(Branch(EngineQuery("", 1), numbers) for numbers in places),
        stages=(),
        derivation=Derivation("scan", Stability(1, True, {})),
        price=Price(1),
    )


def _exact(rows: dict[Value, tuple[int, ...]]) -> ExactTable:
    columns = zip(*rows.values(), strict=True)
    return ExactTable(tuple((key,) for key in rows), tuple(np.array(column, dtype=np.int64) for column in columns))


def _listed(columns: tuple[Integers, ...]) -> list[list[int]]:
    return [column.tolist() for column in columns]


ABC: tuple[Key, ...] = (("a",), ("b",), ("c",))


# --- declared keys ---


def test_every_declared_cell_comes_out_in_order_zeros_included() -> None:
    noisy = add_noise(_measurement(ABC), [_exact({"c": (3,), "a": (1,)})], Sampler())
    assert noisy.keys == ABC
    assert _listed(noisy.sums) == [[1, 0, 3]]


def test_a_cell_without_rows_gets_noise_like_any_other() -> None:
    sampler = Sampler(lambda size: list(range(10, 10 + size)))
    noisy = add_noise(_measurement(ABC), [_exact({"c": (3,)})], sampler)
    assert _listed(noisy.sums) == [[10, 11, 15]]
    assert sampler.asked == [("laplace", Fraction(3), 3)]


def test_no_row_at_all_gives_the_same_shape() -> None:
    empty = ExactTable((), (np.array([], dtype=np.int64),))
    noisy = add_noise(_measurement(ABC), [empty], Sampler())
    assert noisy.keys == ABC
    assert _listed(noisy.sums) == [[0, 0, 0]]


def test_a_key_that_was_not_declared_does_not_come_out() -> None:
    noisy = add_noise(_measurement(ABC), [_exact({"z": (9,), "b": (2,)})], Sampler())
    assert noisy.keys == ABC
    assert _listed(noisy.sums) == [[0, 2, 0]]


def test_null_is_a_cell_where_it_is_declared() -> None:
    noisy = add_noise(_measurement((("a",), (None,))), [_exact({None: (4,), "a": (1,)})], Sampler())
    assert _listed(noisy.sums) == [[1, 4]]


def test_each_sum_gets_its_own_noise_of_its_own_law() -> None:
    sampler = Sampler()
    add_noise(_measurement(ABC, (LAPLACE, GAUSSIAN)), [_exact({"a": (1, 2)})], sampler)
    assert sampler.asked == [("laplace", Fraction(3), 3), ("gaussian", Fraction(7), 3)]


def test_sums_of_several_queries_meet_in_their_cells() -> None:
    measurement = _measurement(ABC, (LAPLACE, LAPLACE, LAPLACE), branches=((0, 2), (1,)))
    exact = [_exact({"b": (1, 3), "a": (4, 6)}), _exact({"c": (5,), "a": (7,)})]
    assert _listed(add_noise(measurement, exact, Sampler()).sums) == [[4, 1, 0], [7, 0, 5], [6, 3, 0]]


# --- unknown keys ---


def test_keys_below_the_threshold_are_dropped_and_those_at_it_kept() -> None:
    measurement = _measurement(None, threshold=5)
    noisy = add_noise(measurement, [_exact({"d": (4,), "e": (5,), "f": (6,)})], Sampler())
    assert noisy.keys == (("e",), ("f",))
    assert _listed(noisy.sums) == [[5, 6]]


def test_the_noisy_count_decides_not_the_exact_one() -> None:
    sampler = Sampler(lambda size: [+3, -3][:size])
    noisy = add_noise(_measurement(None, threshold=5), [_exact({"a": (2,), "b": (7,)})], sampler)
    assert noisy.keys == (("a",),)


def test_the_count_that_chose_a_key_is_the_count_that_is_shown() -> None:
    """A second draw for the same count would cost twice; a dropped key's count is never shown."""
    sampler = Sampler(lambda size: list(range(size)))
    measurement = _measurement(None, (LAPLACE, GAUSSIAN), threshold=5)
    noisy = add_noise(measurement, [_exact({"a": (4, 40), "b": (4, 50), "c": (4, 60)})], sampler)
    assert noisy.keys == (("b",), ("c",))
    assert _listed(noisy.sums) == [[5, 6], [50, 61]]
    assert [law for law, _, _ in sampler.asked] == ["laplace", "gaussian"]


def test_the_threshold_is_in_fixed_point_where_weights_are() -> None:
    measurement = _measurement(None, factors=(1024,), threshold=2048)
    noisy = add_noise(measurement, [_exact({"a": (2047,), "b": (2048,)})], Sampler())
    assert noisy.keys == (("b",),)
    assert _listed(noisy.sums) == [[2]]


def test_noise_that_is_cut_off_is_drawn_again_where_it_is_beyond() -> None:
    rounds = iter([[9, -4, 4, -5], [5, 1], [-3]])
    sampler = Sampler(lambda size: next(rounds)[:size])
    measurement = _measurement((("a",), ("b",), ("c",), ("d",)), (Noise("laplace", Fraction(3), 4),))
    noisy = add_noise(measurement, [_exact({"a": (0,)})], sampler)
    assert _listed(noisy.sums) == [[-3, -4, 4, 1]]
    assert [size for _, _, size in sampler.asked] == [4, 2, 1]


def test_a_key_that_no_unit_count_knows_is_never_a_candidate() -> None:
    measurement = _measurement(None, (LAPLACE, LAPLACE), threshold=1, branches=((0,), (1,)))
    exact = [_exact({"a": (3,)}), _exact({"b": (100,), "a": (2,)})]
    noisy = add_noise(measurement, exact, Sampler())
    assert noisy.keys == (("a",),)
    assert _listed(noisy.sums) == [[3], [2]]


@pytest.mark.parametrize(
    "keys",
    [
        ["b", "c", None, "a"],
        [3, -1, None, 2],
        [2.5, -1.0, 0.0],
        [True, None, False],
        [date(2020, 1, 2), None, date(2019, 5, 1)],
        [datetime(2020, 1, 2, 3), datetime(2020, 1, 2, 1), None],
    ],
)
def test_the_order_of_the_engine_does_not_show(keys: list[Value]) -> None:
    """Noise falls on places, so keys take their places by their own order before any is drawn."""

    def answered(order: list[Value]) -> tuple[tuple[Key, ...], list[list[int]]]:
        rows: dict[Value, tuple[int, ...]] = {key: (100 + keys.index(key),) for key in order}
        noisy = add_noise(_measurement(None, threshold=1), [_exact(rows)], Sampler(lambda size: list(range(size))))
        return noisy.keys, _listed(noisy.sums)

    first = answered(keys)
    assert answered(keys[::-1]) == first
    places = [keys.index(key) for (key,) in first[0]]
    assert sorted(places) == list(range(len(keys)))
    assert first[0][-1] == (None,) or None not in keys


# --- fixed point ---


@pytest.mark.parametrize(
    ("scaled", "steps"), [(0, 0), (1024, 1), (1535, 1), (1536, 2), (-511, 0), (-1024, -1), (-1537, -2), (-1536, -1)]
)
def test_fixed_point_is_rounded_to_the_nearest_after_the_noise(scaled: int, steps: int) -> None:
    """Halves go up, always: no rule that depends on the sign or on what is even."""
    noise = 300
    measurement = _measurement((("a",),), factors=(1024,))
    noisy = add_noise(measurement, [_exact({"a": (scaled - noise,)})], Sampler(lambda size: [noise] * size))
    assert _listed(noisy.sums) == [[steps]]
