"""Every expression is defined on PostgreSQL for every value of its type, and means what it means on DuckDB."""

from __future__ import annotations

import math
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import given

from dpsql.engines.postgres.connections import SETTINGS
from dpsql.errors import Error, InternalError
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.lowering.relations import RelationWriter
from dpsql.plan.nodes import Project
from dpsql.plan.scalars import Call, Op, Scalar, walk
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve
from dpsql.types import Kind, Type
from grammar_tests.servers import Server
from tests.property.expressions import computed, selections
from tests.property.generate import thorough
from tests.property.test_total import CORNERS, SAMPLES, UNDECLARED, ZEROS, check_zeros, extremes, zeros
from tests.property.world import COLUMNS, OWNER, TABLE, Case, catalog_of

# Where doubles leave their range, which PostgreSQL takes for an error.
DOUBLES = (
    "x + x", "x - (-x)", "x + f", "x - f", "x + x + x", "-x - x", "x + 1", "x - 1e300", "x * x * x", "x * f", "f * f",
    "x * 1e300", "x * 1e-300", "1e200 * x", "x * 0.5", "x / f", "f / x", "x / 1e-300", "x / 1e300", "x / 3", "3 / x",
    "x / 0", "x * CAST(n AS double precision)", "CAST(big AS double precision) * big * big", "SQRT(x * x)",
    "LN(x * x)", "ABS(x * x)", "FLOOR(x + x)", "ROUND(x * x)", "CAST(x * x AS bigint)", "CAST(x + x AS numeric(5, 2))",
    "CAST(x AS numeric(38, 10))", "CAST(f AS smallint)", "ROUND(CAST(x AS numeric), 2)",
    "ROUND(CAST(x AS numeric), -3)",
    "TRUNC(CAST(f AS numeric), 2)", "WIDTH_BUCKET(x, 0, 1e-300, 3)", "WIDTH_BUCKET(x, -1e280, 1e280, 7)",
    "WIDTH_BUCKET(f, 0.1, 0.2, 1000000)", "x * x > 1", "x * x = x", "GREATEST(x * x, 1)", "COALESCE(x * x, 7)",
)  # fmt: skip

NATIVE = {"DOUBLE": "double precision", "FLOAT": "real"}


class World:
    """The table of the property tests in PostgreSQL, filled again and again."""

    def __init__(self, server: Server) -> None:
        database = f"total_{uuid.uuid4().hex[:8]}"
        server.create_database(database)
        self._connection = psycopg.connect(server.url(database), autocommit=True)
        for name, value in SETTINGS.items():
            self._connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        self._connection.execute("CREATE SCHEMA main")
        self._owner_type = ""

    def rows(self, case: Case) -> list[tuple[Any, ...]]:
        """The expressions of `SELECT … FROM t`, as any private query would see them."""
        self._clear(case.declared.owner_type)
        names = [OWNER, *COLUMNS]
        listed = [f"({', '.join(_literal(row.get(name, 'NULL')) for name in names)})" for row in case.rows]
        if listed:
            self._connection.execute(f"INSERT INTO main.{TABLE} VALUES {', '.join(listed)}")
        plan = resolve(parse(case.sql), catalog_of(case.declared)[0])
        assert isinstance(plan, Project)
        writer = RelationWriter(POSTGRES, private=True)
        inner = writer.relation(plan)
        shown = [_shown(writer.name(field), field.type) for field in plan.fields]
        return self._connection.execute(f"SELECT {', '.join(shown)} FROM ({inner}) AS q").fetchall()

    def _clear(self, owner_type: str) -> None:
        if owner_type == self._owner_type:
            self._connection.execute(f"TRUNCATE main.{TABLE}")
            return
        columns = [f"{name} {NATIVE.get(type_, type_)}" for name, (type_, _) in COLUMNS.items()]
        self._connection.execute(f"DROP TABLE IF EXISTS main.{TABLE}")
        self._connection.execute(f"CREATE TABLE main.{TABLE} ({', '.join([f'{OWNER} {owner_type}', *columns])})")
        self._owner_type = owner_type

    def close(self) -> None:
        self._connection.close()


def _shown(name: str, type_: Type) -> str:
    """Python cannot hold every date; keys outside the calendar are dropped, too."""
    return f"CASE WHEN {POSTGRES.in_calendar(name, type_)} THEN {name} END" if type_.is_temporal else name


def _literal(cell: str) -> str:
    """Dates: the era stands elsewhere, and the calendar ends earlier. Both ends are outside the years dpsql knows."""
    if not cell.startswith(("DATE", "TIMESTAMP")):
        return cell
    cell = re.sub(r"'(\S+) \(BC\)( [\d:]+)?'", r"'4713-01-01\2 BC'", cell)
    return cell.replace("5881580-07-10", "5874897-12-31")


@pytest.fixture(scope="module")
def world(server: Server) -> Iterator[World]:
    made = World(server)
    yield made
    made.close()


def _compare(case: Case, world: World) -> int:
    """How many rows were the same; fails where one is not."""
    expected = list(computed(case))
    rows = world.rows(case)
    for i, found in enumerate(expected):
        if any(_may_differ(part) for part in walk(found.scalar)):
            continue
        for row, value in zip(rows, found.values, strict=True):
            assert _same(row[i], value), f"{row[i]!r} instead of {value!r} in {case.sql}"
    return len(rows)


def _may_differ(node: Scalar) -> bool:
    """Case beyond ASCII is the database's; and some texts are numbers to one engine and not to the other."""
    if not isinstance(node, Call):
        return False
    reads = node.op is Op.CAST and node.args[0].type.kind is Kind.TEXT
    return reads or node.op in (Op.UPPER, Op.LOWER, Op.ILIKE)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, str) and re.fullmatch(r"-?infinity|.*\(BC\).*", theirs) and ours is None:
        return True  # a date that Python cannot hold comes as text
    if isinstance(ours, int | float | Decimal) and isinstance(theirs, int | float | Decimal):
        if math.isnan(ours) or math.isnan(theirs):
            return math.isnan(ours) and math.isnan(theirs)
        return math.isclose(float(ours), float(theirs), rel_tol=1e-12, abs_tol=1e-290)
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.parametrize("expression", [*SAMPLES.values(), *CORNERS, *DOUBLES])
def test_every_operation_is_total_and_the_same(expression: str, world: World) -> None:
    assert _compare(Case(f"SELECT {expression} AS e FROM {TABLE}", UNDECLARED, extremes()), world)


@pytest.mark.parametrize("expression", [*SAMPLES.values(), *CORNERS, *DOUBLES, *ZEROS])
def test_no_expression_tells_the_sign_of_a_zero(expression: str, world: World) -> None:
    rows = world.rows(Case(f"SELECT {expression} AS e FROM {TABLE}", UNDECLARED, zeros()))
    check_zeros([value for (value,) in rows])


def test_generated_expressions_are_total_and_the_same(world: World) -> None:
    tally: Counter[str] = Counter()

    @thorough(300)
    @given(case=selections(inside=False))
    def holds(case: Case) -> None:
        try:
            tally["values"] += _compare(case, world)
        except InternalError:
            raise
        except Error:
            tally["refused"] += 1

    holds()
    assert tally["values"] > 300
