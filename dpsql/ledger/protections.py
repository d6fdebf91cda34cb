"""Whom the ledger's total protects, since when, and which changes of a policy need the owner's consent.

A total is a promise to the units that answers were calibrated to. It promises nothing to other units, so a policy that
declares other ones is refused until the owner accepts it (`dpsql ledger protect`), and every charge names the
protection under which it was made.
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
SHOWN = 5  # differences shown in one message


@dataclass(frozen=True, slots=True)
class Recorded:
    """From this time on, after `charges` charges, a table is protected in this way, or is public."""

    time: str  # UTC, ISO 8601
    charges: int
    subject: Subject
    units: str
    before: str | None  # the subject's earlier record

    def __str__(self) -> str:
        return f"{subject_text(self.subject)}: {units_text(self.units)}"


@dataclass(frozen=True, slots=True)
class Since:
    """When the protected units last changed, or were first recorded."""

    time: str
    charges: int  # earlier charges: they promise nothing to the present units
    changed: tuple[Recorded, ...]  # empty: earlier versions of dpsql did not record it


def in_force(db: Database) -> dict[Subject, str]:
    """What is protected now, by subject; a subject that the policy no longer names stays as it was."""
    rows = db.execute("SELECT subject, units FROM protections ORDER BY number")
    return {subject_of(name): units for name, units in rows}


def history(db: Database) -> list[Recorded]:
    """All records, oldest first; none in an older format."""
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
    """Since when the total counts for the present units; None: since the ledger began.

    Claim: the charges after the returned one, and so all that are counted for the present units, were calibrated to
    these units, in every table that was queried.
    Because: what is in force changes only by rows that have a row of the same subject before them, and of those the
    last is taken; a table that was recorded later was not queried before. Charges older than the first row may have
    been calibrated to any unit.
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
    """Record declarations that are new to the ledger; whether it had charges but no record of units.

    Raises PolicyError where the policy declares other units than the ledger, unless these are accepted.
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
    """Refuse to continue if the owner has accepted other units since this process opened its policy.

    Claim: what is charged here is calibrated to the units that the ledger protects now.
    Because: it is compared in the transaction of the charge, and a writer that records a change excludes all others.
    Needs: `protection` is that of the policy by which this process calibrates.
    """
    if protection.differences(in_force(db)):
        raise OperationalError(
            "the owner changed the unit of privacy while this process was running",
            hint="Restart dpsql with the policy whose units were accepted.",
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
        hint=f"Undo the change in the policy. If it is intended, accept it with: {ACCEPT}. The total then counts for"
        " the new units from that moment on; earlier answers protect the old ones.",
    )
