"""A ledger in a SQL database: what SQLite and PostgreSQL have in common.

Rows are append-only. Running sums are updated in the same transaction, so that the time of a charge does not depend on
the length of the history; `verify` recomputes the sums from the rows.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from dpsql.effort import Cancellation
from dpsql.errors import InternalError, LedgerDamaged, LedgerLost, OperationalError
from dpsql.ledger import (
    Closing,
    Entry,
    PaidAttempt,
    Purchase,
    Receipt,
    Refusal,
    Unanswered,
    accounts,
    failures,
    protections,
)
from dpsql.ledger import database as clock
from dpsql.ledger.accounts import UNLIMITED, storable
from dpsql.ledger.database import Database
from dpsql.ledger.group_commit import GroupCommit
from dpsql.ledger.identity import Standing, require_identity, standing
from dpsql.ledger.mark import Mark, Seen
from dpsql.ledger.schema import DATASET, MAX_GRAINS, subject_of
from dpsql.ledger.verification import (
    ALTERED,
    checksum_of,
    contradictions,
    contradictions_of_newest,
    is_intact,
    newest,
)
from dpsql.ledger.waiting import interruptible
from dpsql.policy.protection import Protection
from dpsql.privacy.accounting import Price

MAX_REFUSAL_TEXT = 2_000  # characters kept of a refused query
MAX_REFUSALS_A_DAY = 1_000  # refusals kept per user and day

_log = logging.getLogger("dpsql.ledger")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a policy declares about its ledger: identity, limits and protection."""

    dataset: str
    accounting: str
    limits: Mapping[str, Price]
    protection: Protection | None  # None: only limits are recorded, and nothing can be charged
    accept_units: bool = False  # the owner accepts other units than the ledger has counted for


def limits_of(total: Price, allowances: Mapping[str, Price | None]) -> dict[str, Price]:
    """What the dataset and each user may spend in total; None: a user limited by the dataset's total only."""
    limits = {DATASET: total} | {subject_of(u): UNLIMITED if a is None else a for u, a in allowances.items()}
    for limit in limits.values():
        accounts.require_storable(limit)
    return limits


