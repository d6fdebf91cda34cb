"""Verifies the ledger: recomputes the hash chain and every sum from the append-only rows."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dpsql.ledger import failures
from dpsql.ledger.database import Database
from dpsql.ledger.mark import Seen
from dpsql.ledger.schema import (
    DATASET,
    FAILURES_SINCE,
    MOVES_SINCE,
    PROTECTION_SINCE,
    PURE_SINCE,
    REFUSALS_SINCE,
    subject_of,
)
from dpsql.privacy.accounting import Price


def contradictions(db: Database) -> list[str]:
    """Each string is a contradiction; none means sound. The caller runs it in one transaction."""
    return db.damage() or [
        *_of_charges(db),
        *_of_limits(db),
        *_of_refusals(db),
        *_of_moves(db),
        *_of_protections(db),
        *failures.contradictions(db),
        *_of_answers(db),
    ]


RECENT = 100  # charges that are checked when a ledger is opened
ALTERED = "a stored answer was altered"


def contradictions_of_newest(db: Database) -> list[str]:
    """The same for the newest charges only: constant time."""
    [(last,)] = db.execute("SELECT COALESCE(MAX(number), 0) FROM charges").fetchall()
    return list(_of_hashes(db, max(last - RECENT, 0)))


def newest(db: Database) -> Seen:
    """The newest charge."""
    [(ledger, number, hash_)] = db.execute(
        "SELECT id, COALESCE(number, 0), hash FROM ledger"
        " LEFT JOIN charges ON number = (SELECT MAX(number) FROM charges)"
    ).fetchall()
    return Seen(ledger, number, bytes(hash_ or b"").hex())


def checksum_of(key: bytes, created: str, payload: bytes) -> bytes:
    """The checksum stored with an answer, to detect changed bits."""
    return hashlib.sha256(b"".join((key, created.encode(), payload))).digest()


def is_intact(key: bytes, created: str, payload: bytes, checksum: bytes | None) -> bool:
    """Whether a stored answer is unchanged; answers of older versions have no checksum and pass."""
    return checksum is None or checksum_of(key, created, payload) == checksum


def drop_altered(db: Database) -> int:
    """Delete altered stored answers; returns how many. Asking for one again buys it again."""
    altered = list(_altered(db))
    for key in altered:
        db.execute("DELETE FROM answers WHERE key = ?", (key,))
    return len(altered)


def _altered(db: Database) -> Iterator[bytes]:
    for key, created, payload, checksum in db.execute("SELECT key, created, payload, checksum FROM answers"):
        if not is_intact(key, created, payload, checksum):
            yield bytes(key)


def _of_answers(db: Database) -> Iterator[str]:
    if db.format() >= FAILURES_SINCE:
        for key in _altered(db):
            yield f"the stored answer {key.hex()[:12]} was altered"


def first_hash(db: Database) -> bytes:
    """The hash chain starts from the ledger's identity, so that this cannot be altered later either."""
    identity = db.execute("SELECT id, dataset, accounting, created FROM ledger").fetchone()
    return hash_of(b"", identity or (), (None, None), ())


def hash_of(
    previous: bytes,
    row: Sequence[str | int],
    pure: tuple[int | None, int | None],
    keys: Iterable[bytes],
    protection: int | None = None,
) -> bytes:
    """The hash of a charge: it covers the row, what was paid for by it, and the hash before it.

    A row without a pure price or without a protection hashes as it did in formats that had neither.
    """
    said: list[object] = [] if pure == (None, None) else list(pure)
    said += [] if protection is None else [{"protection": protection}]
    content = json.dumps([*row, *said, [key.hex() for key in keys]], separators=(",", ":"))
    return hashlib.sha256(previous + content.encode("ascii")).digest()


def hash_of_protection(previous: bytes, row: Sequence[str | int]) -> bytes:
    """The hash of a recorded protection: it covers the row and the hash before it, the first that of the ledger."""
    return hashlib.sha256(previous + json.dumps(["protection", *row], separators=(",", ":")).encode("ascii")).digest()


def _of_charges(db: Database) -> Iterator[str]:
    sums: defaultdict[str, Price] = defaultdict(Price)
    yield from _of_hashes(db, 0, sums)
    has_pure = db.format() >= PURE_SINCE
    accounts = db.execute(f"SELECT subject, loss, delta, {'pure' if has_pure else 'NULL'} FROM accounts")
    stored_sums = {subject: Price(*sum_) for subject, *sum_ in accounts}
    for subject in sorted(sums.keys() | stored_sums.keys()):
        if stored_sums.get(subject, Price()) != sums[subject]:
            yield f"the sum of {subject} is not that of its charges"


