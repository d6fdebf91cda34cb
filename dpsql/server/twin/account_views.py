"""dpsql.budget and dpsql.history in the twin: each user's own account, refreshed just before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """What a user may spend, has spent and has left. Rho is None under basic accounting.

    The pure columns are None where spending was not all pure, or where no more pure answers can be paid.
    """

    accounting: str
    limit_epsilon: float
    spent_epsilon: float
    left_epsilon: float
    limit_rho: float | None
    spent_rho: float | None
    left_rho: float | None
    limit_delta: float
    spent_delta: float
    left_delta: float
    queries_left: int  # at the default price
    spent_pure: float | None = None
    left_pure: float | None = None
    # Group privacy for 2 and for 5 people, of the total of all users; None: no bound.
    total_epsilon_of_2: float | None = None
    total_delta_of_2: float | None = None
    total_epsilon_of_5: float | None = None
    total_delta_of_5: float | None = None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One charge or refusal."""

    time: datetime
    outcome: str  # paid, replayed or refused
    epsilon: float | None
    rho: float | None
    delta: float | None
    sqlstate: str
    message: str | None
    query: str
    pure: float | None = None  # the epsilon of a pure answer


# The columns after the user's name, in the order of the fields above.
_VIEWS = {
    "budget": (
        "What you may spend, have spent and have left; and what the total of the dataset promises to 2 and to 5 people "
        "who belong together, NULL where there is no bound.",
        "accounting text, "
        "limit_epsilon double precision, spent_epsilon double precision, left_epsilon double precision, "
        "limit_rho double precision, spent_rho double precision, left_rho double precision, "
        "limit_delta double precision, spent_delta double precision, left_delta double precision, queries_left bigint, "
        "spent_pure double precision, left_pure double precision, "
        "total_epsilon_of_2 double precision, total_delta_of_2 double precision, "
        "total_epsilon_of_5 double precision, total_delta_of_5 double precision",
    ),
    "history": (
        "What you asked, and what was paid for it or why it was refused.",
        '"time" timestamp with time zone, outcome text, epsilon double precision, rho double precision, '
        "delta double precision, sqlstate text, message text, query text, pure double precision",
    ),
}


def account_statements(users: sql.Identifier) -> Iterator[sql.Composed]:
    """Tables that no user can read, and views that show each user only their own rows."""
    for name, (words, columns) in _VIEWS.items():
        table, view = sql.Identifier("dpsql_internal", name), sql.Identifier("dpsql", name)
        # Unlogged: a copy of the ledger, written often.
        yield sql.SQL("CREATE UNLOGGED TABLE {} (username text NOT NULL, {})").format(table, sql.SQL(columns))
        yield sql.SQL("CREATE INDEX ON {} (username)").format(table)
        # session_user, which a user cannot change: SET ROLE changes current_user only.
        yield sql.SQL(
            "CREATE VIEW {} WITH (security_barrier) AS SELECT * FROM {} WHERE username = session_user::text"
        ).format(view, table)
        yield sql.SQL("COMMENT ON VIEW {} IS {}").format(view, sql.Literal(words))
        yield sql.SQL("GRANT SELECT ON {} TO {}").format(view, users)


def refresh(
    connection: psycopg.Connection[TupleRow],
    user: str,
    budget: Sequence[BudgetRow] | None,
    history: Sequence[HistoryRow] | None,
) -> None:
    """Replace the user's rows; None leaves those of that view as they are."""
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = off")
        # Two sessions of one user may refresh at once; the rows must not be duplicated.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [user])
        for name, rows in (("budget", budget), ("history", history)):
            if rows is not None:
                table = sql.Identifier("dpsql_internal", name)
                connection.execute(sql.SQL("DELETE FROM {} WHERE username = %s").format(table), [user])
                with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {} FROM STDIN").format(table)) as copy:
                    for row in rows:
                        copy.write_row((user, *map(_storable, astuple(row))))


def _storable(cell: object) -> object:
    """PostgreSQL's text cannot hold a zero byte, which a query through the Python driver may contain."""
    return cell.replace("\0", "") if isinstance(cell, str) else cell
