"""`dpsql ledger`: verify the ledger, move it, accept its state, change whom it protects."""

from __future__ import annotations

from pathlib import Path

import click

from dpsql.cli.report import refusals
from dpsql.cli.rows import printable


@click.group()
def ledger() -> None:
    """Maintain the ledger.

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
    """Recompute the hash chain and every sum from the append-only rows.

    Prints "sound" and what was checked, or each contradiction, with exit status 1. Writes nothing, and may run while
    queries run.

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
    refusals, changes of limits and stored answers. The old ledger is closed for good, and refers to the new place.
    Queries wait meanwhile, and are refused until the policy names the new place. If interrupted, run it again.

    The address need not contain a password: PGPASSWORD and PostgreSQL's password file are read.

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
        f"Set `ledger` in [database] of {policy} to the new place, and keep the old ledger: it refers to the new one."
    )


@ledger.command(short_help="Accept a ledger that has lost charges, or was damaged and is sound again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def accept(yes: bool, policy: str) -> None:
    """Accept the ledger in its present state.

    dpsql records the newest charge that it has seen in its state folder. If the ledger no longer contains that charge
    (an older copy was restored, a lagging replica took over), or was found damaged, nothing can be charged. Restore the
    right ledger if it exists. If not, this command allows charges to the present one, if it is sound: what was spent in
    the lost charges is then forgotten. Altered stored answers are dropped.

    Run it on each machine whose proxy refuses. Servers need no restart.

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
        click.echo(f"{location}: the charges that it has lost are forgotten, and no longer count towards the total.")
        if not yes:
            click.confirm("Accept the ledger in its present state?", abort=True)
        accepted = accept_ledger(declared)
    if accepted.dropped:
        click.echo(f"{location}: {_plural(accepted.dropped, 'stored answer')} dropped that had been altered")
    seen = "" if accepted.before is None else f"; charge {accepted.before.number:,} was the newest seen"
    click.echo(f"{location}: accepted with {_plural(accepted.now.number, 'charge')}{seen}")


@ledger.command(short_help="Accept that the policy protects a different unit than before.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def protect(yes: bool, policy: str) -> None:
    """Accept that the policy now protects a different unit than the ledger has counted for.

    A total is a promise to the units (people) that answers were calibrated to. A policy that declares another unit for
    a table, or makes a table public or private that was not, is refused until it is accepted here. From then on the
    total counts for the units of the policy. Earlier answers protect the earlier units, and stay spent. Servers that
    still run with the other policy charge nothing until they are restarted.

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
    click.echo("Earlier answers protect the units in the ledger, and stay spent. The units of the policy are")
    click.echo(
        "protected from now on: earlier answers may reveal more about a person who has several of the old units."
    )
    if not yes:
        click.confirm("Accept the units of the policy?", abort=True)
    with refusals():
        open_ledger(checked.policy, checked.accountant, protection, accept_units=True).close()
    click.echo(f"{location}: the total counts for the units of {policy} from now on")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
