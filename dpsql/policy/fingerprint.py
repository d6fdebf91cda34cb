"""Which declarations decide answers: one canonical text for each table and column.

A stored answer is identified by these facts of the tables and columns that its question reads, and by nothing else in
the policy: it survives edits elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache

from dpsql.policy.canonical import canonical, digest, leaf, term
from dpsql.policy.model import (
    Catalog,
    Column,
    ColumnPolicy,
    CompileLimits,
    Copy,
    Limits,
    Policy,
    PreparedPolicy,
    PrivacyPolicy,
    ServerPolicy,
    StatementLimits,
    Step,
    Table,
    TablePolicy,
    UnitReference,
    UserPolicy,
    ViewPolicy,
)


class Decides(Enum):
    """What the value of a field decides."""

    ANSWERS = "what the same question draws its answer from"
    # It is part of the compiled question, which also identifies the answer.
    QUESTIONS = "what is asked, or its price"
    NOTHING = "whether, how fast or where it is answered"


_ANSWERS, _QUESTIONS, _NOTHING = Decides.ANSWERS, Decides.QUESTIONS, Decides.NOTHING

# Every field of the policy, in the file and joined with the database. A missing field is an error: a new field must say
# what it decides.
FIELDS: Mapping[type, Mapping[str, Decides]] = {
    ColumnPolicy: {
        "name": _ANSWERS,
        "lower": _ANSWERS,
        "upper": _ANSWERS,
        "step": _ANSWERS,
        "values": _ANSWERS,
        "nullable_key": _ANSWERS,
        "line": _NOTHING,
        "tight": _ANSWERS,  # whether a bound is searched for
        "max_rows_per_value": _ANSWERS,
    },
    UnitReference: {"via": _ANSWERS, "table": _ANSWERS, "key": _ANSWERS},
    TablePolicy: {
        "name": _QUESTIONS,  # analysts' name of a table of the database
        "public": _ANSWERS,
        "unit": _ANSWERS,
        "max_rows_per_unit": _ANSWERS,
        "max_groups_per_unit": _ANSWERS,
        "columns": _ANSWERS,
        "line": _NOTHING,
        "tight": _ANSWERS,
    },
    ViewPolicy: {"name": _QUESTIONS, "sql": _QUESTIONS, "line": _NOTHING},
    UserPolicy: {"name": _NOTHING, "epsilon": _NOTHING, "line": _NOTHING, "password": _NOTHING},
    PrivacyPolicy: {
        "epsilon": _NOTHING,
        "delta": _QUESTIONS,  # the default of a query is a part of it
        "accounting": _ANSWERS,
        "query_epsilon": _QUESTIONS,
        "query_delta": _QUESTIONS,
        "key_delta": _QUESTIONS,
        "max_query_epsilon": _NOTHING,
        "pure": _NOTHING,
        "min_query_epsilon": _NOTHING,
    },
    StatementLimits: dict.fromkeys(("max_bytes", "max_nodes", "max_nesting", "max_joins", "max_list"), _NOTHING),
    CompileLimits: dict.fromkeys(("max_compile_steps", "compile_timeout", "compile_memory"), _NOTHING),
    Limits: {
        "max_cells": _QUESTIONS,  # which keys are known, and which are unknown
        "statement": _NOTHING,
        "compiling": _NOTHING,
        "timeout": _NOTHING,
        "memory": _NOTHING,
        "threads": _NOTHING,
        "replay_days": _NOTHING,
        "max_result_cells": _NOTHING,
        "max_queries_per_user": _NOTHING,
        "answer_tick": _NOTHING,
    },
    PreparedPolicy: dict.fromkeys(("copy", "version", "identity", "line"), _NOTHING),
    ServerPolicy: dict.fromkeys((each.name for each in fields(ServerPolicy)), _NOTHING),
    Policy: {
        "path": _NOTHING,
        "database": _NOTHING,  # a ledger belongs to one dataset
        "privacy": _ANSWERS,
        "tables": _ANSWERS,
        "users": _NOTHING,
        "limits": _QUESTIONS,
        "ledger": _NOTHING,
        "server": _NOTHING,
        "views": _QUESTIONS,
        "prepared": _NOTHING,
        "engine_keys": _NOTHING,
    },
    # --- joined with the database ---
    Column: {
        "name": _ANSWERS,
        "type": _ANSWERS,
        "nullable": _NOTHING,  # it only saves steps without effect
        "lower": _ANSWERS,
        "upper": _ANSWERS,
        "step": _ANSWERS,
        "values": _ANSWERS,
        "nullable_key": _ANSWERS,
        "tight": _ANSWERS,
        "max_rows_per_value": _ANSWERS,
    },
    Step: {"via": _ANSWERS, "table": _QUESTIONS, "source": _ANSWERS, "key": _ANSWERS, "types": _ANSWERS},
    Copy: dict.fromkeys(("source", "unit", "version"), _NOTHING),
    Table: {
        "name": _QUESTIONS,
        "source": _ANSWERS,
        "columns": _QUESTIONS,  # columns that are read have facts of their own
        "owner": _ANSWERS,
        "owner_type": _ANSWERS,
        "owner_unique": _NOTHING,  # it only saves steps without effect
        "max_rows_per_unit": _ANSWERS,
        "max_groups_per_unit": _ANSWERS,
        "tight": _ANSWERS,
        "path": _ANSWERS,
        "keys": _QUESTIONS,  # which joins are accepted
        "unique": _QUESTIONS,  # how many rows of a unit count, which the question names
        "contents": _ANSWERS,
        "rows": _ANSWERS,
        "combinations": _ANSWERS,
        "copy": _NOTHING,
        "optional_owner": _NOTHING,  # describes rows that never count
    },
    Catalog: {
        "tables": _ANSWERS,
        "max_cells": _QUESTIONS,
        "fingerprint": _NOTHING,
        "default_schema": _QUESTIONS,
        "views": _QUESTIONS,
        "limits": _NOTHING,
        "protection": _NOTHING,
    },
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Hashes of the declarations that decide answers over a table: of the table itself, and of each column by name."""

    table: str
    columns: Mapping[str, str]


