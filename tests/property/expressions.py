"""Expressions over one row of t: what dpsql believes of them, and what the engine computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.relations import RelationWriter
from dpsql.plan.nodes import Project
from dpsql.plan.scalars import Scalar
from dpsql.privacy.bounds import Facts
from dpsql.privacy.derive import derive
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve
from dpsql.types import Kind
from tests.property.generate import EVERY_KIND, Asking, Draw, databases, policies
from tests.property.world import COLUMNS, MAX_CELLS, OWNER, TABLE, Case, catalog_of, database


@dataclass(frozen=True, slots=True)
class Computed:
    """One expression, the facts it may rely on, and its value on each row."""

    scalar: Scalar
    facts: Facts
    values: tuple[Any, ...]


def computed(case: Case) -> Iterator[Computed]:
    """The expressions of `SELECT … FROM t`, as the engine sees them inside any private query."""
    catalog, _ = catalog_of(case.declared)
    plan = resolve(parse(case.sql), catalog)
    assert isinstance(plan, Project)
    facts = derive(plan.child, MAX_CELLS).conclusion.facts
    database().fill(case.declared, case.rows)
    rows = database().connection.execute(RelationWriter(DUCKDB, private=True).relation(plan)).fetchall()
    for i, (_, scalar) in enumerate(plan.items):
        yield Computed(scalar, facts, tuple(row[i + 1] for row in rows))


@st.composite
def selections(
    draw: Draw, kinds: tuple[Kind, ...] = EVERY_KIND, *, inside: bool = True, depth: int = 3, columns: int = 3
) -> Case:
    """A few expressions, over rows that keep what is declared of the columns, or over any."""
    declared, flavours = draw(policies())
    asking = Asking(draw, {name: COLUMNS[name][1] for name in flavours})
    parts = [asking.of(asking.kind(kinds), draw(st.integers(1, depth))) for _ in range(columns)]
    sql = f"SELECT {', '.join(f'{part} AS e{i}' for i, part in enumerate(parts))} FROM {TABLE}"
    cells = {
        name: (*flavour.inside, *(() if inside else flavour.outside), "NULL")
        for name, flavour in flavours.items()
        if re.search(rf"\b{name}\b", sql)
    }
    rows = tuple(row for row in draw(databases(declared, cells)) if row[OWNER] != "NULL")
    return Case(sql, declared, rows)
