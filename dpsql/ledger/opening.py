"""Opens the ledger of a policy: where it is, and what must match."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import OperationalError, PolicyError
from dpsql.ledger import Ledger
from dpsql.ledger.database import Database
from dpsql.ledger.identity import missing, require_identity, standing
from dpsql.ledger.mark import FILE, Mark, Seen
from dpsql.ledger.reading import Books
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.ledger.sqlite import SqliteLedger, hold_file
from dpsql.ledger.verification import contradictions, drop_altered, newest
from dpsql.policy.load import database_address
from dpsql.policy.load_server import state_folder
from dpsql.policy.model import LedgerLocation, Policy
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Accountant


def ledger_location(policy: Policy) -> LedgerLocation:
    """The ledger's place: by default beside the database, so that all policies on the same data share one budget."""
    if policy.ledger is not None:
        return policy.ledger
    database = database_address(policy).file
    assert database is not None  # checked when the policy was loaded
    return database.with_name(database.name + ".ledger")


def dataset_name(policy: Policy) -> str:
    """The name of the dataset in the ledger."""
    return database_address(policy).name


def ledger_exists(policy: Policy) -> bool:
    location = ledger_location(policy)
    if isinstance(location, Path):
        return location.exists()
    from dpsql.ledger.postgres import server_has_ledger

    return server_has_ledger(location)


def open_ledger(
    policy: Policy,
    accountant: Accountant,
    protection: Protection,
    *,
    new_ledger: bool = False,
    accept_units: bool = False,
) -> Ledger:
    """Open the ledger and put the policy's limits in force. If the policy names it, only `new_ledger` creates it.

    Raises PolicyError if it has counted for other units, unless these are accepted.
    """
    ledger = _opened(policy, accountant, protection, new_ledger=new_ledger, accept_units=accept_units)
    try:
        if new_ledger and ledger.begun:
            ledger.accept()
        else:
            ledger.require_recent()
    except BaseException:
        ledger.close()
        raise
    return ledger


def record_limits(policy: Policy, accountant: Accountant) -> None:
    """Put the policy's limits in force in an existing ledger. Needs no database, and cannot charge."""
    _opened(policy, accountant, None, new_ledger=False, accept_units=False).close()


def _opened(
    policy: Policy, accountant: Accountant, protection: Protection | None, *, new_ledger: bool, accept_units: bool
) -> SqlLedger:
    mark = _mark_of(policy)
    location, dataset, accounting = ledger_location(policy), dataset_name(policy), policy.privacy.accounting
    allowances = {user.name: accountant.allowance(user.epsilon) for user in policy.users.values()}
    if isinstance(location, Path):
        return SqliteLedger.open(
            location,
            dataset=dataset,
            accounting=accounting,
            total=accountant.total,
            allowances=allowances,
            protection=protection,
            create=new_ledger or policy.ledger is None,
            replay_days=policy.limits.replay_days,
            accept_units=accept_units,
            mark=mark,
        )
    from dpsql.ledger.postgres import PostgresLedger

    return PostgresLedger.open(
        location,
        dataset=dataset,
        accounting=accounting,
        total=accountant.total,
        allowances=allowances,
        protection=protection,
        create=new_ledger,
        replay_days=policy.limits.replay_days,
        accept_units=accept_units,
        mark=mark,
    )


def _mark_of(policy: Policy) -> Path:
    return state_folder(policy) / FILE


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the owner accepted."""

    before: Seen | None  # the newest charge that was seen
    now: Seen
    dropped: int  # number of altered stored answers, which were dropped


def accept_ledger(policy: Policy) -> Accepted:
    """Accept the ledger in its present state, on the owner's order. One that fails verification is refused."""
    location, mark = ledger_location(policy), Mark(_mark_of(policy))
    if isinstance(location, Path):
        held: AbstractContextManager[Database] = hold_file(location)
    else:
        from dpsql.ledger.postgres import hold_server

        held = hold_server(location)
    with held as db:
        require_identity(db, location, dataset_name(policy), policy.privacy.accounting)
        standing(db).require_chargeable(location)
        dropped = drop_altered(db)
        if found := contradictions(db):
            raise OperationalError(
                f'the ledger "{location}" is not sound: {found[0]}',
                hint="List all problems with dpsql ledger verify, and restore a sound copy.",
            )
        now = newest(db)
    accepted = Accepted(mark.read(), now, dropped)
    mark.write(now)
    return accepted


@contextmanager
def read_books(policy: Policy) -> Iterator[Books | None]:
    """The ledger's books, read-only; None if there is no ledger yet, as no query has run."""
    location = ledger_location(policy)
    if not isinstance(location, Path) or location.exists():
        with Books.read(location, dataset=dataset_name(policy), accounting=policy.privacy.accounting) as books:
            yield books
        return
    database = database_address(policy).file
    if database is not None and not database.is_file():
        raise PolicyError(f'there is no database at "{database}"', hint="Check the address in the policy.")
    if policy.ledger is not None or location.with_name(f"{location.name}-wal").exists():
        raise missing(location)
    yield None
