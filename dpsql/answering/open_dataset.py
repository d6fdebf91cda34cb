"""Opens a dataset from a policy file: database, catalog and ledger, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from dpsql.answering.dataset import Dataset
from dpsql.answering.releases import this_minute
from dpsql.engines.base import Engine
from dpsql.engines.registry import engine_kind
from dpsql.errors import BadSetting, Error
from dpsql.ledger.opening import open_ledger
from dpsql.lowering.dialect import Dialect
from dpsql.noise.samplers import Sampler, SystemSampler
from dpsql.policy.bind import IsUnique, bind
from dpsql.policy.load import database_address, load
from dpsql.policy.load_server import certificate_problems
from dpsql.policy.model import Catalog, Policy
from dpsql.policy.problems import PolicyProblems, Problem, quoted
from dpsql.policy.sections import header
from dpsql.privacy.accounting import Accountant
from dpsql.release import QuerySettings, Release, compile_release
from dpsql.slots import Slots
from dpsql.sql.clock import Clock
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve

_LARGE_DELTA = Fraction(1, 20_000)


def open_dataset(path: Path, *, new_ledger: bool = False) -> Dataset:
    """The dataset that a policy file describes.

    By default the ledger is beside the database, so that all policies on the same database share one budget. A ledger
    elsewhere is created only with `new_ledger`: a new one has no record of what was spent.
    """
    return open_engine(load(path), new_ledger=new_ledger)


def open_engine(
    policy: Policy, *, new_ledger: bool = False, slots: Slots | None = None, compiles_apart: bool = False
) -> Dataset:
    """The same, for a loaded policy; datasets that share `slots` do not buy the same answer at the same time."""
    engine = open_backend(policy)
    try:
        return build_dataset(
            *(policy, engine, SystemSampler()), new_ledger=new_ledger, slots=slots, compiles_apart=compiles_apart
        )
    except BaseException:
        engine.close()
        raise


def open_backend(policy: Policy) -> Engine:
    """The engine that holds the data, by the scheme of its address. Only its own driver is imported: both take long."""
    return engine_kind(policy.database).open(database_address(policy), policy.limits, policy.prepared)


def build_dataset(
    policy: Policy,
    engine: Engine,
    sampler: Sampler,
    *,
    new_ledger: bool = False,
    slots: Slots | None = None,
    compiles_apart: bool = False,
) -> Dataset:
    catalog = bind_all(policy, engine)
    accountant = Accountant(policy.privacy)
    ledger = open_ledger(policy, accountant, catalog.protection, new_ledger=new_ledger)
    return Dataset(catalog, accountant, engine, ledger, sampler, policy.limits, slots, compiles_apart=compiles_apart)


def bind_all(policy: Policy, engine: Engine, is_unique: IsUnique | None = None) -> Catalog:
    """Bind the policy to the database, views included; raises PolicyProblems with every mismatch."""
    catalog = bind(policy, engine.schema(), is_unique or engine.is_unique, engine.read_public)
    problems = []
    for view in policy.views.values():
        try:
            text = f'SELECT * FROM "{view.name.replace(".", chr(34) + "." + chr(34))}"'
            resolve(parse(text), catalog, clock=Clock(this_minute()))
        except Error as error:
            fault = f"view {quoted(view.name)} cannot be read: {error.args[0]}"
            problems.append(Problem(str(policy.path), view.line, fault, error.hint))
    if problems:
        raise PolicyProblems(problems)
    return catalog


@dataclass(frozen=True, slots=True)
class Checked:
    """A policy that matches its database. It can compile queries, but not answer them."""

    policy: Policy
    catalog: Catalog
    accountant: Accountant
    dialect: Dialect
    warnings: tuple[str, ...] = ()  # warnings for the owner about the database

    def release(self, sql: str) -> Release:
        """What a query would do at the default price."""
        plan = resolve(parse(sql, self.catalog.limits), self.catalog)
        return compile_release(plan, self.catalog, self.accountant, QuerySettings(), self.dialect)


def check(path: Path) -> Checked:
    """Validate a policy against its database; raises PolicyProblems with every problem at once."""
    policy = load(path)
    problems = _uncountable_prices(policy) + certificate_problems(policy)
    engine = open_backend(policy)
    unenforced: list[str] = []

    def is_unique(source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        """Queried only where no constraint ensures it."""
        if found := engine.is_unique(source, columns):
            unenforced.append(
                f'({", ".join(columns)}) of table "{".".join(source)}" is unique, but nothing enforces it:'
                " new rows may keep dpsql from starting; declare it PRIMARY KEY or UNIQUE"
            )
        return found

    try:
        catalog = bind_all(policy, engine, is_unique)
        sources = sorted({table.read_from for table in catalog.tables.values()})
        warnings = engine.warnings(sources) + list(dict.fromkeys(unenforced)) + _stale(policy) + _large_delta(policy)
    except PolicyProblems as found:
        raise PolicyProblems([*problems, *found.problems]) from None
    finally:
        engine.close()
    if problems:
        raise PolicyProblems(problems)
    return Checked(policy, catalog, Accountant(policy.privacy), engine.dialect, tuple(warnings))


def _stale(policy: Policy) -> list[str]:
    """Warn if a prepared copy is older than its database. This may be intended; queries do not check it."""
    copies = engine_kind(policy.database).copies
    if policy.prepared is None or copies is None:
        return []
    return copies.warnings(database_address(policy), policy.prepared)


def _large_delta(policy: Policy) -> list[str]:
    """Warn if delta is too large for most datasets. The number of people is not read."""
    delta = policy.privacy.delta
    if delta < _LARGE_DELTA:
        return []
    return [
        f"delta = {float(delta):g} allows one person in {float(1 / delta):,.0f} to be exposed entirely: choose delta"
        " far below one over the number of people, such as 1e-7 for 100,000 people"
    ]


def _uncountable_prices(policy: Policy) -> list[Problem]:
    """Prices below the ledger's grain, with which nothing could be paid."""
    prices: list[tuple[str, str, Fraction, int | None]] = [
        ("epsilon", "[privacy]", policy.privacy.epsilon, None),
        ("query_epsilon", "[privacy]", policy.privacy.query_epsilon, None),
    ]
    for user in policy.users.values():
        if user.epsilon is not None:
            prices.append(("epsilon", f"[{header(('users', user.name))}]", user.epsilon, user.line))
    problems = []
    for key, section, epsilon, line in prices:
        try:
            Accountant(replace(policy.privacy, epsilon=epsilon))
        except BadSetting:
            fault = f"{quoted(key)} in {section} is too small to be counted"
            problems.append(Problem(str(policy.path), line, fault, "write a larger number, such as 0.1"))
    return problems
