"""The text of the rest of a query: as long as it must be, and with the values it had."""

from __future__ import annotations

import itertools

from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.prune_and_merge import slim
from dpsql.lowering.relations import RelationWriter
from dpsql.plan.nodes import Plan, Project, Released
from dpsql.plan.scalars import Call, Const, Field, Op, Ref, Scalar
from dpsql.types import BIGINT, DOUBLE, NUMERIC

A, B = Field(1, "a", DOUBLE), Field(2, "b", DOUBLE)
CELLS = Released(0, (A, B))


def written(plan: Plan) -> str:
    writer = RelationWriter(DUCKDB, private=False)
    return writer.relation(slim(plan, DUCKDB, itertools.count(1_000)))


def named(number: int, value: Scalar) -> tuple[Field, Scalar]:
    return Field(number, f"f{number}", value.type), value


def plus(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.ADD, (left, right), DOUBLE)


def test_names_of_names_are_written_once() -> None:
    first = Project(CELLS, (named(10, Ref(A)), named(11, Ref(B))))
    second = Project(first, (named(20, Ref(first.fields[1])), named(21, Ref(first.fields[0]))))
    assert written(second) == "SELECT c2 AS c3, c1 AS c4 FROM (SELECT x0 AS c1, x1 AS c2 FROM r0) AS t"


def test_columns_that_nobody_reads_are_left_out() -> None:
    first = Project(CELLS, (named(10, plus(Ref(A), Ref(B))), named(11, Ref(B))))
    text = written(Project(first, (named(20, Ref(first.fields[1])),)))
    assert "+" not in text


def test_what_doubles_forty_times_does_not_grow_forty_times() -> None:
    plan: Plan = CELLS
    for number in range(40):
        column = Ref(plan.fields[0])
        plan = Project(plan, (named(100 + number, plus(column, column)),))
    assert len(written(plan)) < 3_000


def test_an_operation_sees_the_type_of_the_column() -> None:
    # As numeric it rounds halves away from zero; as the double precision that it is made of, to even numbers.
    half = Project(CELLS, ((Field(10, "half", NUMERIC), Call(Op.DIV, (Ref(A), Const(2.0, DOUBLE)), DOUBLE)),))
    shown = Project(half, ((Field(11, "shown", NUMERIC), Ref(half.fields[0])),))
    whole = Call(Op.CAST, (Ref(shown.fields[0]),), BIGINT)
    assert "TRY_CAST(round(c" in written(Project(shown, (named(12, whole),)))
    assert "/ 2.0e0" in written(shown)
