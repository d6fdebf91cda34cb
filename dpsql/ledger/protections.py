"""Whose privacy the ledger counts: what it protects, since when, and what a policy may not change unless told.

A total is a promise to the units that answers were calibrated to. With other units the same sum promises them nothing,
so a policy that declares others is refused until the owner accepts it (`dpsql ledger protect`), and every charge names
the protection under which it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpsql.errors import OperationalError, PolicyError
from dpsql.ledger import database as clock
from dpsql.ledger.database import Database
from dpsql.ledger.schema import PROTECTION_SINCE
from dpsql.ledger.verification import first_hash, hash_of_protection
from dpsql.policy.protection import Difference, Protection, Subject, subject_name, subject_of, subject_text, units_text

ACCEPT = "dpsql ledger protect"
SHOWN = 5  # differences in one message


@dataclass(frozen=True, slots=True)
class Recorded:
    """From this moment on, after so many charges, a table is protected in this way, or public."""

    time: str  # UTC, ISO 8601
    charges: int
    subject: Subject
    units: str
    before: str | None  # what was recorded of it earlier

    def __str__(self) -> str:
        return f"{subject_text(self.subject)}: {units_text(self.units)}"


@dataclass(frozen=True, slots=True)
class Since:
    """The last time that somebody else was protected, or that it was first written down who is."""

    time: str
    charges: int  # made before: they promise nothing to the units of today
    changed: tuple[Recorded, ...]  # empty: earlier versions of dpsql did not write it down


def in_force(db: Database) -> dict[Subject, str]:
    """What is protected now, by subject; what the policy no longer names stays as it was."""
    rows = db.execute("SELECT subject, units FROM protections ORDER BY number")
    return {subject_of(name): units for name, units in rows}


def history(db: Database) -> list[Recorded]:
    """All that was ever recorded, oldest first; of an older format, nothing."""
    if db.format() < PROTECTION_SINCE:
        return []
    found: list[Recorded] = []
    before: dict[Subject, str] = {}
    for at, charges, name, units in db.execute("SELECT at, charges, subject, units FROM protections ORDER BY number"):
        subject = subject_of(name)
        found.append(Recorded(at, charges, subject, units, before.get(subject)))
        before[subject] = units
    return found


def since(recorded: list[Recorded]) -> Since | None:
    """Since when the total counts for those whom it now protects; None: since the ledger began.

    Claim: the charges after the returned one, and so all that are counted for the units of today, were calibrated to
    these units, in every table that was asked about.
    Because: what is in force changes only by rows that have a row of the same subject before them, and of those the
    last is taken; a table that was recorded later was not asked about before. Charges older than the first row may have
    been calibrated to anybody.
    Needs: charges are made under the protection in force (`require_unchanged`, and the storage itself).
    """
    changes = [each for each in recorded if each.before is not None]
    if changes:
        last = changes[-1]
        return Since(last.time, last.charges, tuple(each for each in changes if each.charges == last.charges))
    if recorded and recorded[0].charges:
        return Since(recorded[0].time, recorded[0].charges, ())
    return None


def adopt(db: Database, location: object, protection: Protection, *, accept: bool) -> bool:
    """Record what the policy declares and the ledger does not know; whether it had charges and knew of nothing.

    Raises PolicyError, unless told to accept it, where the policy declares other units than the ledger knows.
    """
    recorded = in_force(db)
    if not accept:
        require_declared(recorded, protection, location)
    [(charges,)] = db.execute("SELECT COALESCE(MAX(number), 0) FROM charges").fetchall()
    _append(db, charges, {s: units for s, units in protection.units.items() if recorded.get(s) != units})
    return not recorded and charges > 0


def require_declared(recorded: Mapping[Subject, str], protection: Protection, location: object) -> None:
    """Refuse a policy that declares other units than are recorded."""
    if differences := protection.differences(recorded):
        raise _refusal(location, differences)


def require_unchanged(db: Database, protection: Protection) -> None:
    """Refuse to go on where the owner has accepted other units since the policy of this process was opened.

    Claim: what is charged here is calibrated to the units that the ledger protects now.
    Because: it is compared in the transaction of the charge, and whoever records a change writes alone.
    Needs: `protection` is that of the policy by which this process calibrates.
    """
    if protection.differences(in_force(db)):
        raise OperationalError(
            "the owner changed the unit of privacy while this process was running",
            hint="Restart dpsql with the policy that the ledger now knows.",
        )


def _append(db: Database, charges: int, units: Mapping[Subject, str]) -> None:
    row = db.execute("SELECT number, hash FROM protections ORDER BY number DESC LIMIT 1").fetchone()
    number, previous = (0, first_hash(db)) if row is None else (row[0], bytes(row[1]))
    now = clock.timestamp()
    for subject, text in sorted(units.items()):
        number += 1
        content = (number, now, charges, subject_name(subject), text)
        previous = hash_of_protection(previous, content)
        db.execute("INSERT INTO protections VALUES (?, ?, ?, ?, ?, ?)", (*content, previous))


def _refusal(location: object, differences: list[Difference]) -> PolicyError:
    shown = "; ".join(map(str, differences[:SHOWN]))
    more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return PolicyError(
        f'the policy protects a different unit than the ledger "{location}" has counted for',
        detail=f"{shown[0].upper()}{shown[1:]}{more}.",
        hint=f"Undo the change in the policy. If it is meant, accept it with: {ACCEPT}. The total then counts for the"
        " new units from that moment on; what was answered before protects the old ones.",
    )