@lru_cache(maxsize=1_000)  # each table is one object
def facts_of(table: Table) -> Facts:
    """The declarations of a table that answers depend on.

    Claim: where the facts of all tables and columns that a question reads are the same, it draws its answer in the same
    way, whatever else the policy says.
    Because: they are hashes of every field that is listed as deciding answers, and different values have different
    texts.
    Needs: what is left out changes no answer. That a unit is unique, or a column never NULL, only lets the compiler
    leave out steps without effect; declarations that decide which question a text asks are part of the question.
    """
    return Facts(_hash(table), {name: _hash(column) for name, column in table.columns.items()})


def _hash(declared: object) -> str:
    return digest(term(*_decisive(declared))).hex()[:32]


def _decisive(declared: object) -> Iterator[str]:
    """The fields that decide answers and are not at their default, so that a new field changes no text by itself."""
    listed = FIELDS[type(declared)]
    for each in fields(declared):  # type: ignore[arg-type]
        value = getattr(declared, each.name)
        if listed[each.name] is Decides.ANSWERS and value is not None and value != ():
            yield leaf(each.name) + _text_of(each.name, value)


def _text_of(name: str, value: object) -> str:
    match name, value:
        case "path", tuple():
            return term(*(term(*_decisive(step)) for step in value))
        case (("rows" | "combinations"), tuple()):
            return canonical(sorted(map(canonical, value)))  # engines return rows in any order
        case "contents", Mapping():
            return canonical({column: sorted(map(canonical, values)) for column, values in value.items()})
        case _:
            return canonical(value)


def fingerprint_of(policy: Policy, tables: Mapping[str, Table]) -> str:
    """A hash of all that sessions see of a dataset: reloading a policy with another hash ends existing sessions."""
    content = {
        "accounting": policy.privacy.accounting,
        "max_cells": policy.limits.max_cells,
        "tables": [(name, facts.table, facts.columns) for name in sorted(tables) for facts in [facts_of(tables[name])]],
        "views": [(name, policy.views[name].sql) for name in sorted(policy.views)],
    }
    return digest(canonical(content)).hex()
