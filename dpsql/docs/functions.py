"""The reference of functions and operators, and of what each operation is to the packages that compute with it."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.docs.markdown import code, table
from dpsql.docs.markdown import page as whole
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.plan.constants import EVALUATED
from dpsql.plan.scalars import Op
from dpsql.privacy.bounds import BOUNDED
from dpsql.sql.functions import FAMILIES

_INTRODUCTION = """\
What a query over declared tables may call, with PostgreSQL's meaning. A statement over the wire that names no declared
table may call whatever PostgreSQL has. A function that is not here is refused with 42883, or with 0A000 if PostgreSQL
has it; the hint says what to write instead."""

_OPERATIONS = """\
## Operations

What functions and operators compute with. *Bounded*: the bounds of a result follow from those of its arguments, so that
it can be summed without bounds of its own. *Constant*: its value over constants is known before the engine is asked, so
that keys made with it are enumerated. The form for each engine is total: defined for every value of the types. Where it
depends on them, it is in `dpsql/lowering`."""


_BY_TYPE = "by type"


def page() -> str:
    return whole(
        "Functions and operators", "dpsql/sql/functions", _INTRODUCTION, *_families(), _OPERATIONS, _operations()
    )


def _families() -> Iterator[str]:
    for family, functions in FAMILIES.items():
        rows = [(code(each.form), each.result, each.about) for each in functions]
        yield f"## {family}\n\n{table(('Form', 'Result', 'Meaning'), rows)}"


def _operations() -> str:
    rows = [
        (code(op.value), "yes" if op in BOUNDED else "", "yes" if op in EVALUATED else "", *_forms(op)) for op in Op
    ]
    return table(("Operation", "Bounded", "Constant", "DuckDB", "PostgreSQL"), rows)


def _forms(op: Op) -> tuple[str, str]:
    duckdb, postgres = _form(DUCKDB, op), _form(POSTGRES, op)
    return code(duckdb) or _BY_TYPE, "the same" if duckdb and postgres == duckdb else code(postgres) or _BY_TYPE


def _form(dialect: Dialect, op: Op) -> str:
    return dialect.templates.get(op, "")
