"""From a policy to its ledger: where it lies, and what it must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsql.errors import PolicyError
from dpsql.ledger.books import Books
from dpsql.ledger.sqlite import SqliteLedger, missing
from dpsql.policy.loader import database_name, database_path, is_postgresql
from dpsql.policy.model import Policy
from dpsql.privacy.accounting import Accountant


def ledger_path(policy: Policy) -> Path:
    """Where the ledger lies: beside the database, so that another policy on the same data pays from the same budget."""
    if policy.ledger is not None:
        return policy.ledger
    database = database_path(policy)
    return database.with_name(database.name + ".ledger")


def open_ledger(policy: Policy, accountant: Accountant, *, new_ledger: bool = False) -> SqliteLedger:
    """The ledger, with the policy's limits in force. One that the policy places elsewhere is only made when told."""
    return SqliteLedger.open(
        ledger_path(policy),
        dataset=database_name(policy),
        accounting=policy.privacy.accounting,
        total=accountant.total,
        allowances={user.name: accountant.allowance(user.epsilon) for user in policy.users.values()},
        create=new_ledger or policy.ledger is None,
        replay_days=policy.limits.replay_days,
    )


@contextmanager
def read_books(policy: Policy) -> Iterator[Books | None]:
    """The books of the ledger, read-only; None if nothing was ever asked, so that there is no ledger yet."""
    path = ledger_path(policy)
    if path.exists():
        with Books.read(path, dataset=database_name(policy), accounting=policy.privacy.accounting) as books:
            yield books
        return
    if not is_postgresql(policy.database) and not database_path(policy).is_file():
        raise PolicyError(f'there is no database at "{database_path(policy)}"', hint="Check the address in the policy.")
    if policy.ledger is not None or path.with_name(f"{path.name}-wal").exists():
        raise missing(path)
    yield None
