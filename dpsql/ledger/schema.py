"""The ledger's tables, for both databases. They are append-only, which the storage itself enforces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FORMAT = 5
REFUSALS_SINCE = 2
MOVES_SINCE = 3
PURE_SINCE = 4
PROTECTION_SINCE = 5
FAILURES_SINCE = 5
OLDEST_FORMAT = 1
MAX_GRAINS = 2**63 - 1  # the largest value that a column holds exactly
DATASET = "dataset"  # users are "user:name", so no name can collide with it

# A ledger whose last move is neither of these two may be charged.
DEPARTED = "departed"  # it was moved elsewhere, and is closed for good
ARRIVING = "arriving"  # it is a copy whose original is not closed yet
ARRIVED = "arrived"


def subject_of(user: str) -> str:
    """The name under which a user's sums and limits are kept."""
    return f"user:{user}"


def user_of(subject: str) -> str | None:
    """The user of a subject; None: the dataset."""
    return None if subject == DATASET else subject.removeprefix("user:")


# Each table with its columns and its order of rows: all that a copy must contain.
TABLES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "ledger": (("id", "dataset", "accounting", "created"), "id"),
    # Before `charges`, which refer to them.
    "protections": (("number", "at", "charges", "subject", "units", "hash"), "number"),
    "charges": (
        (
            "number",
            "at",
            '"user"',
            "sql",
            "dataset_loss",
            "dataset_delta",
            "user_loss",
            "user_delta",
            "hash",
            "dataset_pure",
            "user_pure",
            "protection",
        ),
        "number",
    ),
    "paid": (("key", '"user"', "charge"), 'key, "user"'),
    "accounts": (("subject", "loss", "delta", "pure"), "subject"),
    "limits": (
        ("number", "at", "subject", "old_loss", "old_delta", "new_loss", "new_delta", "old_pure", "new_pure"),
        "number",
    ),
    "answers": (("key", "created", "payload", "checksum"), "key"),
    "refusals": (("number", "at", '"user"', "sql", "sqlstate", "message"), "number"),
    "moves": (("number", "at", "event", "place"), "number"),
    "failures": (("number", "at", "key", "charge", "runs", "instance", "loss", "delta", "pure"), "number"),
    "retries": (("failure", "at"), "failure"),
}
APPEND_ONLY = ("ledger", "charges", "paid", "limits", "refusals", "moves", "protections", "failures", "retries")
IN_ORDER = ("charges", "refusals", "moves", "protections", "failures")


@dataclass(frozen=True, slots=True)
class Types:
    """A database's names of types."""

    text: str
    whole: str
    binary: str
    by_key: str  # after a table that is only read by its key
    is_whole: str  # a condition on {column}, where the type alone does not ensure it

    def grains(self, column: str, least: str = "0") -> str:
        whole = self.is_whole.format(column=column)
        return f"{column} {self.whole} NOT NULL CHECK ({whole}{column} >= {least})"

    def grains_if_any(self, column: str) -> str:
        whole = self.is_whole.format(column=column)
        return f"{column} {self.whole} CHECK ({column} IS NULL OR ({whole}{column} >= 0))"


def books(types: Types) -> str:
    """The tables since the first format."""
    return f"""
CREATE TABLE ledger (
    id {types.text} NOT NULL,
    dataset {types.text} NOT NULL,
    accounting {types.text} NOT NULL,
    created {types.text} NOT NULL
);

-- One row per charge, numbered without gaps; `hash` covers the row and the hash before it.
CREATE TABLE charges (
    number {types.whole} PRIMARY KEY,
    at {types.text} NOT NULL,
    "user" {types.text} NOT NULL,
    sql {types.text} NOT NULL,
    {types.grains("dataset_loss")},
    {types.grains("dataset_delta")},
    {types.grains("user_loss", "dataset_loss")},
    {types.grains("user_delta", "dataset_delta")},
    hash {types.binary} NOT NULL
);
CREATE INDEX charges_by_user ON charges ("user");

-- Which charge first paid for an answer, per user.
CREATE TABLE paid (
    key {types.binary} NOT NULL,
    "user" {types.text} NOT NULL,
    charge {types.whole} NOT NULL REFERENCES charges,
    PRIMARY KEY (key, "user")
){types.by_key};

-- The sums of `charges`.
CREATE TABLE accounts (
    subject {types.text} PRIMARY KEY,
    {types.grains("loss")},
    {types.grains("delta")}
){types.by_key};

-- Every change of a limit; the newest row of a subject is in force. NULL: not known before, or no longer.
CREATE TABLE limits (
    number {types.whole} PRIMARY KEY,
    at {types.text} NOT NULL,
    subject {types.text} NOT NULL,
    old_loss {types.whole},
    old_delta {types.whole},
    new_loss {types.whole},
    new_delta {types.whole}
);
CREATE INDEX limits_by_subject ON limits (subject);

CREATE TABLE answers (
    key {types.binary} PRIMARY KEY,
    created {types.text} NOT NULL,
    payload {types.binary} NOT NULL
){types.by_key};
"""


