"""The command line. Engines are imported when a command runs, so that --help is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql import __version__
from dpsql.cli.report import describe_defect, refusals
from dpsql.cli.rows import aligned

if TYPE_CHECKING:
    from dpsql.dbapi import Cursor
    from dpsql.policy.model import Table

Command = Callable[..., Any]


def main() -> None:
    """Run the command line. Whatever happens, the user sees sentences."""
    try:
        commands(prog_name="dpsql")
    except Exception as error:
        click.echo(describe_defect(error), err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Ordinary SQL in, differentially private answers out.

    \b
    Example:
      dpsql check
      dpsql explain "SELECT state, COUNT(*) FROM people GROUP BY state"
      dpsql query "SELECT state, COUNT(*) FROM people GROUP BY state"

    Exit status: 0 if all went well, 1 if something was refused or failed, 2 if the command was not understood.
    """


# --- options that several commands share ---


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


# --- commands ---


@commands.command()
@click.argument("policy", default="dpsql.toml")
def check(policy: str) -> None:
    """Check a policy file against its database.

    Reports every problem at once, with its line and what to write instead. Shows no data and spends nothing.

    \b
    Example:
      dpsql check
      dpsql check clinic/dpsql.toml
    """
    from dpsql import dataset

    with refusals():
        catalog = dataset.check(Path(policy))
    tables = {table.name: table for table in catalog.tables.values()}.values()
    private = _counted([table for table in tables if table.is_private], "private")
    public = _counted([table for table in tables if not table.is_private], "public")
    click.echo(f"{policy}: ok, {private}, {public}")


def _counted(tables: list[Table], sort: str) -> str:
    columns = sum(len(table.columns) for table in tables)
    return f"{_plural(len(tables), f'{sort} table')} with {_plural(columns, 'column')}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@commands.command()
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


@commands.command()
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
