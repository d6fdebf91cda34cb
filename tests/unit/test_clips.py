"""Loose clips: what is searched for, what it costs, who may use what was found, and what margins say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.engine import Answer
from dpsql.errors import EngineFailed
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.noise.clips import choose_clip
from dpsql.noise.samplers import Losses
from dpsql.plan.scalars import Field, Ref
from dpsql.privacy.accounting import Price
from dpsql.privacy.facts import Fact, Interval
from dpsql.privacy.mechanisms import clip_chosen, clip_penalty
from dpsql.privacy.rules.aggregates import Cells as Bound
from dpsql.privacy.rules.aggregates import clip_search, clipped_at, clips, is_loose, sum_rows
from dpsql.privacy.stability import Stability, both_tight
from dpsql.release import Measurement, Release, Settings
from dpsql.session import Session
from dpsql.tables import ExactTable, Integers
from dpsql.types import integer
from tests import toy
from tests.unit.test_replay import Clinic, open_clinic

FREE = Price()
VISITS = "SELECT COUNT(*) AS n FROM visits"
OTHERS = "SELECT COUNT(*) AS n FROM visits WHERE fee > 10"
FEES = "SELECT SUM(fee) AS s FROM visits"


@pytest.fixture(params=["zcdp", "basic"])
def asked(request: pytest.FixtureRequest, clinic: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    policy = toy.write_policy(clinic.parent, users=("alice", "bob"), accounting=request.param)
    text = policy.read_text().replace("max_rows_per_unit = 10", "max_rows_per_unit = 500")
    policy.write_text(text.replace("joined = {", "# joined = {"))
    found = open_clinic(policy, monkeypatch)
    yield found
    found.engine.close()


def _ask(
    asked: Clinic, sql: str, *, user: str = "alice", fresh: bool = False, settings: Settings | None = None
) -> Answer:
    release = asked.engine.compile(sql, (), settings or Settings(), fresh=fresh)
    return asked.engine.answer(release, user=user, sql=sql, fresh=fresh)


def _release(asked: Clinic, sql: str) -> Release:
    return asked.engine.compile(sql, (), Settings())


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

    asked.backend.fail = fail_at_the_sum
    with pytest.raises(EngineFailed):
        _ask(asked, VISITS)
    assert asked.spent() == price
    asked.backend.fail = lambda: None
    del asked.events[:]
    assert _ask(asked, VISITS).charged == price
    assert asked.events == ["charge", "execute", "store"]
    assert _ask(asked, VISITS).charged == FREE


def test_a_sum_belongs_to_the_clip_it_was_cut_at(asked: Clinic) -> None:
    """Where the clip is lost, or has expired, another one is chosen, and the sum is bought with it."""
    first = _ask(asked, VISITS)
    search = first.release.measurements[0]
    assert isinstance(asked.engine.ledger, SqlLedger)
    key = asked.engine._replay_key(search, (), (), ())
    asked.engine.ledger._write(lambda db: db.execute("DELETE FROM answers WHERE key = ?", (key,)))
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
    cheap = Settings(epsilon=Fraction(1, 10))
    assert not asked.engine.compile(VISITS, (), cheap).searches
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
    assert not asked.engine.compile(many, (), Settings()).searches
    several = "SELECT COUNT(*), SUM(fee), SUM(fee + 1), SUM(fee + 2) FROM visits"
    assert len(asked.engine.compile(several, (), Settings()).searches) == 4
    _ask(asked, several)
    found = "SELECT SUM(fee), SUM(fee + 1), SUM(fee + 2), COUNT(*) FROM visits WHERE fee > 10"
    cheap = asked.engine.compile(found, (), Settings(epsilon=Fraction(1, 100)))
    assert len(cheap.searches) == 4 and all(not cheap.measurements[i].price.loss for i in cheap.searches)


def test_a_margin_is_kept_without_a_search(asked: Clinic) -> None:
    assert not asked.engine.compile(VISITS, (), Settings(margin=Fraction(5000))).searches


# --- what is said ---


def test_margins_are_those_of_the_noise_that_was_drawn(asked: Clinic) -> None:
    declared = _release(asked, VISITS).outputs[0].margin
    answer = _ask(asked, VISITS)
    main = _main(answer.release)
    assert declared is not None and main.statistics[0].clip < 500
    assert answer.margins == [(int(main.margin(0)),)]
    assert main.margin(0) < declared / 10
    assert answer.release.outputs[0].margin == main.margin(0)
    assert _release(asked, VISITS).outputs[0].margin == main.margin(0)
    low = _ask(asked, "SELECT dp_low(COUNT(*)), COUNT(*) FROM visits").table.rows[0]
    assert low[1] - low[0] == pytest.approx(float(main.margin(0)), rel=0.01)  # type: ignore[operator]


def test_explain_says_what_will_be_chosen_and_what_was(asked: Clinic) -> None:
    session = Session(asked.engine, "alice")
    text = "\n".join(session.explain(VISITS))
    assert "clip of the count of rows: exponential mechanism, one of 9 from 2 to 500" in text
    assert "of one unit, 500 counts at most; a lower clip is chosen before, and kept" in text
    assert " or less" in text.split("Margins")[1]
    _ask(asked, VISITS)
    for sql, when in ((VISITS, "is chosen with it"), (OTHERS, "was chosen before")):
        text = "\n".join(session.explain(sql))
        assert f"counts at most, where 500 is declared: the clip {when}" in text
        assert " or less" not in text


def test_the_sum_moves_with_the_clip(asked: Clinic) -> None:
    answer = _ask(asked, FEES)
    total = 300 * sum(i % 300 / 10 for i in range(1500)) / 300
    assert abs(float(answer.table.rows[0][0]) - total) < 0.3 * total  # type: ignore[arg-type]
    statistic = _main(answer.release).statistics[0]
    assert statistic.sensitivity.l1 == statistic.clip and statistic.high <= statistic.clip


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


def test_clips_are_halves_down_to_a_thousandth() -> None:
    assert clips(clip_search(_child(6), None)) == (2, 3, 6)
    found = clips(clip_search(_child(500), Ref(FEE)))
    assert (len(found), found[0], found[-1]) == (11, 49, 50_000)
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(found))


@pytest.mark.parametrize("most", [0, 1, 7, 50, 10**9])
def test_a_chosen_clip_is_never_above_the_declared_one(most: int) -> None:
    for cell in (Bound(False, 1, False), Bound(True, 5, False)):
        declared = sum_rows(_child(5), Ref(FEE), None, cell)
        found = clipped_at(declared, Fraction(most))
        assert found.clip == min(declared.clip, max(most, 1) * declared.factor)
        assert found.sensitivity.l1**2 == found.sensitivity.l2_squared == found.clip**2
        assert -found.clip <= found.low * found.factor <= found.high * found.factor <= found.clip


class Recording:
    """Remembers the losses, and takes the best."""

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction) -> int:
        self.asked = (widths.tolist(), losses.tolist(), scale)
        return int(np.argmin(losses))


def test_a_loss_is_the_units_beyond_and_the_size() -> None:
    search, noise, sampler = clip_search(_child(6), None), clip_chosen(Fraction(1, 10)), Recording()
    bars = ExactTable(((2,), (0,)), (np.array([4, 100]),))
    assert choose_clip(search, noise, bars, sampler) == 0  # type: ignore[arg-type]
    assert sampler.asked == ([1, 1, 1], [4, 24, 40], noise.scale)


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
