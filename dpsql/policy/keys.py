"""The table of policy keys: what each section of the policy file may hold, with default and meaning.

The loader refuses any other key, and the reference page is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SectionName = Literal[
    "database", "database.prepared", "privacy", "tables", "tables.unit", "tables.columns", "views", "users", "limits",
    "server",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyKey:
    name: str
    takes: str
    default: str  # as the reference page shows it
    meaning: str


REQUIRED = "required"
NONE = "none"

# How each section is written in the file, for the reference page.
HEADERS: dict[SectionName, str] = {
    "database": "[database]",
    "database.prepared": "[database.prepared]",
    "privacy": "[privacy]",
    "tables": "[tables.NAME]",
    "tables.unit": "unit = { … } in [tables.NAME]",
    "tables.columns": "[tables.NAME.columns]: COLUMN = { … }",
    "views": "[views.NAME]",
    "users": "[users.NAME]",
    "limits": "[limits]",
    "server": "[server]",
}

KEYS: dict[SectionName, tuple[PolicyKey, ...]] = {
    "database": (
        PolicyKey(
            "url", "an address", REQUIRED, 'The data: "duckdb:///clinic.duckdb", "postgresql://user@host/clinic".'
        ),
        PolicyKey(
            "ledger",
            "a path or an address",
            "a file beside a DuckDB database; required for PostgreSQL",
            "The ledger: a file on a disk that is never restored from a backup, or a PostgreSQL database.",
        ),
        PolicyKey("prepared", "a section", NONE, "The copy that queries read; `dpsql prepare` writes it."),
    ),
    "database.prepared": (
        PolicyKey("copy", "a file or schema", REQUIRED, "Where the copy is."),
        PolicyKey("version", "an integer", REQUIRED, "How many times the data were prepared."),
        PolicyKey("identity", "a string", REQUIRED, "The copy holds the same string, so that no other copy is read."),
    ),
    "privacy": (
        PolicyKey("epsilon", "a number up to 9000", REQUIRED, "The most that all answers together may reveal."),
        PolicyKey("delta", "a number from 0 to less than 1", "0", "The probability with which epsilon may not hold."),
        PolicyKey(
            "accounting",
            '"zcdp" or "basic"',
            '"zcdp" where delta is above 0, else "basic"',
            "How prices add up: zcdp has Gaussian noise and suits many answers, basic has Laplace noise and suits few.",
        ),
        PolicyKey("query_epsilon", "a number", "0.1", "The price of a query if the analyst sets none."),
        PolicyKey(
            "query_delta",
            "a number",
            "the same fraction of key_delta as the price is of the total",
            "The delta that a query with unknown keys spends.",
        ),
        PolicyKey(
            "key_delta",
            "a number below delta",
            "half of delta under zcdp",
            "The part of delta reserved for unknown keys. Under basic it is all of delta.",
        ),
        PolicyKey("max_query_epsilon", "a number", "epsilon", "The most that one query may cost."),
        PolicyKey("min_query_epsilon", "a number", NONE, "The least that one query may cost."),
        PolicyKey("pure", "true or false", "false", "Whether analysts may buy pure answers under zcdp (dpsql.pure)."),
    ),
    "tables": (
        PolicyKey("public", "true or false", "false", "Whether the table holds nothing about people."),
        PolicyKey("unit", "a column, or a reference", "required of private tables", "The owner of each row."),
        PolicyKey("max_rows_per_unit", "an integer", "1", "The most rows of one unit that count."),
        PolicyKey(
            "max_groups_per_unit",
            "an integer",
            "max_rows_per_unit",
            "The most groups in which one unit counts, if keys are unknown.",
        ),
        PolicyKey(
            "tight",
            "true or false",
            "false where more than 10 rows are allowed",
            "Whether units come near max_rows_per_unit, so that no smaller contribution bound is searched for.",
        ),
        PolicyKey("columns", "a section", "no columns", "What analysts may use; other columns do not exist for them."),
    ),
    "tables.unit": (
        PolicyKey("via", "a column, or a list of them", REQUIRED, "The columns that refer to a row of another table."),
        PolicyKey("table", "a declared table", REQUIRED, "That table."),
        PolicyKey("key", "a column, or a list of them", REQUIRED, "The unique columns of that table."),
    ),
    "tables.columns": (
        PolicyKey("min", "a number or a date", NONE, "Smaller values are raised to it. Sums and averages need it."),
        PolicyKey("max", "a number or a date", NONE, "Larger values are lowered to it. Sums and averages need it."),
        PolicyKey("step", "a number", "of the type, or chosen", "The grid to which values are rounded."),
        PolicyKey("values", "a list", NONE, "The keys of the column: all are returned, and others are NULL."),
        PolicyKey("nullable_key", "true or false", "false", "Whether NULL is returned as a key of its own."),
        PolicyKey(
            "tight",
            "true or false",
            NONE,
            "Whether sums come near the bounds, so that no smaller bound is searched for.",
        ),
        PolicyKey(
            "max_rows_per_value",
            "an integer",
            "counted where the table is small",
            "In a public table: the most rows with the same value, which bounds the fan-out of joins.",
        ),
    ),
    "views": (PolicyKey("sql", "a query", REQUIRED, "The query of the view. A view grants no access of its own."),),
    "users": (
        PolicyKey(
            "epsilon", "a number", "the total", "The most that this user may spend. Only the total is a guarantee."
        ),
        PolicyKey(
            "password", "a SCRAM-SHA-256 verifier", NONE, "Written by `dpsql user password`; without one, no login."
        ),
    ),
    "limits": (
        PolicyKey("timeout", "seconds", "60", "How long the engine may work on one query."),
        PolicyKey("memory", "an amount", '"2GB"', "How much memory DuckDB may use."),
        PolicyKey("threads", "an integer", "2", "How many threads DuckDB may use."),
        PolicyKey("replay_days", "days", NONE, "Days after which a stored answer expires and is charged again."),
        PolicyKey("max_cells", "an integer", "100,000", "The most combinations of declared keys in one query."),
        PolicyKey("max_result_cells", "an integer", "5,000,000", "The most rows times columns of an answer."),
        PolicyKey("max_queries_per_user", "an integer", "4", "Concurrent statements of one user."),
        PolicyKey(
            "answer_tick", "seconds", NONE, "Answers are sent at multiples of it, so that their timing reveals less."
        ),
        PolicyKey("max_compile_steps", "an integer", "5,000,000", "Steps that compiling one query may take."),
        PolicyKey("compile_timeout", "seconds", "10", "CPU time that compiling one query may take."),
        PolicyKey("compile_memory", "an amount", '"500MB"', "Memory that compiling one query may take."),
        PolicyKey("max_bytes", "an integer", "100,000", "Bytes of the longest statement."),
        PolicyKey("max_nodes", "an integer", "50,000", "Words, and parts of expressions, of one statement."),
        PolicyKey("max_nesting", "an integer", "60", "How deep a statement may be nested."),
        PolicyKey("max_joins", "an integer", "64", "Joins of one statement."),
        PolicyKey("max_list", "an integer", "10,000", "Values of one IN list."),
    ),
    "server": (
        PolicyKey("host", "an address", '"127.0.0.1"', "Where the server listens."),
        PolicyKey("port", "a port", "5437", "The port it listens on."),
        PolicyKey(
            "tls",
            '"remote", "required" or "off"',
            '"remote"',
            "Whether TLS is required: from remote clients by default.",
        ),
        PolicyKey("certificate", "a PEM file", "one of its own", "The certificate of the server."),
        PolicyKey("key", "a PEM file", "one of its own", "The private key of the certificate."),
        PolicyKey("max_connections", "an integer", "100", "Concurrent connections."),
        PolicyKey(
            "max_connections_per_user",
            "an integer",
            "half of them, or 10 if that is more",
            "Concurrent connections of one user.",
        ),
        PolicyKey("login_timeout", "seconds", "30", "How long a client may take to log in."),
        PolicyKey("metrics_port", "a port", NONE, "Where /metrics and /healthz are served."),
        PolicyKey("twin", "an address", "a server of its own", "An empty PostgreSQL database for the twin."),
        PolicyKey("state", "a folder", "`.dpsql` beside the policy file", "What the server keeps between runs."),
    ),
}


def names(section: SectionName) -> tuple[str, ...]:
    return tuple(key.name for key in KEYS[section])
