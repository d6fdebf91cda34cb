"""Of all accepted cases: two measurements of one identity ask for the same, with the same noise and price.

An answer that is stored for one of them is given for the other. Equal SQL is the same question; where it differs, the
exact tables of data that break every bound must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from dpsql.answering.compiling.work import Ground, compile_source
from dpsql.compliance.cases import Case, all_cases
from dpsql.compliance.lab import Lab
from dpsql.errors import Error
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.mechanisms.union import Mechanism
from dpsql.release import BoundMode, Measurement, QuerySettings, Release, Source
from dpsql.release.identity import key_of_answer
from dpsql.sql.clock import Clock
from grammar_tests.neighbours import Neighbourhood

MOMENT = datetime(2024, 2, 29, 12, 30)
CLIPS: tuple[BoundMode, ...] = ("declared", "searched")
ACCEPTED = [case for case in all_cases() if not case.expected.startswith("reject") and case.fails is None]
POLICIES = sorted({case.policy for case in ACCEPTED})


def _releases(case: Case, lab: Lab) -> Iterator[Release]:
    dataset = lab.dataset(case.policy)
    ground = Ground(dataset.dataset.catalog, dataset.dataset.accountant, dataset.engine.dialect)
    for clips in CLIPS:
        source = Source(case.sql, tuple(case.params), QuerySettings(), clips, Clock(MOMENT))
        try:
            yield compile_source(ground, source, (), 10_000_000).release
        except Error:
            continue  # the settings of the case made it what it is


def _key(release: Release, measurement: Measurement) -> bytes:
    """Under which it would be stored, if earlier answers were known by their own keys."""
    known = [_key(release, release.measurements[i]).hex() for i in range(release.measurements.index(measurement))]
    stages = [release.stages[stage] for stage in measurement.stages]
    earlier = [(stage.asked.identity, [known[i] for i in stage.measurements]) for stage in stages]
    return key_of_answer(measurement.identity, earlier, [(place, known[i]) for place, i in measurement.clips])


def _drawn(measurement: Measurement) -> object:
    """What decides how an answer is drawn from its exact table; nothing where a search has a price of its own."""
    if measurement.is_search:
        return measurement.statistics[0].kind
    grid = [(each.kind, each.step, each.factor, each.low, each.high, each.rank) for each in measurement.statistics]
    return measurement.cells, _mechanism(measurement.mechanism), measurement.noises, grid, measurement.price


def _mechanism(mechanism: Mechanism) -> object:
    """By which statistic top keys are chosen is another question, and so need not be said here."""
    match mechanism:
        case TopKeys(keys=keys, noise=noise):
            return keys, noise
        case RunningTotals(rooted=False):
            return Sums()
        case _:
            return mechanism


@pytest.mark.parametrize("policy", POLICIES)
def test_one_identity_is_one_question(policy: str, lab: Lab, dirty: Neighbourhood) -> None:
    first: dict[bytes, tuple[Case, Measurement]] = {}
    shared = 0
    for case in ACCEPTED:
        if case.policy != policy:
            continue
        for release in _releases(case, lab):
            for measurement in release.measurements:
                if not measurement.statistics:
                    continue  # free: its keys are its answer
                other, known = first.setdefault(_key(release, measurement), (case, measurement))
                shared += other is not case
                names = f"{other.name} and {case.name}"
                assert _drawn(measurement) == _drawn(known), names
                assert _are_the_same(measurement, known, dirty), names
    assert len(first) > 10 or policy not in ("zcdp", "basic")
    assert shared or policy not in ("zcdp", "basic")


def _are_the_same(one: Measurement, other: Measurement, data: Neighbourhood) -> bool:
    pairs = list(zip(one.branches, other.branches, strict=True))
    if all(a.query.sql == b.query.sql for a, b in pairs):
        return True
    if one.stages:
        return False  # their values are not at hand
    salt = {"salt": "the salt of the grammar tests"}
    return all(data.run_as_it_is(a.query.filled(salt)) == data.run_as_it_is(b.query.filled(salt)) for a, b in pairs)
