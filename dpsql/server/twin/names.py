"""Refuses names that PostgreSQL would change or reject."""

from __future__ import annotations

from dpsql.errors import PolicyError
from dpsql.policy.problems import quoted

OWN_SCHEMA = "dpsql"  # dpsql's own views, for analysts
INTERNAL_SCHEMA = "dpsql_internal"  # dpsql's own tables, which analysts cannot read
KEPT_SCHEMA = "dpsql_kept"  # kept when the twin is rebuilt

_LONGEST = 63  # bytes; PostgreSQL truncates longer names, which could make two names equal
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_RESERVED_ROLES = frozenset({"public", "none"})
_TAKEN_SCHEMAS = frozenset({OWN_SCHEMA, INTERNAL_SCHEMA, KEPT_SCHEMA, "information_schema"})


def check_role(name: str, taken: frozenset[str]) -> None:
    _check_length("user", name)
    if name in _RESERVED_ROLES | taken or name.startswith("pg_"):
        raise PolicyError(
            f"{quoted(name)} is reserved and cannot be the name of a user", hint="Give the user another name."
        )


def check_schema(name: str) -> None:
    _check_length("schema", name)
    if name in _TAKEN_SCHEMAS or name.startswith("pg_"):
        raise PolicyError(f"tables of a schema called {quoted(name)} cannot be served", hint="The name is reserved.")


def check_table(name: str) -> None:
    _check_length("table", name)


def check_column(name: str) -> None:
    _check_length("column", name)
    if name in _SYSTEM_COLUMNS:
        raise PolicyError(
            f"column {quoted(name)} cannot be served: every table of PostgreSQL has a column of this name",
            hint="Remove the column from the policy.",
        )


def _check_length(what: str, name: str) -> None:
    if not name or "\0" in name or len(name.encode()) > _LONGEST:
        raise PolicyError(f"{what} name {quoted(name)} is empty or longer than {_LONGEST} bytes")
