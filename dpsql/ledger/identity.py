"""A ledger's identity: dataset, accounting, format, and whether it is still the one to charge."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from dpsql.errors import LedgerDamaged, PolicyError
from dpsql.ledger import database as clock
from dpsql.ledger.database import Database
from dpsql.ledger.schema import ARRIVING, DATASET, DEPARTED, FORMAT, OLDEST_FORMAT, PROTECTION_SINCE


def begin_ledger(db: Database, dataset: str, accounting: str) -> None:
    """Turn empty tables into the ledger of a dataset."""
    db.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", (uuid.uuid4().hex, dataset, accounting, clock.timestamp()))
    begin_accounts(db)


def begin_accounts(db: Database) -> None:
    """Create the dataset's account, whose row writers in PostgreSQL queue for."""
    db.execute("INSERT INTO accounts VALUES (?, 0, 0, 0) ON CONFLICT (subject) DO NOTHING", (DATASET,))


def missing(location: object) -> PolicyError:
    return PolicyError(
        f'the ledger "{location}" is missing',
        detail="A new ledger would forget what was spent.",
        hint="Put the ledger back, or move it there with: dpsql ledger migrate. If this data has never been asked"
        " anything, create one: run the command once with --new-ledger (dpsql serve, dpsql query), or call"
        " dpsql.connect(new_ledger=True).",
    )


def not_a_ledger(location: object) -> PolicyError:
    return PolicyError(
        f'"{location}" is not a ledger',
        hint="Set `ledger` in [database] of the policy to the ledger's path or address.",
    )


def require_format(db: Database, location: object) -> None:
    """Refuse a ledger written by a newer version of dpsql."""
    if not OLDEST_FORMAT <= (version := db.format()) <= FORMAT:
        raise PolicyError(
            f'the ledger "{location}" has format {version}; this version of dpsql knows format {FORMAT}',
            hint="Use the version of dpsql that wrote it.",
        )


def require_identity(db: Database, location: object, dataset: str, accounting: str) -> None:
    """Refuse the ledger of another dataset, or of another accounting."""
    identity = db.execute("SELECT dataset, accounting FROM ledger").fetchone()
    if identity is None or identity[0] != dataset:
        raise PolicyError(
            f'the ledger "{location}" belongs to another dataset',
            hint="Give each dataset a ledger of its own; a ledger cannot be moved from one to another.",
        )
    if identity[1] != accounting:
        raise PolicyError(
            f'the ledger "{location}" was created for accounting "{identity[1]}", not "{accounting}"',
            hint=f'Set accounting = "{identity[1]}" in the policy; what was spent cannot be converted.',
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A ledger's id, its newest charge, and the last event of a move."""

    id: str
    charges: int
    event: str | None
    location: str | None  # the other end of the move
    protection: int | None = None  # the newest on record
    hash: bytes | None = None  # hash of the requested charge, if it exists

    def require_chargeable(self, location: object) -> None:
        """Claim: of a ledger and its copies, one at most is charged.

        Because: a copy is not charged before it has arrived, which is only after its original has departed; and a
        ledger that has departed is never charged again. Each charge checks this in its own transaction.
        """
        if self.event == DEPARTED:
            raise PolicyError(
                f'the ledger "{location}" was moved to "{self.location}"',
                hint="Name its new place as `ledger` in [database] of the policy.",
            )
        if self.event == ARRIVING:
            raise PolicyError(
                f'the ledger "{location}" is an unfinished copy of "{self.location}"',
                hint="Run again: dpsql ledger migrate, with a policy that names the original.",
            )


def standing(db: Database, *, format_: int = FORMAT, charge: int = 0) -> Standing:
    """Read the standing of a ledger whose format has moves, with the hash of one of its charges."""
    protection = "(SELECT MAX(number) FROM protections)" if format_ >= PROTECTION_SINCE else "NULL"
    row = db.execute(
        f"SELECT id, (SELECT COALESCE(MAX(number), 0) FROM charges), event, place, {protection},"
        " (SELECT hash FROM charges WHERE number = ?) FROM ledger"
        " LEFT JOIN moves ON number = (SELECT MAX(number) FROM moves)",
        (charge,),
    ).fetchone()
    if row is None:
        raise LedgerDamaged
    return Standing(*row)