def refusals(types: Types) -> str:
    return f"""
-- What was asked and not answered, numbered without gaps.
CREATE TABLE refusals (
    number {types.whole} PRIMARY KEY,
    at {types.text} NOT NULL,
    "user" {types.text} NOT NULL,
    sql {types.text} NOT NULL,
    sqlstate {types.text} NOT NULL,
    message {types.text} NOT NULL
);
CREATE INDEX refusals_by_user ON refusals ("user", at);
"""


def moves(types: Types) -> str:
    return f"""
-- From where the ledger came and where it went, numbered without gaps.
CREATE TABLE moves (
    number {types.whole} PRIMARY KEY,
    at {types.text} NOT NULL,
    event {types.text} NOT NULL CHECK (event IN ('{ARRIVING}', '{ARRIVED}', '{DEPARTED}')),
    place {types.text} NOT NULL
);
"""


def failures(types: Types) -> str:
    return f"""
-- Paid attempts that ended without an answer, numbered without gaps; the runs of one charge, too.
CREATE TABLE failures (
    number {types.whole} PRIMARY KEY,
    at {types.text} NOT NULL,
    key {types.binary} NOT NULL,
    charge {types.whole} NOT NULL REFERENCES charges,
    {types.grains("runs", "1")},
    instance {types.text} NOT NULL,
    {types.grains("loss")},
    {types.grains("delta")},
    {types.grains_if_any("pure")},
    UNIQUE (key, charge, runs)
);

-- Which of them were taken up again: each once.
CREATE TABLE retries (
    failure {types.whole} PRIMARY KEY REFERENCES failures,
    at {types.text} NOT NULL
);

-- Of key, time and answer; NULL where it was stored by an older version.
ALTER TABLE answers ADD COLUMN checksum {types.binary};
"""


# A charge that increases a sum must increase its pure part too, or make it NULL. So older writers, which do not know
# pure answers, cannot write beside newer ones: their purchases would count as pure, and free.
NOT_GROWING = (
    "NEW.subject <> OLD.subject OR NEW.loss < OLD.loss OR NEW.delta < OLD.delta OR NEW.pure < OLD.pure"
    " OR (OLD.pure IS NULL AND NEW.pure IS NOT NULL AND (OLD.loss > 0 OR OLD.delta > 0))"
    " OR (NEW.pure = OLD.pure AND (NEW.loss > OLD.loss OR NEW.delta > OLD.delta))"
)


def pure(types: Types) -> str:
    """The columns for pure prices. NULL: not pure, as in older formats, with other noise, or with a delta."""
    columns = {
        "charges": (types.grains_if_any("dataset_pure"), types.grains_if_any("user_pure")),
        "accounts": (types.grains_if_any("pure"),),
        "limits": (f"old_pure {types.whole}", f"new_pure {types.whole}"),
    }
    return "".join(f"ALTER TABLE {table} ADD COLUMN {column};\n" for table, new in columns.items() for column in new)


# The protection in force for a charge is the newest one recorded before it. Older writers name none and are refused:
# they may be calibrated to other units. A copy has the same rows, so it can be filled in order.
NOT_IN_FORCE = "NEW.protection IS {differs} (SELECT MAX(number) FROM protections WHERE charges < NEW.number)"


def protections(types: Types) -> str:
    return f"""
-- Who is protected: the newest row of a subject (a table, or the dataset) is in force. Numbered without gaps; `charges`
-- is how many there were before, `hash` covers the row and the hash before it.
CREATE TABLE protections (
    number {types.whole} PRIMARY KEY,
    at {types.text} NOT NULL,
    {types.grains("charges")},
    subject {types.text} NOT NULL,
    units {types.text} NOT NULL,
    hash {types.binary} NOT NULL
);
CREATE INDEX protections_by_subject ON protections (subject);

-- The newest of these when it was charged; NULL in charges of older formats.
ALTER TABLE charges ADD COLUMN {types.grains_if_any("protection")};
"""
