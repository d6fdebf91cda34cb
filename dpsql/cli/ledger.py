"""`dpsql ledger`: are the books sound, where are they kept, and whom do they protect?"""

from __future__ import annotations

from pathlib import Path

import click

from dpsql.cli.report import refusals
from dpsql.cli.rows import printable


@click.group()
def ledger() -> None:
    """Look after the ledger.

    \b
    Example:
      dpsql ledger verify
      dpsql ledger migrate postgresql://dpsql@books.example/clinic
      dpsql ledger protect
      dpsql ledger accept
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
    from dpsql.ledger.opening import ledger_location, read_books
    from dpsql.policy.load import load

    with refusals():
        declared = load(Path(policy))
        location = ledger_location(declared)
        with read_books(declared) as books:
            if books is None:
                raise PolicyError(f'there is no ledger at "{location}" yet', hint="The first query makes it.")
            found = books.verify()
            counts = None if found else books.counts()
    if counts is None:
        for contradiction in found:
            click.echo(f"{location}: {contradiction}")
        click.echo(f"error: {_plural(len(found), 'contradiction')}: the ledger is not sound", err=True)
        click.echo("hint: Stop serving, keep the ledger, and compare it with a copy.", err=True)
        raise SystemExit(1)
    click.echo(
        f"{location}: sound, {_plural(counts.charges, 'charge')}, {_plural(counts.refusals, 'refusal')}, "
        f"{_plural(counts.limit_changes, 'change')} of limits"
    )


@ledger.command(short_help="Move the ledger to a file, or to a PostgreSQL server.")
@click.argument("target")
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def migrate(target: str, policy: str) -> None:
    """Move the ledger to TARGET: a new file, or a database on a PostgreSQL server.

    Several proxies, on several machines, can share a ledger on a server. Everything is copied and compared: charges,
    refusals, changes of limits and stored answers. The old ledger is closed for good, and says where the new one is.
    Queries wait meanwhile, and are refused until the policy names the new place. When interrupted, run it again.

    A password need not be in the address: PostgreSQL's own PGPASSWORD and password file are read.

    \b
    Example:
      dpsql ledger migrate postgresql://dpsql@books.example/clinic
      dpsql ledger migrate clinic.duckdb.ledger
    """
    from dpsql.errors import BadSetting
    from dpsql.ledger.migrate import move_ledger
    from dpsql.ledger.opening import dataset_name, ledger_location
    from dpsql.policy.address import PostgresAddress
    from dpsql.policy.load import load

    with refusals():
        declared = load(Path(policy))
        source = ledger_location(declared)
        try:
            location = PostgresAddress(target) if "://" in target else Path(target).resolve()
        except ValueError:
            raise BadSetting(
                "TARGET is neither a path nor the address of a PostgreSQL database",
                hint="Write: postgresql://user@host/database",
            ) from None
        moved = move_ledger(source, location, dataset=dataset_name(declared), accounting=declared.privacy.accounting)
    click.echo(f"{source}: moved to {location} with {_plural(moved.charges, 'charge')}, and closed for good")
    click.echo(
        f"Name its new place in {policy}, as `ledger` in [database], and keep the old one: it says where to look."
    )


@ledger.command(short_help="Accept a ledger that has lost charges, or was damaged and is sound again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def accept(yes: bool, policy: str) -> None:
    """Accept the ledger as it is now.

    dpsql keeps the newest charge it has seen in its state folder. Where the ledger no longer holds that charge (an
    older copy was put back, a replica that lags behind took over), or was found damaged, nothing is charged any more.
    Put the right ledger back if there is one. If not, this command lets the present one be charged again, once it is
    sound: what was spent in the lost charges is then forgotten. Stored answers that were altered are dropped.

    On each machine where a proxy refuses. Servers need not be started anew.

    \b
    Example:
      dpsql ledger accept
      dpsql ledger accept --policy clinic/dpsql.toml --yes
    """
    from dpsql.ledger.opening import accept_ledger, ledger_location
    from dpsql.policy.load import load

    with refusals():
        declared = load(Path(policy))
        location = ledger_location(declared)
        click.echo(f"{location}: charges that it has lost are forgotten, and what they paid for is protected no more.")
        if not yes:
            click.confirm("Accept the ledger as it is?", abort=True)
        accepted = accept_ledger(declared)
    if accepted.dropped:
        click.echo(f"{location}: {_plural(accepted.dropped, 'stored answer')} dropped that had been altered")
    seen = "" if accepted.before is None else f"; charge {accepted.before.number:,} was the newest that was seen"
    click.echo(f"{location}: accepted with {_plural(accepted.now.number, 'charge')}{seen}")


@ledger.command(short_help="Accept that the policy protects a different unit than before.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def protect(yes: bool, policy: str) -> None:
    """Accept that the policy now protects a different unit than the ledger has counted for.

    A total is a promise to the units (people) that answers were calibrated to. A policy that declares another unit for
    a table, or makes a table public or private that was not, is refused until it is accepted here. From then on
    the total counts for the units of the policy. Answers given before protect the units of then, and stay spent.
    Servers that still run with the other policy charge nothing any more, until they are started anew.

    \b
    Example:
      dpsql ledger protect
      dpsql ledger protect --policy clinic/dpsql.toml --yes
    """
    from dpsql.answering import open_dataset as dataset
    from dpsql.errors import PolicyError
    from dpsql.ledger.opening import ledger_location, open_ledger, read_books

    with refusals():
        checked = dataset.check(Path(policy))
        location, protection = ledger_location(checked.policy), checked.catalog.protection
        with read_books(checked.policy) as books:
            if books is None:
                raise PolicyError(f'there is no ledger at "{location}" yet', hint="The first query makes it.")
            differences = protection.differences({each.subject: each.units for each in books.protections()})
    if not differences:
        click.echo(f"{location}: protects what {policy} declares; nothing to accept")
        return
    for difference in differences:
        click.echo(f"{location}: {printable(str(difference))}")
    click.echo("What was answered so far protects the units in the ledger, and stays spent. Those in the policy are")
    click.echo("protected from now on: a person who has several of the old units may have been told more about.")
    if not yes:
        click.confirm("Accept the units of the policy?", abort=True)
    with refusals():
        open_ledger(checked.policy, checked.accountant, protection, accept_units=True).close()
    click.echo(f"{location}: the total counts for the units of {policy} from now on")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
