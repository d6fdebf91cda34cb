"""`dpsql ledger verify`: are the books sound?"""

from __future__ import annotations

from pathlib import Path

import click

from dpsql.cli.report import refusals


@click.group()
def ledger() -> None:
    """Look after the ledger.

    \b
    Example:
      dpsql ledger verify
    """


@ledger.command()
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def verify(policy: str) -> None:
    """Recompute every sum from the rows that were only ever added.

    Prints "sound" and how much was checked, or each contradiction, and then ends with status 1. Writes nothing,
    and may run while queries do.

    \b
    Example:
      dpsql ledger verify
      dpsql ledger verify --policy clinic/dpsql.toml
    """
    from dpsql.errors import PolicyError
    from dpsql.ledger.opening import ledger_place, read_books
    from dpsql.policy.loader import load

    with refusals():
        declared = load(Path(policy))
        place = ledger_place(declared)
        with read_books(declared) as books:
            if books is None:
                raise PolicyError(f'there is no ledger at "{place}" yet', hint="The first query makes it.")
            found = books.verify()
            counts = None if found else books.counts()
    if counts is None:
        for contradiction in found:
            click.echo(f"{place}: {contradiction}")
        click.echo(f"error: {_plural(len(found), 'contradiction')}: the ledger is not sound", err=True)
        click.echo("hint: Stop serving, keep the ledger, and compare it with a copy.", err=True)
        raise SystemExit(1)
    click.echo(
        f"{place}: sound, {_plural(counts.charges, 'charge')}, {_plural(counts.refusals, 'refusal')}, "
        f"{_plural(counts.limit_changes, 'change')} of limits"
    )


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
