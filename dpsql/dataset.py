"""From a policy file to an engine that answers: database, catalogue and ledger, opened and checked together."""

from __future__ import annotations

from pathlib import Path

from dpsql.backends import Backend
from dpsql.backends.duckdb import DuckDBBackend
from dpsql.engine import Engine
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.noise.samplers import Sampler, SystemSampler
from dpsql.policy.catalog import bind
from dpsql.policy.loader import database_path, load
from dpsql.policy.model import Catalog, Policy
from dpsql.privacy.accounting import Accountant


def open_dataset(path: Path, *, new_ledger: bool = False) -> Engine:
    """The engine of the dataset that a policy file describes.

    The ledger lies beside the database, so that another policy on the same database spends from the same budget.
    A ledger elsewhere is only created on the owner's explicit word (`new_ledger`): a new one forgets what was spent.
    """
    policy = load(path)
    backend = open_backend(policy)
    try:
        return build_engine(policy, backend, SystemSampler(), new_ledger=new_ledger)
    except BaseException:
        backend.close()
        raise


def open_backend(policy: Policy) -> DuckDBBackend:
    return DuckDBBackend(database_path(policy), memory=policy.limits.memory, threads=policy.limits.threads)


def build_engine(policy: Policy, backend: Backend, sampler: Sampler, *, new_ledger: bool = False) -> Engine:
    catalog = bind(policy, backend.schema())
    accountant = Accountant(policy.privacy)
    ledger = _open_ledger(policy, accountant, new_ledger)
    return Engine(catalog, accountant, backend, ledger, sampler, policy.limits)


def check(path: Path) -> Catalog:
    """Validate a policy against its database; raises PolicyProblems with every problem at once."""
    policy = load(path)
    backend = open_backend(policy)
    try:
        return bind(policy, backend.schema())
    finally:
        backend.close()


def ledger_path(policy: Policy) -> Path:
    if policy.ledger is not None:
        return policy.ledger
    database = database_path(policy)
    return database.with_name(database.name + ".ledger")


def _open_ledger(policy: Policy, accountant: Accountant, new_ledger: bool) -> SqliteLedger:
    database = database_path(policy)
    return SqliteLedger.open(
        ledger_path(policy),
        dataset=database.name,
        accounting=policy.privacy.accounting,
        total=accountant.total,
        allowances={user.name: accountant.allowance(user.epsilon) for user in policy.users.values()},
        create=new_ledger or policy.ledger is None,
        replay_days=policy.limits.replay_days,
    )
