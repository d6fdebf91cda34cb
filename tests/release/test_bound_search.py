"""Loose clips: what is searched for, what it costs, who may use what was found, and what margins say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.answering.answer import Answer
from dpsql.answering.session import Session
from dpsql.errors import EngineFailed
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.noise.bound_search import choose_centre, choose_clip
from dpsql.noise.samplers import Losses
from dpsql.plan.scalars import Field, Ref
from dpsql.privacy.accounting import Price
from dpsql.privacy.bounds import Fact, Interval
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.noise_laws import chosen, clip_chosen, clip_penalty
from dpsql.privacy.rules.aggregates import Cells as Bound
from dpsql.privacy.rules.aggregates import (
    StatisticKind,
    centre_at,
    centre_search,
    centres,
    clip_search,
    clipped_at,
    clips,
    is_loose,
    sum_residuals,
    sum_rows,
)
from dpsql.privacy.stability import Stability, both_tight
from dpsql.release import Measurement, QuerySettings, Release
from dpsql.release.identity import key_of_answer
from dpsql.tables import ExactTable, Integers
from dpsql.types import integer
from tests import toy
from tests.answering.test_replay import Clinic, open_clinic

FREE = Price()
VISITS = "SELECT COUNT(*) AS n FROM visits"
OTHERS = "SELECT COUNT(*) AS n FROM visits WHERE fee > 10"
FEES = "SELECT SUM(fee) AS s FROM visits"
MUCH = Fraction(20)


@pytest.fixture(params=["zcdp", "basic"])
def asked(request: pytest.FixtureRequest, clinic: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    policy = toy.write_policy(clinic.parent, users=("alice", "bob"), accounting=request.param)
    text = policy.read_text().replace("max_rows_per_unit = 10", "max_rows_per_unit = 500")
    policy.write_text(text.replace("joined = {", "# joined = {"))
    found = open_clinic(policy, monkeypatch)
    yield found
    found.dataset.close()


def _ask(
    asked: Clinic, sql: str, *, user: str = "alice", fresh: bool = False, settings: QuerySettings | None = None
) -> Answer:
    release = asked.dataset.compile(sql, (), settings or QuerySettings(), fresh=fresh)
    return asked.dataset.answer(release, user=user, sql=sql, fresh=fresh)


def _release(asked: Clinic, sql: str) -> Release:
    return asked.dataset.compile(sql, (), QuerySettings())


def _main(release: Release) -> Measurement:
    return release.measurements[-1]


# --- what it costs ---


def test_search_and_sum_are_charged_at_once_before_anything_runs(asked: Clinic) -> None:
    price = asked.price(VISITS)
    answer = _ask(asked, VISITS)
    assert asked.events == ["charge", "execute", "store", "execute", "store"]
    assert answer.charged == asked.spent() == price
    search, main = answer.release.measurements
    assert search.is_search and not main.is_search
    assert Fraction(1, 5) * Fraction(99, 100) < Fraction(search.price.loss, price.loss) <= Fraction(1, 5)


def test_the_same_question_again_is_free_and_the_same(asked: Clinic) -> None:
    first = _ask(asked, VISITS)
    del asked.events[:]
    second = _ask(asked, VISITS)
    assert (second.table, second.charged, second.margins) == (first.table, FREE, first.margins)
    assert "execute" not in asked.events


def test_later_questions_use_the_clip_and_give_all_their_price_to_the_sum(asked: Clinic) -> None:
    first = _ask(asked, VISITS)
    del asked.events[:]
    second = _ask(asked, OTHERS)
    assert asked.events == ["charge", "execute", "store"]
    assert second.charged == first.charged
    assert _main(second.release).statistics[0].clip == _main(first.release).statistics[0].clip
    assert _main(second.release).noises[0].scale < _main(first.release).noises[0].scale
    assert _ask(asked, OTHERS).charged == FREE
    assert _ask(asked, VISITS).charged == FREE  # as it was asked first


def test_another_user_pays_for_an_answer_and_nothing_for_a_clip(asked: Clinic) -> None:
    price = asked.price(VISITS)
    _ask(asked, VISITS)
    spent = asked.spent()
    assert _ask(asked, VISITS, user="bob").charged == price
    assert asked.spent() == spent
    assert _ask(asked, OTHERS, user="bob").charged == asked.price(OTHERS)


def test_a_fresh_answer_uses_the_clip_that_there_is(asked: Clinic) -> None:
    _ask(asked, VISITS)
    del asked.events[:]
    fresh = _ask(asked, VISITS, fresh=True)
    assert asked.events == ["charge", "execute", "store"]
    assert fresh.charged == asked.price(VISITS)
    assert _ask(asked, VISITS).table == fresh.table


def test_a_failure_between_search_and_sum_keeps_the_charge_and_the_clip(asked: Clinic) -> None:
    price = asked.price(VISITS)

    def fail_at_the_sum() -> None:
        if asked.events.count("execute") == 2:
            raise EngineFailed("the engine failed")

    asked.engine.fail = fail_at_the_sum
    with pytest.raises(EngineFailed):
        _ask(asked, VISITS)
    assert asked.spent() == price
    asked.engine.fail = lambda: None
    del asked.events[:]
    assert _ask(asked, VISITS).charged == price
    assert asked.events == ["charge", "execute", "store"]
    assert _ask(asked, VISITS).charged == FREE


def test_a_sum_belongs_to_the_clip_it_was_cut_at(asked: Clinic) -> None:
    """Where the clip is lost, or has expired, another one is chosen, and the sum is bought with it."""
    first = _ask(asked, VISITS)
    search = first.release.measurements[0]
    assert isinstance(asked.dataset.ledger, SqlLedger)
    key = key_of_answer(search.identity, (), ())
    asked.dataset.ledger._write(lambda db: db.execute("DELETE FROM answers WHERE key = ?", (key,)))
    assert _ask(asked, VISITS).charged == first.charged


def test_several_clips_of_which_one_is_known(asked: Clinic) -> None:
    both = "SELECT SUM(fee), COUNT(*) FROM visits"
    _ask(asked, VISITS)
    del asked.events[:]
    answer = _ask(asked, both)
    assert asked.events.count("execute") == 2  # one search is left
    assert answer.charged.loss < asked.price(both).loss
    assert _ask(asked, both).charged == FREE
    assert _ask(asked, FEES).charged == asked.price(FEES)


def test_a_cheap_query_does_not_search_but_uses_what_others_found(asked: Clinic) -> None:
    cheap = QuerySettings(epsilon=Fraction(1, 10))
    assert not asked.dataset.compile(VISITS, (), cheap).searches
    before = _ask(asked, VISITS, settings=cheap)
    assert before.release.outputs[0].margin is not None
    _ask(asked, VISITS)
    other = _ask(asked, OTHERS, settings=cheap)
    assert other.release.outputs[0].margin is not None
    assert other.release.outputs[0].margin < before.release.outputs[0].margin
    assert _ask(asked, VISITS, settings=cheap).charged == FREE


def test_nobody_forces_a_clip_on_all_by_sharing_a_price_among_many_sums(asked: Clinic) -> None:
    """What is left for each search would choose the least clip, whatever the rows, for everybody and for good."""
    many = f"SELECT COUNT(*), {', '.join(f'SUM(fee + {i})' for i in range(10))} FROM visits"
    assert not asked.dataset.compile(many, (), QuerySettings()).searches
    several = "SELECT COUNT(*), SUM(fee), SUM(fee + 1), SUM(fee + 2) FROM visits"
    assert len(asked.dataset.compile(several, (), QuerySettings()).searches) == 4
    _ask(asked, several)
    found = "SELECT SUM(fee), SUM(fee + 1), SUM(fee + 2), COUNT(*) FROM visits WHERE fee > 10"
    cheap = asked.dataset.compile(found, (), QuerySettings(epsilon=Fraction(1, 100)))
    assert len(cheap.searches) == 4 and all(not cheap.measurements[i].price.loss for i in cheap.searches)


def test_a_margin_is_kept_without_a_search(asked: Clinic) -> None:
    assert not asked.dataset.compile(VISITS, (), QuerySettings(margin=Fraction(5000))).searches


# --- what is said ---


def test_margins_are_those_of_the_noise_that_was_drawn(asked: Clinic) -> None:
    declared = _release(asked, VISITS).outputs[0].margin
    answer = _ask(asked, VISITS)
    main = _main(answer.release)
    # Mostly 6 or 8 counts; each larger clip is chosen a third as often as the one before.
    clip = main.statistics[0].clip
    assert declared is not None and clip <= 500
    assert answer.margins == [(int(main.margin(0)),)]
    assert float(main.margin(0)) == pytest.approx(float(declared) * clip / 500, rel=0.02, abs=1)  # a whole number
    assert answer.release.outputs[0].margin == main.margin(0)
    assert _release(asked, VISITS).outputs[0].margin == main.margin(0)
    low = _ask(asked, "SELECT dp_low(COUNT(*)), COUNT(*) FROM visits").table.rows[0]
    assert low[1] - low[0] == pytest.approx(float(main.margin(0)), rel=0.01)  # type: ignore[operator]


def test_explain_says_what_will_be_chosen_and_what_was(asked: Clinic) -> None:
    session = Session(asked.dataset, "alice")
    text = "\n".join(session.explain(VISITS))
    assert "clip of the count of rows: exponential mechanism, one of 17 from 2 to 500" in text
    assert "of one unit, 500 counts at most; a lower clip is chosen before, and kept" in text
    assert " or less" in text.split("Margins")[1]
    _ask(asked, VISITS)
    for sql, when in ((VISITS, "is chosen with it"), (OTHERS, "was chosen before")):
        text = "\n".join(session.explain(sql))
        assert f"counts at most, where 500 is declared: the clip {when}" in text
        assert " or less" not in text


def test_the_sum_moves_with_the_clip(asked: Clinic) -> None:
    answer = _ask(
        asked, FEES, settings=QuerySettings(epsilon=MUCH)
    )  # at a low price a large clip is chosen now and then
    total = 300 * sum(i % 300 / 10 for i in range(1500)) / 300
    assert abs(float(answer.table.rows[0][0]) - total) < 0.3 * total  # type: ignore[arg-type]
    statistic = _main(answer.release).statistics[0]
    assert statistic.sensitivity.l1 == statistic.clip and statistic.high <= statistic.clip


# --- averages ---

MEAN = "SELECT AVG(fee) AS m FROM visits"
OTHER_MEAN = "SELECT AVG(fee) AS m FROM visits WHERE fee > 3"


def test_a_mean_is_made_of_differences_from_a_centre(asked: Clinic) -> None:
    price = asked.price(MEAN)
    answer = _ask(asked, MEAN)
    assert asked.events == ["charge", *["execute", "store"] * 4]
    assert answer.charged == asked.spent() == price
    kinds = [measurement.statistics[0].kind.value for measurement in answer.release.measurements]
    assert sorted(kinds[:-1]) == ["centre", "clip", "clip"]
    _, residuals = _main(answer.release).statistics
    assert residuals.shape is Shape.RESIDUAL
    assert asked.events.count("charge") == 1


def test_a_centre_and_a_clip_that_cost_enough_are_near_the_truth(asked: Clinic) -> None:
    answer = _ask(asked, MEAN, settings=QuerySettings(epsilon=MUCH))
    _, residuals = _main(answer.release).statistics
    assert 5 <= residuals.centre * residuals.step <= 25
    declared = _main(answer.release.unsettled or answer.release).statistics[1]
    assert residuals.clip * 4 < declared.clip and residuals.centre != declared.centre
    assert float(answer.table.rows[0][0]) == pytest.approx(14.95, rel=0.15)  # type: ignore[arg-type]


def test_the_same_mean_again_is_free_and_the_same(asked: Clinic) -> None:
    first = _ask(asked, MEAN)
    del asked.events[:]
    second = _ask(asked, MEAN)
    assert (second.table, second.charged, second.margins) == (first.table, FREE, first.margins)
    assert "execute" not in asked.events


def test_later_means_use_centre_and_clip_and_are_closer(asked: Clinic) -> None:
    first = _ask(asked, MEAN, settings=QuerySettings(epsilon=MUCH))
    del asked.events[:]
    second = _ask(asked, OTHER_MEAN, settings=QuerySettings(epsilon=MUCH))
    assert asked.events == ["charge", "execute", "store"]
    old, new = (_main(answer.release) for answer in (first, second))
    assert (old.statistics[1].centre, old.statistics[1].clip) == (new.statistics[1].centre, new.statistics[1].clip)
    assert new.noises[1].scale < old.noises[1].scale
    margins = [float(answer.margins[0][0] or 0) for answer in (first, second)]
    assert 0 < margins[1] < 14.95


def test_another_centre_is_another_search_and_another_answer(asked: Clinic) -> None:
    """The key of what was measured around a centre names it: what was found around another is not reused."""
    release = asked.dataset.compile(MEAN, (), QuerySettings())
    paid = release.unsettled or release
    bills = [asked.dataset._purchases.bill(paid, "alice", fresh=True) for _ in range(2)]
    (centre,) = (i for i in paid.searches if paid.measurements[i].statistics[0].kind is StatisticKind.CENTRE)
    clip = next(i for i in paid.searches if paid.measurements[i].clips)
    assert bills[0].instances[centre] != bills[1].instances[centre] and bills[0].keys[centre] == bills[1].keys[centre]
    last = len(paid.measurements) - 1
    assert all(bills[0].keys[index] != bills[1].keys[index] for index in (clip, last))


def test_a_failure_between_centre_and_clip_keeps_the_charge_and_the_centre(asked: Clinic) -> None:
    price = asked.price(MEAN)

    def fail_at_the_second() -> None:
        if asked.events.count("execute") == 2:
            raise EngineFailed("the engine failed")

    asked.engine.fail = fail_at_the_second
    with pytest.raises(EngineFailed):
        _ask(asked, MEAN)
    assert asked.spent() == price
    asked.engine.fail = lambda: None
    del asked.events[:]
    _ask(asked, MEAN)
    assert asked.events == ["charge", *["execute", "store"] * 3]
    assert _ask(asked, MEAN).charged == FREE


def test_running_totals_are_not_made_around_a_centre(asked: Clinic) -> None:
    """They name no centre: another one would be added to differences from the first."""
    month = "date_trunc('month', seen)"
    beside = f"SELECT {month} AS m, SUM(COUNT(*)) OVER (ORDER BY {month}) AS n, AVG(fee) AS a FROM visits GROUP BY 1"
    for sql in (beside, f"SELECT t.*, (SELECT AVG(fee) FROM visits) AS b FROM ({beside}) AS t"):
        for measurement in _ask(asked, sql).release.measurements:
            around = [i for i, statistic in enumerate(measurement.statistics) if statistic.shape is Shape.RESIDUAL]
            named = {place for place, _ in measurement.clips}
            assert set(around) <= named or measurement.is_search
            assert not (around and isinstance(measurement.mechanism, RunningTotals))


def test_explain_names_the_centre(asked: Clinic) -> None:
    session = Session(asked.dataset, "alice")
    assert "centre of fee: exponential mechanism, one of 1,024 from 0 to 100" in "\n".join(session.explain(MEAN))
    answer = _ask(asked, MEAN)
    centre = _main(answer.release).statistics[1]
    text = "\n".join(session.explain(OTHER_MEAN))
    around = max(centre.centre * centre.step, Fraction(3))  # the other question has no fees below
    assert f"sum of fee - {float(around):.4g}" in text
    assert "the clip was chosen before" in text and "centre of" not in text


# --- the rules ---

FEE = Field(1, "fee", integer(4))


def _child(rows: int, tight: bool | None = None, column: bool | None = None) -> Stability:
    return Stability(rows, False, {1: Fact(Interval(Fraction(-20), Fraction(100)), tight=column)}, tight=tight)


@pytest.mark.parametrize(
    ("rows", "table", "column", "count", "total"),
    [
        (1, None, None, False, False),
        (10, None, None, False, False),
        (11, None, None, True, True),
        (500, True, None, False, False),
        (2, False, None, True, True),
        (500, None, True, True, False),
        (500, True, False, False, True),
        (1, True, False, False, True),
    ],
)
def test_the_policy_says_what_is_loose(
    rows: int, table: bool | None, column: bool | None, count: bool, total: bool
) -> None:
    assert is_loose(_child(rows, table, column), None) is count
    assert is_loose(_child(rows, table, column), Ref(FEE)) is total


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [(True, True, True), (True, None, None), (False, None, False), (True, False, False), (None, None, None)],
)
def test_a_join_is_tight_where_both_sides_are(left: bool | None, right: bool | None, joined: bool | None) -> None:
    assert both_tight(left, right) is both_tight(right, left) is joined


def test_clips_are_halves_down_to_a_thousandth_and_some_between() -> None:
    assert clips(clip_search(_child(1), None)) == (1,)
    assert clips(clip_search(_child(6), None)) == (2, 3, 5, 6)
    found = clips(clip_search(_child(500), Ref(FEE)))
    assert (len(found), found[0], found[-1]) == (21, 49, 50_000)
    assert all(low < high <= 1.5 * low for low, high in itertools.pairwise(found))
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(found[::2]))


@pytest.mark.parametrize("most", [0, 1, 7, 50, 10**9])
def test_a_chosen_clip_is_never_above_the_declared_one(most: int) -> None:
    for cell in (Bound(False, 1, False), Bound(True, 5, False)):
        declared = sum_rows(_child(5), Ref(FEE), None, cell)
        found = clipped_at(declared, Fraction(most))
        assert found.clip == min(declared.clip, max(most, 1) * declared.factor)
        assert found.sensitivity.l1**2 == found.sensitivity.l2_squared == found.clip**2
        assert -found.clip <= found.low * found.factor <= found.high * found.factor <= found.clip


@pytest.mark.parametrize(("low", "high", "places"), [(0, 1, 1), (-20, 100, 120), (0, 50_000, 1024)])
def test_centres_lie_between_the_bounds(low: int, high: int, places: int) -> None:
    child = Stability(5, False, {1: Fact(Interval(Fraction(low), Fraction(high)))})
    search = centre_search(child, Ref(FEE))
    assert centres(search) == places and search.sensitivity.l1 == 1
    found = [centre_at(search, place) for place in range(places)]
    assert all(low < one < other < high for one, other in itertools.pairwise(found)) and low < found[0] < high


@pytest.mark.parametrize("centre", [None, Fraction(-99), Fraction(-20), Fraction(7, 2), Fraction(10**6)])
@pytest.mark.parametrize("most", [0, 7, 10**9])
def test_residuals_are_clipped_around_their_centre(centre: Fraction | None, most: int) -> None:
    found = sum_residuals(_child(5), Ref(FEE), None, Bound(True, 5, False), centre, squares=False)
    assert found is not None and found.low <= found.centre <= found.high
    assert found.sensitivity.l1 == found.clip == 5 * 120 * found.factor
    cut = clipped_at(found, Fraction(most))
    assert cut.centre == found.centre and cut.sensitivity.l1 == cut.clip <= found.clip
    assert max(abs(cut.low - cut.centre), abs(cut.high - cut.centre)) * cut.factor <= cut.clip


class Recording:
    """Remembers the losses, and takes the best."""

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction) -> int:
        self.asked = (widths.tolist(), losses.tolist(), scale)
        return int(np.argmin(losses))


def test_a_loss_is_the_units_beyond_and_the_size() -> None:
    search, noise, sampler = clip_search(_child(6), None), clip_chosen(Fraction(1, 10)), Recording()
    bars = ExactTable(((2,), (0,)), (np.array([4, 100]),))
    assert choose_clip(search, noise, bars, sampler) == 0  # type: ignore[arg-type]
    assert sampler.asked == ([1, 1, 1, 1], [4, 14, 20, 30], noise.scale)


def test_the_centre_is_the_median_of_units() -> None:
    search, sampler = centre_search(_child(6), Ref(FEE)), Recording()
    noise = chosen(Fraction(1), Fraction(1, 2), Fraction(1))
    bars = ExactTable(((100,), (3,), (40,)), (np.array([4, 5, 3]),))
    assert search.rank == Fraction(1, 2)
    found = choose_centre(search, noise, bars, sampler)  # type: ignore[arg-type]
    widths, losses, _ = sampler.asked
    assert sum(widths) == 120 and losses[found] == min(losses)
    assert widths == [3, 1, 36, 1, 59, 1, 19] and losses == [12, 2, 2, 0, 4, 4, 12]


@pytest.mark.parametrize("epsilon", ["0.1", "1", "4"])
def test_a_unit_changes_the_choice_by_a_bounded_range(epsilon: str) -> None:
    """By the definition: the logarithms of all ratios lie in an interval as long as the price."""
    noise = clip_chosen(Fraction(epsilon))
    scale, penalty = float(noise.scale), clip_penalty(noise)

    def chances(bars: list[int]) -> npt.NDArray[np.float64]:
        weights = np.exp(-(sum(bars) - np.cumsum(bars) + penalty * np.arange(len(bars))) / scale)
        found: npt.NDArray[np.float64] = weights / weights.sum()
        return found

    worst = 0.0
    for bars in ([3, 0, 0, 0], [0, 0, 0, 9], [50, 7, 2, 1], [0, 0, 0, 0]):
        for place in range(4):
            more = [count + (i == place) for i, count in enumerate(bars)]
            ratios = np.log(chances(more) / chances(bars))
            worst = max(worst, float(ratios.max() - ratios.min()))
            assert np.abs(ratios).max() <= float(epsilon) * (1 + 1e-9)
    assert float(epsilon) * 0.999 < worst <= float(epsilon) * (1 + 1e-9)
