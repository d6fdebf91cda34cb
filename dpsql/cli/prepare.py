"""`dpsql prepare`: a copy of the private tables in which bounded queries are fast."""

from __future__ import annotations

from pathlib import Path

import click

from dpsql.cli.report import refusals
from dpsql.cli.rows import printable


@click.command()
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
@click.option("--to", metavar="PLACE", help="The copy to write: a file, or a schema. Beside the tables if not given.")
@click.option(
    "--as", "writer", metavar="URL", help="An address of the PostgreSQL database with a role that may write to it."
)
@click.option("--yes", is_flag=True, help="Write to the PostgreSQL database without asking.")
@click.option("--off", is_flag=True, help="Query the database itself again. The copy is kept.")
def prepare(policy: str, to: str | None, writer: str | None, yes: bool, off: bool) -> None:
    """Copy the tables into a form that is faster to query, for data that rarely changes.

    Each row of a private table is copied with its owner, resolved through all references, and with the owner's number
    of rows; owners with many rows are stored together. Answers, noise, prices and stored answers stay the same: the
    copy only saves work that each query would repeat.

    The policy then names the copy, and queries read it instead of the database: changes there are not visible until you
    run this again, which writes the next version. The copy of a DuckDB file is another file beside it. The copy of a
    PostgreSQL database is a schema in it, with the private tables and their indexes; it is read-only, and the role of
    the policy may read it.

    \b
    Example:
      dpsql prepare
      dpsql prepare --to /fast/clinic.duckdb
      dpsql prepare --as postgresql://owner@db.example.org/clinic
      dpsql prepare --off
    """
    from dpsql.answering import prepare_copies as preparing

    if off and (to is not None or writer is not None):
        raise click.UsageError("--off cannot be combined with --to or --as")
    with refusals():
        if off:
            _tell_forgotten(preparing.forget(Path(policy)), policy)
            return
        if not yes and preparing.writes_to_database(Path(policy)):
            click.confirm(
                "This writes copies of the private tables into the PostgreSQL database. Continue?", abort=True
            )
        done = preparing.prepare(
            Path(policy), to, writer, lambda name: click.echo(f"copying {printable(name)}", err=True)
        )
    private = sum(bool(table.unit) for table in done.tables)
    public = len(done.tables) - private
    click.echo(
        f'"{done.prepared.copy}": version {done.prepared.version}, {_plural(private, "private table")},'
        f" {_plural(public, 'public table')}"
    )
    click.echo(f"{policy} names it: queries read it from now on, and servers after a restart.")
    click.echo("Changes in the database are not visible until the next: dpsql prepare")
    if done.before is not None:
        click.echo(
            f'The previous copy, "{printable(done.before.copy)}", may be deleted when no server reads it any more.'
        )


def _tell_forgotten(before: object, policy: str) -> None:
    if before is None:
        click.echo(f"{policy}: names no prepared copy")
        return
    click.echo(f"{policy} no longer names a copy: queries read the database itself, and servers after a restart.")
    click.echo("The copy may then be deleted.")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
