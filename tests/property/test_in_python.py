"""Python computes what DuckDB computes: every operation on the ends of its type, and random expressions of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from itertools import product

import pytest

from dpsql.answering.postprocess import Postprocessor
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.in_python import in_python
from dpsql.lowering.noisy_tables import from_lists
from dpsql.lowering.relations import RelationWriter
from dpsql.plan.nodes import Plan, Project, Released, Sort
from dpsql.plan.scalars import Call, Case, Const, Field, Op, Ref, Scalar, SortKey
from dpsql.types import BIGINT, BOOLEAN, DOUBLE, TEXT, Cell, Kind, Type, Value, decimal, integer

DOUBLES = (None, 0.0, -0.0, 0.5, -0.5, 1.5, -2.5, 1 / 3, 32767.5, -32768.5, 2147483647.5, 2.0**53, -(2.0**63), 2.0**63)
FAR = (5e-324, -1e-308, 1e308, -1.7976931348623157e308)
WHOLE = (None, 0, 1, -1, 32767, 32768, -(2**31), 2**53 + 1, -(2**53) - 3, 2**63 - 1, -(2**63))
FIELDS = X, Y, N, M = Field(0, "x", DOUBLE), Field(1, "y", DOUBLE), Field(2, "n", BIGINT), Field(3, "m", BIGINT)

COMPARISONS = (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)
OPERATIONS = [
    *(Call(op, (Ref(X), Ref(Y)), DOUBLE) for op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.NULLIF, Op.COALESCE)),
    *(Call(op, (Ref(X),), DOUBLE) for op in (Op.NEG, Op.ABS, Op.SQRT, Op.ROUND)),
    *(Call(op, pair, BOOLEAN) for op in COMPARISONS for pair in ((Ref(X), Ref(Y)), (Ref(N), Ref(M)))),
    *(Call(Op.CAST, (Ref(X),), type_) for type_ in (integer(5), integer(10), BIGINT, DOUBLE)),
    *(Call(Op.CAST, (Ref(N),), type_) for type_ in (DOUBLE, decimal(19, 0), decimal(21, 2), decimal(5, 0))),
    *(Call(Op.IS_NULL, (Ref(field),), BOOLEAN) for field in FIELDS),
]


@pytest.fixture(scope="module")
def post() -> Iterator[Postprocessor]:
    with closing(Postprocessor()) as made:
        yield made


def in_both(plan: Plan, columns: list[list[Value]], post: Postprocessor) -> tuple[object, object] | None:
    """The rows of a plan over the noisy table, in Python and in DuckDB; None where Python leaves it to DuckDB."""
    way = in_python(plan)
    assert way is not None
    ours = way.rows(columns)
    if ours is None:
        return None
    writer = RelationWriter(DUCKDB, private=False, public={})
    head = from_lists(0, [writer.scalars.type(field.type) for field in FIELDS])
    parameters: dict[str, object] = {f"r0_{i}": column for i, column in enumerate(columns)}
    theirs = post.run(f"WITH {head} {writer.relation(plan)}", parameters, timeout=30, max_cells=10**6)
    return shown(ours), shown(theirs)


def shown(rows: Sequence[tuple[Cell, ...]]) -> list[list[tuple[type, str]]]:
    """Values with their types, as decimals of different scale and zeros of different sign differ."""
    return [[(type(value), repr(value)) for value in row] for row in rows]


def projected(*values: Scalar) -> Plan:
    return Project(Released(0, FIELDS), tuple((Field(100 + i, "c", v.type), v) for i, v in enumerate(values)))


def rows_of(doubles: tuple[float | None, ...]) -> list[list[Value]]:
    pairs, whole = list(product(doubles, repeat=2)), list(product(WHOLE, repeat=2))
    count = max(len(pairs), len(whole))
    columns = [[pair[i] for pair in chosen] for chosen in (pairs, whole) for i in (0, 1)]
    return [[*column, *[None] * (count - len(column))] for column in columns]


@pytest.mark.parametrize("value", OPERATIONS, ids=lambda value: f"{value.op.name} {value.args[0].type} {value.type}")
@pytest.mark.parametrize("doubles", [DOUBLES, (*DOUBLES[:4], *FAR)], ids=["near", "far"])
def test_an_operation_is_the_same_at_the_ends_of_its_type(
    value: Scalar, doubles: tuple[float | None, ...], post: Postprocessor
) -> None:
    found = in_both(projected(value), rows_of(doubles), post)
    assert found is not None and found[0] == found[1]


@pytest.mark.parametrize("factor", ["0.01", "-2.50", "0.00", "3.00"])
def test_decimals_are_the_same(factor: str, post: Postprocessor) -> None:
    whole = Call(Op.CAST, (Ref(N),), decimal(19, 0))
    times = Call(Op.MUL, (whole, Const(Decimal(factor), decimal(3, 2))), decimal(22, 2))
    wider = Call(Op.CAST, (times,), decimal(24, 3))
    found = in_both(projected(times, wider), rows_of(DOUBLES), post)
    assert found is not None and found[0] == found[1]


@pytest.mark.parametrize("nulls_first", [True, False])
@pytest.mark.parametrize("descending", [True, False])
def test_rows_are_in_the_same_order(descending: bool, nulls_first: bool, post: Postprocessor) -> None:
    chance = random.Random(1)
    columns: list[list[Value]] = [[chance.choice(DOUBLES[3:]) for _ in range(50)] for _ in range(2)]
    columns += [[chance.choice((None, 1, 2, 3)) for _ in range(50)], list(range(50))]
    plan = projected(*map(Ref, FIELDS))
    keys = tuple(SortKey(Ref(plan.fields[i]), descending, nulls_first) for i in (2, 0, 3))
    for limit, offset in ((None, 0), (7, 0), (None, 45), (5, 40), (20, 45), (0, 0)):
        found = in_both(Sort(plan, keys, limit, offset, plan.fields[1:]), columns, post)
        assert found is not None and found[0] == found[1]


def scalar(kind: Kind, chance: random.Random, depth: int) -> Scalar:
    """A random expression of operations that Python computes."""

    def part(kind: Kind) -> Scalar:
        return scalar(kind, chance, depth - 1)

    if kind is Kind.BOOLEAN:
        if depth and chance.random() < 0.4:
            op = chance.choice((Op.AND, Op.OR, Op.NOT))
            return Call(op, tuple(part(kind) for _ in range(1 if op is Op.NOT else 2)), BOOLEAN)
        of = chance.choice((Kind.DOUBLE, Kind.INTEGER))
        return Call(chance.choice(COMPARISONS), (part(of), part(of)), BOOLEAN)
    type_: Type = DOUBLE if kind is Kind.DOUBLE else BIGINT
    if depth <= 0:
        constant: Value = chance.choice((0.0, -1.0, 0.25, 1e200)) if kind is Kind.DOUBLE else chance.choice((0, 7, -1))
        fields = FIELDS[:2] if kind is Kind.DOUBLE else FIELDS[2:]
        return Const(constant, type_) if chance.random() < 0.3 else Ref(chance.choice(fields))
    if chance.random() < 0.3:
        return Case(((part(Kind.BOOLEAN), part(kind)), (part(Kind.BOOLEAN), part(kind))), part(kind), type_)
    if kind is Kind.INTEGER:
        return Call(Op.CAST, (part(Kind.DOUBLE),), type_)
    op = chance.choice((Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.NULLIF, Op.NEG, Op.SQRT, Op.CAST))
    if op is Op.CAST:
        return Call(op, (part(Kind.INTEGER),), type_)
    return Call(op, tuple(part(kind) for _ in range(1 if op in (Op.NEG, Op.SQRT) else 2)), type_)


def test_random_expressions_are_the_same(post: Postprocessor) -> None:
    chance = random.Random(2)
    columns = rows_of((*DOUBLES[:8], *FAR))
    left = 0
    for _ in range(300):
        values = [scalar(kind, chance, 3) for kind in (Kind.DOUBLE, Kind.INTEGER, Kind.BOOLEAN)]
        found = in_both(projected(*values), columns, post)
        if found is None:
            left += 1
        else:
            assert found[0] == found[1], values
    assert 0 < left < 150  # what is not a number is not compared here


def test_what_is_not_listed_is_left_to_duckdb() -> None:
    text = Field(9, "t", TEXT)
    assert in_python(projected(Call(Op.LN, (Ref(X),), DOUBLE))) is None
    assert in_python(projected(Call(Op.ADD, (Ref(N), Ref(M)), BIGINT))) is None
    assert in_python(projected(Call(Op.LT, (Ref(N), Ref(X)), BOOLEAN))) is None
    assert in_python(Project(Released(0, (text,)), ((text, Call(Op.UPPER, (Ref(text),), TEXT)),))) is None
