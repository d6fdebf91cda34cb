"""The tables and triggers of a ledger's file, and its upgrades from older formats."""

from __future__ import annotations

import sqlite3

from dpsql.ledger.schema import (
    DEPARTED,
    FAILURES_SINCE,
    FORMAT,
    IN_ORDER,
    MOVES_SINCE,
    NOT_GROWING,
    NOT_IN_FORCE,
    PROTECTION_SINCE,
    PURE_SINCE,
    REFUSALS_SINCE,
    Types,
    books,
    failures,
    moves,
    protections,
    pure,
    refusals,
)

APPLICATION = 0x64707371  # "dpsq": marks the file as a ledger of dpsql

_TYPES = Types(
    text="TEXT",
    whole="INTEGER",
    binary="BLOB",
    by_key=" WITHOUT ROWID",
    is_whole="typeof({column}) = 'integer' AND ",
)


def _only_added_to(*tables: str) -> str:
    return "".join(
        f"""
CREATE TRIGGER {table}_never_{event.lower()} BEFORE {event} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
"""
        for table in tables
        for event in ("UPDATE", "DELETE")
    ) + "".join(_in_order(table) for table in tables if table in IN_ORDER)


def _in_order(table: str) -> str:
    """REPLACE deletes rows without firing triggers; a number that must be the next one can replace nothing."""
    return f"""
CREATE TRIGGER {table}_in_order BEFORE INSERT ON {table}
WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM {table})
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
"""


_BOOKS = f"""
{books(_TYPES)}
{_only_added_to("ledger", "charges", "paid", "limits")}

CREATE TRIGGER accounts_never_delete BEFORE DELETE ON accounts
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;
"""

_REFUSALS = f"""
{refusals(_TYPES)}
{_only_added_to("refusals")}
"""

_MOVES = f"""
{moves(_TYPES)}
{_only_added_to("moves")}

CREATE TRIGGER charges_end_with_departure BEFORE INSERT ON charges
WHEN (SELECT event FROM moves ORDER BY number DESC LIMIT 1) = '{DEPARTED}'
BEGIN SELECT RAISE(ABORT, 'the ledger was moved'); END;
"""

_PURE = f"""
{pure(_TYPES)}
DROP TRIGGER IF EXISTS accounts_never_shrink;
CREATE TRIGGER accounts_never_shrink BEFORE UPDATE ON accounts
WHEN {NOT_GROWING}
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;
"""

_PROTECTIONS = f"""
{protections(_TYPES)}
{_only_added_to("protections")}

CREATE TRIGGER charges_under_protection BEFORE INSERT ON charges
WHEN {NOT_IN_FORCE.format(differs="NOT")}
BEGIN SELECT RAISE(ABORT, 'the ledger protects other units'); END;
"""

_FAILURES = f"""
{failures(_TYPES)}
{_only_added_to("failures", "retries")}
"""

# Atomic: the caller commits the transaction that this begins.
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
BEGIN;
{_BOOKS}
{_REFUSALS}
{_MOVES}
{_PURE}
{_PROTECTIONS}
{_FAILURES}
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
"""


def format_of(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def upgrade(db: sqlite3.Connection) -> None:
    """Upgrade a ledger to the present format, in the caller's transaction. Nothing is lost."""
    found = format_of(db)
    for since, script in (
        (REFUSALS_SINCE, _REFUSALS),
        (MOVES_SINCE, _MOVES),
        (PURE_SINCE, _PURE),
        (PROTECTION_SINCE, _PROTECTIONS),
        (FAILURES_SINCE, _FAILURES),
    ):
        if found < since:
            for statement in _statements(script):
                db.execute(statement)
    if found < FORMAT:
        db.execute(f"PRAGMA user_version = {FORMAT}")


def _statements(script: str) -> list[str]:
    """The statements one by one, since `executescript` would commit the transaction."""
    statements, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    return statements
