"""What the file of a ledger holds. Rows are only ever added; the file itself forbids to change or remove them."""

from __future__ import annotations

import sqlite3

FORMAT = 2
OLDEST_FORMAT = 1  # without refusals
APPLICATION = 0x64707371  # "dpsq": marks the file as a ledger of dpsql
MAX_GRAINS = 2**63 - 1  # what a column of SQLite holds exactly
DATASET = "dataset"  # users are "user:name", so no name can collide with it


def subject_of(user: str) -> str:
    """Under which name a user's sums and limits are kept."""
    return f"user:{user}"


def user_of(subject: str) -> str | None:
    """Whose sums and limits are kept under a name; None is the dataset."""
    return None if subject == DATASET else subject.removeprefix("user:")


def _only_added_to(*tables: str) -> str:
    return "".join(
        f"""
CREATE TRIGGER {table}_never_{event.lower()} BEFORE {event} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
"""
        for table in tables
        for event in ("UPDATE", "DELETE")
    )


def _in_order(table: str) -> str:
    """REPLACE deletes without asking the triggers; a number that must be the next one leaves nothing to replace."""
    return f"""
CREATE TRIGGER {table}_in_order BEFORE INSERT ON {table}
WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM {table})
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END;
"""


_CHARGES = f"""
CREATE TABLE ledger (
    id TEXT NOT NULL,
    dataset TEXT NOT NULL,
    accounting TEXT NOT NULL,
    created TEXT NOT NULL
);

-- One row per charge, numbered without gaps; `hash` covers the row and the hash before it.
CREATE TABLE charges (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    user TEXT NOT NULL,
    sql TEXT NOT NULL,
    dataset_loss INTEGER NOT NULL CHECK (typeof(dataset_loss) = 'integer' AND dataset_loss >= 0),
    dataset_delta INTEGER NOT NULL CHECK (typeof(dataset_delta) = 'integer' AND dataset_delta >= 0),
    user_loss INTEGER NOT NULL CHECK (typeof(user_loss) = 'integer' AND user_loss >= dataset_loss),
    user_delta INTEGER NOT NULL CHECK (typeof(user_delta) = 'integer' AND user_delta >= dataset_delta),
    hash BLOB NOT NULL
);
CREATE INDEX charges_by_user ON charges (user);

-- Which charge first paid for an answer, per user.
CREATE TABLE paid (
    key BLOB NOT NULL,
    user TEXT NOT NULL,
    charge INTEGER NOT NULL REFERENCES charges,
    PRIMARY KEY (key, user)
) WITHOUT ROWID;

-- The sums of `charges`.
CREATE TABLE accounts (
    subject TEXT PRIMARY KEY,
    loss INTEGER NOT NULL CHECK (typeof(loss) = 'integer' AND loss >= 0),
    delta INTEGER NOT NULL CHECK (typeof(delta) = 'integer' AND delta >= 0)
) WITHOUT ROWID;

-- Every change of a limit; the newest row of a subject is in force. NULL: not known before, or no longer.
CREATE TABLE limits (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    subject TEXT NOT NULL,
    old_loss INTEGER,
    old_delta INTEGER,
    new_loss INTEGER,
    new_delta INTEGER
);
CREATE INDEX limits_by_subject ON limits (subject);

CREATE TABLE answers (
    key BLOB PRIMARY KEY,
    created TEXT NOT NULL,
    payload BLOB NOT NULL
) WITHOUT ROWID;

{_only_added_to("ledger", "charges", "paid", "limits")}
{_in_order("charges")}

CREATE TRIGGER accounts_never_shrink BEFORE UPDATE ON accounts
WHEN NEW.subject <> OLD.subject OR NEW.loss < OLD.loss OR NEW.delta < OLD.delta
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;

CREATE TRIGGER accounts_never_delete BEFORE DELETE ON accounts
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;
"""

# Since format 2.
_REFUSALS = f"""
-- What was asked and not answered, numbered without gaps.
CREATE TABLE refusals (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    user TEXT NOT NULL,
    sql TEXT NOT NULL,
    sqlstate TEXT NOT NULL,
    message TEXT NOT NULL
);
CREATE INDEX refusals_by_user ON refusals (user, at);

{_only_added_to("refusals")}
{_in_order("refusals")}
"""

# As a whole or not at all: the transaction that it begins is the caller's to commit.
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
BEGIN;
{_CHARGES}
{_REFUSALS}
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
"""


def format_of(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(db: sqlite3.Connection) -> None:
    """Bring a ledger of an older format to the present one, in the transaction of the caller. It loses nothing."""
    if format_of(db) < FORMAT:
        for statement in _statements(_REFUSALS):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {FORMAT}")


def _statements(script: str) -> list[str]:
    """One by one, since SQLite runs a script only outside of a transaction."""
    statements, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    return statements
