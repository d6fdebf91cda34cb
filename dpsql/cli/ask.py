"""`dpsql query` and `dpsql explain`: a question and its answer, or its price."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import click

from dpsql.cli.report import refusals
from dpsql.cli.rows import aligned

if TYPE_CHECKING:
    from dpsql.dbapi import Cursor

Command = Callable[..., Any]


def _number(text: str) -> Decimal:
    """A number exactly as the user wrote it."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise click.BadParameter(f"{text!r} is not a number") from None


def _asks_a_question(command: Command) -> Command:
    for option in (
        click.option("--epsilon", metavar="X", type=_number, help="Price of the query. Default: the policy's."),
        click.option("--user", metavar="NAME", help="Whose account pays. Default: the policy's only user."),
        click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file."),
        click.argument("sql"),
    ):
        command = option(command)
    return command


def _set_price(cursor: Cursor, epsilon: Decimal | None) -> None:
    if epsilon is not None:
        cursor.execute(f"SET dpsql.epsilon = {epsilon}")


@click.command()
@_asks_a_question
@click.option("--fresh", is_flag=True, help="Buy a new answer, even if this question was answered before.")
@click.option("--new-ledger", is_flag=True, help="Create a missing ledger. It forgets what was spent before.")
def query(sql: str, policy: str, user: str | None, epsilon: Decimal | None, fresh: bool, new_ledger: bool) -> None:
    """Answer a query, and pay for it.

    Rows go to standard output; what was paid and what is left goes to standard error.

    \b
    Example:
      dpsql query "SELECT state, COUNT(*) FROM people GROUP BY state"
      dpsql query --user alice --epsilon 0.5 "SELECT AVG(age) FROM people"
    """
    from dpsql.dbapi import NUMBER, connect

    with refusals(sql), connect(policy, user, new_ledger=new_ledger) as connection, connection.cursor() as cursor:
        _set_price(cursor, epsilon)
        if fresh:
            cursor.execute("SET dpsql.fresh = on")
        cursor.execute(sql)
        if cursor.description is not None:
            names = [column[0] for column in cursor.description]
            numeric = [column[1] == NUMBER for column in cursor.description]
            for line in aligned(names, cursor.fetchall(), numeric=numeric):
                click.echo(line)
        if cursor.cost is not None:
            left = connection.budget.left
            click.echo(f"price: {cursor.cost}; paid now: {cursor.cost.charged}; left: {left}", err=True)


@click.command()
@_asks_a_question
def explain(sql: str, policy: str, user: str | None, epsilon: Decimal | None) -> None:
    """Show what a query would cost, its noise and why it is private.

    Free: nothing is read from private tables and nothing is paid.

    \b
    Example:
      dpsql explain "SELECT state, AVG(income) FROM people GROUP BY state"
    """
    from dpsql.dbapi import connect

    with refusals(sql), connect(policy, user) as connection, connection.cursor() as cursor:
        _set_price(cursor, epsilon)
        click.echo(cursor.explain(sql))
