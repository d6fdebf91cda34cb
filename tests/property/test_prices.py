"""What is charged is what noise and choices cost, computed again from their scales and from how far a unit moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import Error, InternalError
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.policy.model import Accounting
from dpsql.privacy.mechanisms.quantiles import Cut, cut_in_turn
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind, rank_of
from dpsql.release import BoundMode, Measurement, QuerySettings, Release, compile_release
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve
from tests.property.flavours import bounded
from tests.property.generate import cases, thorough
from tests.property.world import Case, Declared, catalog_of, choices

# Grains are whole, and scales have 32 bits: of a price, so much may be left over.
NEARLY = Fraction(999, 1000)


def _levels(cuts: Sequence[Cut | None]) -> Iterator[list[Cut]]:
    here = [cut for cut in cuts if cut is not None]
    if here:
        yield here
        yield from _levels([side for cut in here for side in (cut.before, cut.behind)])


def _of_choices(epsilons: Iterable[Fraction], *, squares: bool) -> Fraction:
    return sum((each**2 / 8 if squares else each for each in epsilons), Fraction(0))


def _group_loss(measurement: Measurement, group: Sequence[int], *, squares: bool) -> Fraction:
    """Epsilon, or rho with `squares`, of statistics that are paid for together."""
    statistics, noises = [measurement.statistics[i] for i in group], [measurement.noises[i] for i in group]
    if statistics[0].kind is StatisticKind.RANKED:
        ranks = tuple(map(rank_of, statistics))
        scales = {rank: noise.scale for rank, noise in zip(ranks, noises, strict=True)}
        within = {ranks[0]: ranks[0]}
        levels = [[ranks[0]]]
        if len(group) > 1:
            found = list(_levels([cut_in_turn(ranks)]))
            within = {cut.rank: cut.within for level in found for cut in level}
            levels = [[cut.rank for cut in level] for level in found]
        moved = {rank: 2 * statistics[0].sensitivity.l1 * max(within[rank], 1 - within[rank]) for rank in ranks}
        # Rows on one side of a cut are not on the other: of a level, the dearest cut.
        return _of_choices((max(moved[r] / scales[r] for r in level) for level in levels), squares=squares)
    if statistics[0].kind in (StatisticKind.COMMONEST, StatisticKind.CLIP, StatisticKind.CENTRE):
        moved_by = statistics[0].sensitivity.l1  # up or down, but for a centre: both sides of a rank move by a half
        return _of_choices([moved_by / noises[0].scale], squares=squares)
    return max(_sum_loss(s, n.scale, squares=squares) for s, n in zip(statistics, noises, strict=True))


def _sum_loss(statistic: Statistic, scale: Fraction, *, squares: bool) -> Fraction:
    return statistic.sensitivity.l2_squared / (2 * scale) if squares else statistic.sensitivity.l1 / scale


def loss_of(measurement: Measurement, *, squares: bool) -> Fraction:
    """What noise and choices of a measurement cost together."""
    parts = [_group_loss(measurement, group, squares=squares) for group in measurement.groups]
    if isinstance(top := measurement.mechanism, TopKeys):
        parts.append(_of_choices([1 / top.noise.scale] * top.keys, squares=squares))
    return sum(parts, Fraction(0))


def _rho(measurement: Measurement) -> Fraction:
    """Of a measurement that is pure: what its steps cost beside, choices a quarter of what noise does."""
    epsilons = [(_group_loss(measurement, group, squares=False), group[0]) for group in measurement.groups]
    is_choice = [measurement.noises[first].law == "exponential" for _, first in epsilons]
    return sum(
        (min(e**2 / (8 if choice else 2), e) for (e, _), choice in zip(epsilons, is_choice, strict=True)), Fraction(0)
    )


def check_prices(release: Release, *, pure: bool, squares: bool, found: bool) -> None:
    for measurement in release.measurements:
        running = measurement.mechanism
        if (isinstance(running, RunningTotals) and running.rooted) or not measurement.statistics:
            continue  # noise on the root is longer than what it is made for: tests/noise/test_running_totals.py
        if measurement.is_search and found:
            assert not measurement.price.loss and not measurement.price.pure, "what is found costs nothing"
            continue
        loss, price = loss_of(measurement, squares=squares), measurement.price
        paid = price.pure_value if pure else price.loss_value
        assert paid is not None
        assert loss <= paid, f"{float(loss)} is charged as {float(paid)}"
        assert loss >= paid * NEARLY, f"{float(loss)} costs {float(paid)}"
        assert not pure or _rho(measurement) <= price.loss_value


def released(case: Case, settings: QuerySettings, clips: BoundMode, places: Sequence[int]) -> list[Release]:
    """A query before clips are chosen, and after each choice: one, two … of its searches are known."""
    catalog, accountant = catalog_of(case.declared)
    first = compile_release(resolve(parse(case.sql), catalog), catalog, accountant, settings, DUCKDB, clips)
    if first.settle is None:
        return [first]
    found = [first]
    known: dict[int, int] = {}
    for number, index in enumerate(first.searches):
        known[index] = places[number % len(places)] % choices(first.measurements[index].statistics[0])
        found.append(first.settle(known))
    return found


def _check(case: Case, settings: QuerySettings, places: Sequence[int]) -> None:
    is_zcdp = case.declared.accounting == "zcdp"
    accountant = catalog_of(case.declared)[1]
    for clips in ("searched", "found", "declared"):
        for release in released(case, settings, clips, places):
            pure = settings.pure and is_zcdp
            total = release.price.pure if pure else release.price.loss
            stated = (accountant.pure_of if pure else accountant.price_of)(accountant.policy.query_epsilon)
            assert total is not None and total <= stated, "dearer than was stated"
            check_prices(release, pure=pure, squares=is_zcdp and not pure, found=clips == "found")


def test_noise_and_choices_cost_what_is_charged() -> None:
    tally: Counter[str] = Counter()

    @thorough(150)
    @given(case=cases(), places=st.lists(st.integers(0, 1023), min_size=1, max_size=4))
    def holds(case: Case, places: list[int]) -> None:
        tally["asked"] += 1
        try:
            _check(case, QuerySettings(), places)
        except InternalError:
            raise
        except Error:
            return
        tally["answered"] += 1

    holds()
    assert tally["answered"] > 0.6 * tally["asked"], tally


COLUMNS = (
    bounded("n", 0, 9),
    bounded("big", 10**13, 10**13 + 10),
    bounded("amount", 0, 100),
    bounded("x", 0, Fraction(1, 10)),
    bounded("small", 0, 40),
)
QUESTIONS = (
    "SELECT COUNT(*), SUM(n), AVG(n) FROM t",
    "SELECT AVG(big), SUM(big), SUM(n) FROM t",
    "SELECT small, AVG(big), AVG(n) FROM t GROUP BY small",
    "SELECT SUM(amount), SUM(amount * (1 - x)), AVG(amount * (1 - x)), AVG(amount) FROM t",
    "SELECT COUNT(*) FILTER (WHERE n < 3), SUM(n) FILTER (WHERE n > 5), AVG(amount) FROM t",
    "SELECT small, COUNT(DISTINCT who), AVG(n), SUM(amount) FROM t GROUP BY small ORDER BY 2 DESC LIMIT 3",
    "SELECT small, COUNT(DISTINCT who) FROM t GROUP BY small ORDER BY 2 DESC LIMIT 2",
    "SELECT PERCENTILE_CONT(ARRAY[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]) WITHIN GROUP (ORDER BY n), AVG(n) FROM t",
    "SELECT small, MEDIAN(n), MIN(n), MAX(n), MODE() WITHIN GROUP (ORDER BY n) FROM t GROUP BY small",
    "SELECT STDDEV(n), COUNT(DISTINCT n), CORR(n, amount) FROM t",
)


@pytest.mark.parametrize("sql", QUESTIONS)
@pytest.mark.parametrize(("accounting", "pure"), [("basic", False), ("zcdp", False), ("zcdp", True)])
def test_whatever_is_chosen(sql: str, accounting: Accounting, pure: bool) -> None:
    case = Case(sql, Declared(COLUMNS, max_rows=20, tight=False, accounting=accounting, pure=pure), ())
    for places in ((0,), (3, 1, 4), (1023, 20), (500, 0, 7)):
        _check(case, QuerySettings(pure=pure), places)