def _of_hashes(db: Database, after: int, sums: defaultdict[str, Price] | None = None) -> Iterator[str]:
    """Check the hash chain after a charge, and the sums of its charges."""
    keys: defaultdict[tuple[int, str], list[bytes]] = defaultdict(list)
    for key, user, charge in db.execute('SELECT key, "user", charge FROM paid WHERE charge > ? ORDER BY key', (after,)):
        keys[charge, user].append(key)
    has_pure = db.format() >= PURE_SINCE
    before = db.execute("SELECT hash FROM charges WHERE number = ?", (after,)).fetchone()
    previous = first_hash(db) if before is None else before[0]
    rows = db.execute(
        'SELECT number, at, "user", sql, dataset_loss, dataset_delta, user_loss, user_delta, hash, '
        f"{'dataset_pure, user_pure' if has_pure else 'NULL, NULL'},"
        f" {'protection' if db.format() >= PROTECTION_SINCE else 'NULL'} FROM charges WHERE number > ? ORDER BY number",
        (after,),
    )
    for expected, (*row, stored, for_all, own, protection) in enumerate(rows, start=after + 1):
        number, _, user, _, *grains = row
        if number != expected:
            yield f"charge {expected} is missing"
            return
        if stored != hash_of(previous, row, (for_all, own), keys.pop((number, user), ()), protection):
            yield f"charge {number} was altered, or one before it removed"
        previous = stored
        if sums is not None:
            sums[DATASET] += Price(grains[0], grains[1], for_all)
            sums[subject_of(user)] += Price(grains[2], grains[3], own)
    for charge, user in sorted(keys):
        yield f'user "{user}" is said to have paid by charge {charge}, which belongs to another user'


def _of_limits(db: Database) -> Iterator[str]:
    in_force: dict[str, list[int | None]] = {}
    pure = ("old_pure", "new_pure") if db.format() >= PURE_SINCE else ("NULL", "NULL")
    for number, subject, *limit in db.execute(
        f"SELECT number, subject, old_loss, old_delta, {pure[0]}, new_loss, new_delta, {pure[1]} FROM limits"
        " ORDER BY number"
    ):
        if in_force.get(subject, [None, None, None]) != limit[:3]:
            yield f"change {number} of the limit of {subject} does not follow the one before"
        in_force[subject] = limit[3:]


def _of_refusals(db: Database) -> Iterator[str]:
    """Nothing is computed from refusals, so only gaps in their numbers are checked."""
    if db.format() >= REFUSALS_SINCE:
        yield from _gaps(db, "refusals", "refusal")


def _of_moves(db: Database) -> Iterator[str]:
    if db.format() >= MOVES_SINCE:
        yield from _gaps(db, "moves", "move")


def _of_protections(db: Database) -> Iterator[str]:
    """Check the protections' hash chain, and that each charge names the protection in force when it was made."""
    if db.format() < PROTECTION_SINCE:
        return
    previous, charges, units = first_hash(db), 0, dict[str, str]()
    begins: list[int] = []
    rows = db.execute("SELECT number, at, charges, subject, units, hash FROM protections ORDER BY number")
    for expected, (*row, stored) in enumerate(rows, start=1):
        number, _, before, subject, text = row
        if number != expected:
            yield f"protection {expected} is missing"
            return
        if bytes(stored) != hash_of_protection(previous, row):
            yield f"protection {number} was altered, or one before it removed"
        if before < charges or units.get(subject) == text:
            yield f"protection {number} does not follow the one before"
        previous, charges, units[subject] = bytes(stored), before, text
        begins.append(before)
    named = 0
    for number, protection in db.execute("SELECT number, protection FROM charges ORDER BY number"):
        while named < len(begins) and begins[named] < number:
            named += 1
        if protection != (named or None):
            yield f"charge {number} was not made under the protection in force"
    [(last,)] = db.execute("SELECT COALESCE(MAX(number), 0) FROM charges").fetchall()
    if charges > last:
        yield f"protection {len(begins)} follows charges that are missing"


def _gaps(db: Database, table: str, what: str) -> Iterator[str]:
    for expected, (number,) in enumerate(db.execute(f"SELECT number FROM {table} ORDER BY number"), start=1):
        if number != expected:
            yield f"{what} {expected} is missing"
            return