class SqlLedger(ABC):
    """A Ledger over abstract read and write transactions. The policy opened last sets the limits for all processes."""

    _stores_durably = False

    def __init__(self, location: object, replay_days: float | None) -> None:
        self._location = location
        self._replay_days = replay_days
        self._id: str | None = None
        self.begun = False
        self.adopted = False
        self._protection: Protection | None = None
        self._protected: int | None = None  # the newest row that was checked against it
        self._mark = Mark()
        self._told = False  # the owner, of what keeps it from being charged
        self._group_commit = GroupCommit(self._transact)

    # --- what the database must do ---

    @abstractmethod
    def _transact(self, work: Callable[[Database], T], *, durable: bool) -> T:
        """Do the work in one transaction that excludes all other writers; if `durable`, on disk when this returns.

        The work may be repeated from the start if the transaction certainly left nothing.
        """

    @abstractmethod
    def _read(self, work: Callable[[Database], T]) -> T:
        """Do the work on one consistent snapshot, concurrently with writers."""

    def _glance(self, work: Callable[[Database], T]) -> T:
        """Do work of a single statement, which has a consistent snapshot by itself."""
        return self._read(work)

    def _write(self, work: Callable[[Database], T]) -> T:
        """Do the work as if alone, durable when this returns; concurrent writers share a transaction (group commit)."""
        return self._group_commit.do(work)

    def _write_once(self, work: Callable[[Database], Receipt]) -> Receipt:
        """As `_write`; the work is recorded exactly once, even if a COMMIT is in doubt."""
        return self._write(work)

    @abstractmethod
    def _upgrade(self, db: Database) -> None:
        """Upgrade a ledger of an older format to the present one."""

    @abstractmethod
    def close(self) -> None: ...

    # --- what a ledger does ---

    def charge(
        self, user: str, purchases: Sequence[Purchase], *, sql: str, cancellation: Cancellation | None = None
    ) -> Receipt:
        """Record the purchases durably, and return what the user paid.

        A query that costs nothing and buys nothing new leaves no row, so that no one can fill the disk at no cost.
        """
        accounts.require_payable(purchases)

        # Free replays, as of dashboards, must not make buyers wait.
        if all(purchase.replay and purchase.retry is None for purchase in purchases) and self._read(
            self._standing(lambda db: accounts.is_free(db, user, purchases))
        ):
            return Receipt(accounts.FREE, None)

        def paid(db: Database) -> Receipt:
            if cancellation is not None:  # while it waited for other writers
                cancellation.check()
            return accounts.pay(db, user, purchases, sql)

        with nullcontext() if cancellation is None else interruptible(cancellation):
            receipt = self._write_once(self._standing(paid))
        if receipt.number is not None:
            assert self._id is not None
            self._mark.advance(Seen(self._id, receipt.number, receipt.hash.hex()))
        return receipt

    def fail(self, attempts: Sequence[Unanswered]) -> None:
        """Record durably that paid attempts ended without an answer. Each may then be taken once more."""
        with interruptible(None):  # attempts of cancelled statements are recorded too
            self._write(self._standing(lambda db: failures.record(db, attempts)))

    def paid_attempt(self, key: bytes, price: Price) -> PaidAttempt | None:
        """A paid attempt at this answer, at exactly this price, that failed and is free to take."""
        return self._glance(lambda db: failures.find(db, key, price))

    def refuse(self, user: str, sql: str, sqlstate: str, message: str) -> None:
        """Record a refused query, for the owner to read.

        It reveals nothing about the data: a refusal comes before any private row is read, and depends only on the
        query, the policy, public tables, this ledger and values already released (rule Static).

        Refusals cost nothing and must not fill the disk: long texts are cut, and their number per user and day is
        bounded.
        """

        def refused(db: Database) -> None:
            accounts.allowance(db, user)  # a user whom the policy does not name leaves no trace
            now = clock.timestamp()
            today = now[: len("2000-01-01")]
            [(kept,)] = db.execute(
                'SELECT COUNT(*) FROM refusals WHERE "user" = ? AND at >= ?', (user, today)
            ).fetchall()
            if kept < MAX_REFUSALS_A_DAY:
                texts = [storable(_cut(text)) for text in (sql, sqlstate, message)]
                db.execute(
                    "INSERT INTO refusals VALUES ((SELECT COALESCE(MAX(number), 0) + 1 FROM refusals), ?, ?, ?, ?, ?)",
                    (now, user, *texts),
                )

        self._write(self._standing(refused))

    def spent(self, user: str | None = None) -> Price:
        """What the dataset, or one user, has paid; also a user whom the policy no longer names."""
        return self._glance(lambda db: accounts.spent(db, DATASET if user is None else subject_of(user)))

    def remaining(self, user: str) -> Price:
        """What the user can still spend: the smaller of the dataset's and the user's remainder, per component."""
        return self._glance(lambda db: accounts.remaining(db, user))

    def closing(self, user: str, purchases: Sequence[Purchase]) -> list[Closing]:
        """Which ways to pay these purchases would end, though some budget is left."""
        return self._glance(lambda db: accounts.closing(db, user, purchases))

    def lookup(self, key: bytes) -> bytes | None:
        """The stored answer; None if there is none or it has expired."""
        return self.lookup_all([key]).get(key)

    def lookup_all(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """The stored answers among these keys, by key."""
        if not keys:
            return {}
        marks = ", ".join("?" for _ in keys)
        rows = self._glance(
            lambda db: db.execute(
                f"SELECT key, created, payload, checksum FROM answers WHERE key IN ({marks})", tuple(keys)
            ).fetchall()
        )
        found: dict[bytes, bytes] = {}
        for key, created, payload, checksum in rows:
            if not is_intact(key, created, payload, checksum):
                self.condemn(ALTERED)
                raise LedgerDamaged(ALTERED)
            if self._has_expired(created):
                self._forget(bytes(key), created)
            else:
                found[bytes(key)] = bytes(payload)
        return found

    def _forget(self, key: bytes, created: str) -> None:
        """Delete an expired answer, so that a clock set back does not revive it."""
        self._write(lambda db: db.execute("DELETE FROM answers WHERE key = ? AND created = ?", (key, created)))

    def has_paid(self, user: str, key: bytes) -> bool:
        """Whether a replay of this answer is free for the user."""
        return self._glance(lambda db: accounts.has_paid(db, user, key))

    def store(self, key: bytes, answer: bytes, beside: Mapping[bytes, bytes] | None = None) -> None:
        """Store released answers, replacing older ones of the same keys. They hold noisy values only.

        In a file this does not wait for the disk: an answer lost in a power failure is bought again. In a server it
        waits, because a killed server loses what it has not written.
        """

        def stored(db: Database) -> None:
            now = clock.timestamp()
            for name, payload in {**(beside or {}), key: answer}.items():
                db.execute(
                    "INSERT INTO answers (key, created, payload, checksum) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (key) DO UPDATE SET created = excluded.created, payload = excluded.payload,"
                    " checksum = excluded.checksum",
                    (name, now, payload, checksum_of(name, now, payload)),
                )

        with interruptible(None):  # an answer that was paid for but not stored would be paid for again
            self._group_commit.do(self._standing(stored), durable=self._stores_durably)

    def history(self, user: str | None = None, limit: int = 100) -> list[Entry]:
        """The last charges, newest first."""
        whose, values = ("", []) if user is None else ('WHERE "user" = ?', [user])
        rows = self._read(
            lambda db: db.execute(
                'SELECT at, "user", sql, dataset_loss, dataset_delta, dataset_pure, user_loss, user_delta, user_pure '
                f"FROM charges {whose} ORDER BY number DESC LIMIT ?",
                (*values, min(max(limit, 0), MAX_GRAINS)),
            ).fetchall()
        )
        return [Entry(at, who, sql, Price(*grains[:3]), Price(*grains[3:])) for at, who, sql, *grains in rows]

    def refusals(self, user: str, limit: int = 100) -> list[Refusal]:
        """The last refusals of a user, newest first."""
        rows = self._read(
            lambda db: db.execute(
                'SELECT at, "user", sql, sqlstate, message FROM refusals WHERE "user" = ? ORDER BY number DESC LIMIT ?',
                (user, min(max(limit, 0), MAX_GRAINS)),
            ).fetchall()
        )
        return [Refusal(*row) for row in rows]

    def verify(self) -> list[str]:
        """Recompute everything from the append-only rows; each string is a contradiction, none means sound."""
        return self._read(contradictions)

    # --- identity ---

    def _adopt_or_close(self, terms: Terms) -> None:
        try:
            self._adopt(terms)
        except BaseException:
            self.close()
            raise

    def _adopt(self, terms: Terms) -> None:
        """Check that it is the ledger of this dataset and these units, and put the policy's limits in force."""

        def adopted(db: Database) -> tuple[Standing, bool]:
            require_identity(db, self._location, terms.dataset, terms.accounting)
            self._upgrade(db)
            standing(db).require_chargeable(self._location)
            first = terms.protection is not None and protections.adopt(
                db, self._location, terms.protection, accept=terms.accept_units
            )
            accounts.set_limits(db, terms.limits)
            return standing(db), first

        found, self.adopted = self._write(adopted)
        self._id, self._protection, self._protected = found.id, terms.protection, found.protection

    def _standing(self, work: Callable[[Database], T]) -> Callable[[Database], T]:
        """The work, guarded: refused if the ledger was replaced, or has lost charges, since it was opened.

        Refused too if the ledger now protects other units than this process's policy.
        """
        if self._protection is None:
            raise InternalError("a ledger that was opened for its limits only accepts no charges")
        protection = self._protection
        seen = self._mark.read()  # read before the transaction, whose snapshot may be older than charges made meanwhile

        def checked(db: Database) -> T:
            found = standing(db, charge=0 if seen is None else seen.number)
            found.require_chargeable(self._location)
            if found.id != self._id:
                raise OperationalError(
                    "the ledger was replaced by another while in use", hint="Put the ledger back and start again."
                )
            self._require_seen(found, seen)
            if found.protection != self._protected:
                protections.require_unchanged(db, protection)
                self._protected = found.protection
            return work(db)

        return checked

    # --- integrity ---

    def check(self) -> None:
        """Raise if it cannot be charged: it cannot be read, has lost charges, or is damaged."""
        self._read(self._standing(lambda _: None))

    def condemn(self, damage: str) -> None:
        """Refuse all charges from now on, in all processes that share the state folder, until the owner accepts it."""
        self._mark.condemn(self._id or "", damage)
        self._tell("ledger_damaged", damage=damage)

    def accept(self) -> None:
        """Accept the ledger in its present state, on the owner's order."""
        self._mark.write(self._read(newest))
        self._told = False

    def require_recent(self) -> None:
        """Check the newest charges, in constant time; `verify` checks all."""
        self.check()
        if found := self._read(contradictions_of_newest):
            self.condemn(found[0])
            raise LedgerDamaged(found[0])

    def _require_seen(self, found: Standing, seen: Seen | None) -> None:
        """Refuse a ledger that is marked as damaged, or no longer holds the newest charge seen (the high-water mark).

        Claim: a ledger that has lost a charge which this machine has seen is not charged by it again.
        Because: the hash of a charge covers all charges before it (a hash chain), so that a row with the same hash has
        the same history; and the mark is not moved while it does not match, however many others charge. Only the owner
        moves it.
        Needs: a mark of the newest charge (`SqlLedger.charge`), which a restart finds in the state folder.
        """
        if seen is None:
            return
        if seen.damage is not None:
            self._tell("ledger_damaged", damage=seen.damage)
            raise LedgerDamaged(seen.damage)
        is_there = found.hash is not None and bytes(found.hash).hex() == seen.hash
        if seen.number and not (found.id == seen.ledger and is_there):
            self._tell("ledger_lost_charges", charge=seen.number, charges=found.charges)
            raise LedgerLost(seen.number, found.charges)

    def _tell(self, event: str, **facts: str | int) -> None:
        if not self._told:
            self._told = True
            _log.error(event, extra={"facts": facts})

    def _noticed(self, failure: OperationalError) -> OperationalError:
        """Returns the failure; if it is damage, all further charges are refused."""
        if isinstance(failure, LedgerDamaged):
            self.condemn("its storage cannot be read")
        return failure

    def _has_expired(self, created: str) -> bool:
        """An answer dated further into the future than the limit was stored under a wrong clock: expired too."""
        if self._replay_days is None:
            return False
        age = clock.now() - datetime.fromisoformat(created)
        return not abs(age.total_seconds()) <= self._replay_days * 86_400


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REFUSAL_TEXT else text[: MAX_REFUSAL_TEXT - 1] + "…"
