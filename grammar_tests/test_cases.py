"""Every case in cases/: the verdict as written, the answer of PostgreSQL, and no unit moves more than stated."""

from __future__ import annotations

import psycopg
import pytest

from dpsql.compliance.cases import Case, all_cases
from dpsql.compliance.lab import Lab
from dpsql.errors import Error
from dpsql.privacy.accounting import Price
from grammar_tests.checks import expected_text, is_refused, neighbour_faults, oracle_faults
from grammar_tests.neighbours import Neighbourhood
from grammar_tests.oracle import Oracle


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in all_cases()])
def test_case(case: Case, lab: Lab, clean: Neighbourhood, dirty: Neighbourhood, oracle: Oracle) -> None:
    assert case.problem is None
    dataset = lab.dataset(case.policy)
    before = dataset.dataset.ledger.spent()
    text = expected_text(case, dataset)
    assert text == case.expected
    assert dataset.dataset.ledger.spent() == before
    if is_refused(text):
        return
    if case.fails is not None:
        with pytest.raises(Error) as failure:
            dataset.answer(case)
        assert failure.value.sqlstate == case.fails
        with pytest.raises(psycopg.Error):
            oracle.ask(case.sql, case.params, case.settings)
        return
    answer, asked = dataset.answer(case)
    assert answer.charged == answer.release.price
    assert dataset.dataset.ledger.spent() == before + answer.charged
    assert (answer.charged == Price()) == (not asked)
    found = [] if case.differs else list(oracle_faults(case, answer, oracle))
    for name, neighbourhood in (("clean", clean), ("dirty", dirty)):
        found += [f"{name} data, {fault}" for fault in neighbour_faults(answer.release, asked, neighbourhood)]
    assert not found, "\n".join(found[:10])
