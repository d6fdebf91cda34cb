"""All that a case must stand: its text, PostgreSQL's answer, every neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import sqlglot

from dpsql.answering.answer import Answer
from dpsql.compliance.cases import Case
from dpsql.compliance.lab import ToyDataset
from dpsql.errors import Error
from dpsql.lowering.query import EngineQuery
from dpsql.release import Release
from dpsql.sql.grammar import with_parentheses
from grammar_tests import expectation
from grammar_tests.compare import difference
from grammar_tests.neighbours import Neighbourhood
from grammar_tests.oracle import Oracle, class_of


def expected_text(case: Case, dataset: ToyDataset) -> str:
    """What should stand under the dashes. Free: nothing is read, nothing is paid."""
    try:
        session = dataset.session(case)
        release = session.release(case.sql, case.params)
        session.explain(case.sql, case.params)
    except Error as error:
        return expectation.refused(error)
    return expectation.accepted(release, dataset.dataset.accountant, rewrite=case.rewrite)


def is_refused(text: str) -> bool:
    return text.startswith("reject")


def oracle_faults(case: Case, answer: Answer, oracle: Oracle) -> Iterator[str]:
    """How our exact answer differs from PostgreSQL's."""
    try:
        truth = oracle.ask(case.sql, case.params, case.settings)
    except psycopg.Error as error:
        yield f"PostgreSQL refuses it: {error}"
        return
    if answer.table.names != truth.names:
        yield f"columns are named {answer.table.names}, in PostgreSQL {truth.names}"
    classes = tuple(class_of(type_) for type_ in answer.table.types)
    if classes != truth.classes:
        yield f"columns are {classes}, in PostgreSQL {truth.classes}"
    ordered = sqlglot.parse_one(case.sql, read="postgres").args.get("order") is not None
    found = difference(answer.release, answer.table.rows, truth.rows, ordered=ordered)
    if found is not None:
        yield found


def binding_faults(case: Case, oracle: Oracle) -> Iterator[str]:
    """What dpsql's reader of the grammar takes for the operands of an operator, and PostgreSQL does not.

    Answers may be the same all the same: over these rows, or because both of dpsql's readers are wrong.
    """
    if case.params:
        return  # a view has none
    written = with_parentheses(case.sql)
    try:
        read = oracle.definition(case.sql)
    except psycopg.Error:
        return  # it cannot stand in a view: a semicolon before its last comment
    try:
        if oracle.definition(written) != read:
            yield f"operators bind otherwise than {written}"
    except psycopg.Error as error:
        yield f"PostgreSQL refuses {written}: {error}"


def neighbour_faults(
    release: Release, asked: Sequence[Sequence[EngineQuery]], neighbourhood: Neighbourhood
) -> Iterator[str]:
    """How far some unit moves a sum beyond what was stated."""
    paid = [measurement for measurement in release.measurements if measurement.statistics]
    for number, (measurement, queries) in enumerate(zip(paid, asked, strict=True), 1):
        for fault in neighbourhood.check(measurement, queries):
            yield f"release {number}: {fault}"
        neighbourhood.total(queries)
