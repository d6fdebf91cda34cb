"""`dpsql check`: is the policy right, and does it fit the database?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals

if TYPE_CHECKING:
    from dpsql.policy.model import Table


@click.command()
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
