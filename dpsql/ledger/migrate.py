"""Moves a ledger to another place, whole, so that at no moment two of it can be charged.

1. the original is held, and found sound
2. the copy is written and compared, and says that it is arriving      crash: the original goes on, the copy is void
3. the original says that it has departed                              crash: neither is charged; run it again
4. the copy says that it has arrived                                   from here on the copy is the ledger
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import zip_longest
from pathlib import Path

from dpsql.errors import OperationalError, PolicyError
from dpsql.ledger import database as clock
from dpsql.ledger.database import Database
from dpsql.ledger.identity import Standing, begin_accounts, require_identity, standing
from dpsql.ledger.postgres import create_on_server, hold_server
from dpsql.ledger.schema import ARRIVED, ARRIVING, DEPARTED, TABLES
from dpsql.ledger.sqlite import create_file, hold_file, read_file
from dpsql.ledger.verification import contradictions
from dpsql.policy.model import LedgerLocation


def move_ledger(source: LedgerLocation, target: LedgerLocation, *, dataset: str, accounting: str) -> Standing:
    """Move the ledger of a dataset; what was interrupted is finished by doing it again. Says what arrived.

    Claim: of the two, at most one is charged, and it holds every charge that was ever acknowledged.
    Because: the original is held from before it is copied until it has departed, so that nothing is charged between;
        and the copy arrives only after that is durable.
    Needs: everyone who charges looks in the same transaction whether the ledger has departed or not yet arrived.
    """
    with _hold(source) as original:
        require_identity(original, source, dataset, accounting)
        found = standing(original)
        if found.event != DEPARTED:
            found.require_chargeable(source)
            _require_sound(original, source)
            _make_copy(original, source, target)
            _note(original, DEPARTED, target)
    with _hold(target) as copy:
        arrived = standing(copy)
        if (arrived.id, arrived.charges, arrived.event) != (found.id, found.charges, ARRIVING):
            found.require_chargeable(source)  # it departed earlier, to a place that it has reached, or to another
            raise OperationalError(
                f'"{target}" does not hold the copy that was just written',
                hint="Run the command again with another place.",
            )
        _note(copy, ARRIVED, source)
    return arrived


def _make_copy(original: Database, source: LedgerLocation, target: LedgerLocation) -> None:
    def fill(copy: Database) -> None:
        for table, (columns, order) in TABLES.items():
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            query = f"SELECT {names} FROM {table} ORDER BY {order}"
            copy.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", original.execute(query))
            if any(one != other for one, other in zip_longest(original.execute(query), copy.execute(query))):
                raise OperationalError(f'the copy of table "{table}" at "{target}" is not the same')
        begin_accounts(copy)
        _require_sound(copy, target)
        _note(copy, ARRIVING, source)

    def is_void(existing: Database) -> bool:
        """A copy of the same ledger whose original never departed."""
        found = standing(existing, format_=existing.format())
        return (found.id, found.event) == (standing(original).id, ARRIVING)

    if isinstance(target, Path):
        made = _discard_file(target, is_void) and create_file(target.resolve(), fill)
    else:
        made = create_on_server(target, fill, instead=is_void)
    if not made:
        raise PolicyError(
            f'"{target}" already exists',
            hint="Name a file that does not exist, or a database without the schema dpsql_ledger.",
        )


def _discard_file(path: Path, is_void: Callable[[Database], bool]) -> bool:
    """Make room for a copy; whether there is."""
    if not path.exists():
        return True
    with read_file(path) as existing:
        if not is_void(existing):
            return False
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")
    return True


def _hold(location: LedgerLocation) -> AbstractContextManager[Database]:
    return hold_file(location) if isinstance(location, Path) else hold_server(location)


def _note(db: Database, event: str, location: LedgerLocation) -> None:
    where = str(location.resolve() if isinstance(location, Path) else location)
    db.execute(
        "INSERT INTO moves VALUES ((SELECT COALESCE(MAX(number), 0) + 1 FROM moves), ?, ?, ?)",
        (clock.timestamp(), event, where),
    )


def _require_sound(db: Database, location: LedgerLocation) -> None:
    if found := contradictions(db):
        raise OperationalError(
            f'the ledger "{location}" is not sound: {found[0]}',
            hint="Stop serving, keep the ledger, and see all that is wrong with: dpsql ledger verify.",
        )
