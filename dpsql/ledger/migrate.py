"""Moves a ledger to another place, so that at no moment two copies of it can be charged.

1. the original is locked and verified
2. the copy is written, compared and marked as arriving      crash: the original stays in use, the copy is void
3. the original is marked as departed                        crash: neither is charged; run the move again
4. the copy is marked as arrived                             from here on the copy is the ledger
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
    """Move the ledger of a dataset; running it again finishes an interrupted move. Returns its standing.

    Claim: of the two, at most one is charged, and it holds every charge that was ever acknowledged.
    Because: the original is locked from before the copy until it has departed, so that nothing is charged in between;
    and the copy arrives only after that is durable.
    Needs: each charge checks, in its own transaction, whether the ledger has departed or not yet arrived.
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
            found.require_chargeable(source)  # it departed earlier, and the copy may have arrived or not
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
                raise OperationalError(f'the copy of table "{table}" at "{target}" differs from the original')
        begin_accounts(copy)
        _require_sound(copy, target)
        _note(copy, ARRIVING, source)

    def is_void(existing: Database) -> bool:
        """Whether it is a copy of the same ledger whose original never departed."""
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
    """Remove a void copy; whether the place is free."""
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
            hint="Stop serving, keep the ledger, and list all problems with: dpsql ledger verify.",
        )
