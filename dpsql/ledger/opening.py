"""From a policy to its ledger: where it is kept, and what it must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsql.errors import PolicyError
from dpsql.ledger import Ledger
from dpsql.ledger.books import Books
from dpsql.ledger.identity import missing
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.policy.address import is_postgres_address
from dpsql.policy.loader import database_name, database_path
from dpsql.policy.model import Place, Policy
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Accountant


def ledger_place(policy: Policy) -> Place:
    """Where the ledger is: beside the database, so that another policy on the same data pays from the same budget."""
    if policy.ledger is not None:
        return policy.ledger
    database = database_path(policy)
    return database.with_name(database.name + ".ledger")


def dataset_name(policy: Policy) -> str:
    """Under which name the ledger knows the data that it is about."""
    return database_name(policy)


def ledger_exists(policy: Policy) -> bool:
    place = ledger_place(policy)
    if isinstance(place, Path):
        return place.exists()
    from dpsql.ledger.postgres import server_has_ledger

    return server_has_ledger(place)


def open_ledger(
    policy: Policy,
    accountant: Accountant,
    protection: Protection,
    *,
    new_ledger: bool = False,
    accept_units: bool = False,
) -> Ledger:
    """The ledger, with the policy's limits in force. One that the policy places elsewhere is only made when told.

    Raises PolicyError where it has counted for other units, unless told to accept these.
    """
    return _opened(policy, accountant, protection, new_ledger=new_ledger, accept_units=accept_units)


def record_limits(policy: Policy, accountant: Accountant) -> None:
    """Put the policy's limits in force in a ledger that exists. Needs no database, and nothing can be charged by it."""
    _opened(policy, accountant, None, new_ledger=False, accept_units=False).close()


def _opened(
    policy: Policy, accountant: Accountant, protection: Protection | None, *, new_ledger: bool, accept_units: bool
) -> Ledger:
    place, dataset, accounting = ledger_place(policy), dataset_name(policy), policy.privacy.accounting
    allowances = {user.name: accountant.allowance(user.epsilon) for user in policy.users.values()}
    if isinstance(place, Path):
        return SqliteLedger.open(
            place,
            dataset=dataset,
            accounting=accounting,
            total=accountant.total,
            allowances=allowances,
            protection=protection,
            create=new_ledger or policy.ledger is None,
            replay_days=policy.limits.replay_days,
            accept_units=accept_units,
        )
    from dpsql.ledger.postgres import PostgresLedger

    return PostgresLedger.open(
        place,
        dataset=dataset,
        accounting=accounting,
        total=accountant.total,
        allowances=allowances,
        protection=protection,
        create=new_ledger,
        replay_days=policy.limits.replay_days,
        accept_units=accept_units,
    )


@contextmanager
def read_books(policy: Policy) -> Iterator[Books | None]:
    """The books of the ledger, read-only; None if nothing was ever asked, so that there is no ledger yet."""
    place = ledger_place(policy)
    if not isinstance(place, Path) or place.exists():
        with Books.read(place, dataset=dataset_name(policy), accounting=policy.privacy.accounting) as books:
            yield books
        return
    if not is_postgres_address(policy.database) and not database_path(policy).is_file():
        raise PolicyError(f'there is no database at "{database_path(policy)}"', hint="Check the address in the policy.")
    if policy.ledger is not None or place.with_name(f"{place.name}-wal").exists():
        raise missing(place)
    yield None
