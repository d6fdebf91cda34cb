"""The arithmetic of a charge: who pays what, and whether they can. Runs in a transaction that excludes all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.errors import BadSetting, BudgetExhausted, InternalError, UnknownUser
from dpsql.ledger import Closing, Purchase, Receipt, failures
from dpsql.ledger import database as clock
from dpsql.ledger.database import Database
from dpsql.ledger.schema import DATASET, MAX_GRAINS, subject_of
from dpsql.ledger.verification import first_hash, hash_of
from dpsql.privacy.accounting import Price, admits, left_of

KEY_BYTES = 32
FREE = Price()
UNLIMITED = Price(loss=MAX_GRAINS, delta=MAX_GRAINS)
_GRAIN = Price(1, 0, 1)


def require_payable(purchases: Sequence[Purchase]) -> None:
    """Refuse malformed purchases before any account is read."""
    for purchase in purchases:
        require_storable(purchase.price)
        if len(purchase.key) != KEY_BYTES:
            raise InternalError(f"the key of an answer has {KEY_BYTES} bytes")
        if not _is_step(purchase.price):
            raise InternalError("a pure price has no delta, and an epsilon if it costs anything")
    require_storable(_sum(purchase.price for purchase in purchases))


def _is_step(price: Price) -> bool:
    """Whether an answer can have this price: pure prices have no delta, and are zero only if the loss is zero."""
    return price.pure is None or (price.delta == 0 and (price.pure > 0) == (price.loss > 0))


def pay(db: Database, user: str, purchases: Sequence[Purchase], sql: str) -> Receipt:
    """Record the purchases, or raise BudgetExhausted if the dataset or the user cannot pay for all of them.

    Claim: the dataset's sum never exceeds its total in loss or delta; or all of it is pure, and its epsilon does not.
    Because: sum and limits are read, compared and written here, and nothing here makes a sum smaller, or pure again.
    Needs: a transaction that excludes every other writer and is durable before anyone acts on the receipt; prices
        that cover what the purchases reveal; a replay only of what was released before, or of a paid attempt that
        was never answered (checked as far as the ledger can know it: somebody has paid for the key, and the attempt is
        used up here).
    """
    position = _position(db, user, purchases)
    bill = _bill(position.paid, purchases)
    for purchase in purchases:
        if purchase.retry is not None:
            failures.claim(db, purchase)
    if bill.user == FREE and not bill.keys:
        return Receipt(FREE, None)
    for subject, account, price in (
        (DATASET, position.dataset, bill.dataset),
        (subject_of(user), position.user, bill.user),
    ):
        if price != FREE:
            _admit(user if subject != DATASET else None, price, account.spent, account.limit)
        _set_spent(db, subject, _sum((account.spent, price)))
    return Receipt(bill.user, *_append(db, user, sql, bill, position))


def is_free(db: Database, user: str, purchases: Sequence[Purchase]) -> bool:
    """Whether `pay` would record nothing, as the user has paid for all of it before. Stays true once true."""
    paid = _position(db, user, purchases).paid
    return all(purchase.replay and paid.get(purchase.key, False) for purchase in purchases)


def remaining(db: Database, user: str) -> Price:
    """What is left in both the dataset's total and the user's allowance."""
    position = _position(db, user)
    return left_of(*((account.spent, account.limit) for account in (position.dataset, position.user)))


def closing(db: Database, user: str, purchases: Sequence[Purchase]) -> list[Closing]:
    """Which ways to pay these purchases would end though some budget is left, if they can be paid at all."""
    position = _position(db, user, purchases)
    bill = _bill(position.paid, purchases)
    found: list[Closing] = []
    for whose, account, price in ((None, position.dataset, bill.dataset), (user, position.user, bill.user)):
        before, after = account.spent + _GRAIN, account.spent + price
        if price != FREE and not admits(account.spent, price, account.limit):
            return []
        if before.fits_beside(account.limit) and not after.fits_beside(account.limit):
            found.append(Closing(whose, "others"))
        if before.fits_purely(account.limit) and not after.fits_purely(account.limit):
            found.append(Closing(whose, "pure"))
    return found


def storable(text: str) -> str:
    """Text without lone surrogates, which SQLite rejects, and without NUL, which PostgreSQL rejects."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


# --- a charge ---


@dataclass(frozen=True, slots=True)
class _Account:
    spent: Price
    limit: Price


@dataclass(frozen=True, slots=True)
class _Position:
    """The state that a charge depends on."""

    dataset: _Account
    user: _Account
    paid: Mapping[bytes, bool]  # keys of the purchases that some user has paid for; true: this user has
    last: tuple[int, bytes] | None  # number and hash of the newest charge
    protection: int | None  # the newest on record


# One statement, because each one is a round trip to the server.
_POSITION = """
SELECT d.new_loss, d.new_delta, d.new_pure, u.new_loss, u.new_delta, u.new_pure,
    da.loss, da.delta, da.pure, ua.loss, ua.delta, ua.pure, c.number, c.hash,
    (SELECT MAX(number) FROM protections), p.key, p.own
FROM (SELECT 1 AS one) AS always
LEFT JOIN (SELECT * FROM limits WHERE subject = ? ORDER BY number DESC LIMIT 1) AS d ON one = 1
LEFT JOIN (SELECT * FROM limits WHERE subject = ? ORDER BY number DESC LIMIT 1) AS u ON one = 1
LEFT JOIN accounts AS da ON da.subject = ?
LEFT JOIN accounts AS ua ON ua.subject = ?
LEFT JOIN (SELECT number, hash FROM charges ORDER BY number DESC LIMIT 1) AS c ON one = 1
LEFT JOIN (SELECT key, MAX(CASE WHEN "user" = ? THEN 1 ELSE 0 END) AS own FROM paid WHERE key IN ({keys}) GROUP BY key)
    AS p ON one = 1
"""


def _position(db: Database, user: str, purchases: Sequence[Purchase] = ()) -> _Position:
    """Read the state; raises UnknownUser for a user whom the policy does not name."""
    keys = list(dict.fromkeys(purchase.key for purchase in purchases))
    subjects = (DATASET, subject_of(user))
    statement = _POSITION.format(keys=", ".join("?" for _ in keys) or "NULL")
    rows = db.execute(statement, (*subjects, *subjects, user, *keys)).fetchall()
    first = rows[0]
    limit = _price(*first[0:3])
    if limit is None:
        raise InternalError(f"the ledger holds no limit for {DATASET}")
    own = _price(*first[3:6])
    if own is None:
        raise _unknown(user)
    return _Position(
        _Account(_price(*first[6:9]) or FREE, limit),
        _Account(_price(*first[9:12]) or FREE, own),
        {bytes(key): owned == 1 for *_, key, owned in rows if key is not None},
        None if first[12] is None else (first[12], bytes(first[13])),
        first[14],
    )


def _price(loss: int | None, delta: int | None, pure: int | None) -> Price | None:
    return None if loss is None or delta is None else Price(loss, delta, pure)


@dataclass(frozen=True, slots=True)
class _Bill:
    dataset: Price
    user: Price
    keys: tuple[bytes, ...]  # keys that the user has not paid for before, in byte order


def _bill(paid: Mapping[bytes, bool], purchases: Sequence[Purchase]) -> _Bill:
    """Who pays what.

    Claim: the dataset pays for every answer computed from data.
    Because: only a replay is free for it, and a key without a payment cannot be replayed.
    Needs: the caller holds the stored answer when it asks for a replay, or takes a paid attempt with it.
    """
    dataset, own, keys = [FREE], [FREE], set[bytes]()
    for purchase in purchases:
        owned = purchase.key in keys or paid.get(purchase.key, False)
        if not purchase.replay:
            dataset.append(purchase.price)
            own.append(purchase.price)
        elif not owned:
            if purchase.key not in paid:
                raise InternalError("an answer that was never paid for cannot be replayed")
            own.append(purchase.price)
        if not owned:
            keys.add(purchase.key)
    return _Bill(_sum(dataset), _sum(own), tuple(sorted(keys)))


def _admit(user: str | None, price: Price, spent: Price, limit: Price) -> None:
    """Refuse a price that an account cannot pay; `user` None is the dataset.

    An account that pays nothing is not checked, so that a replay works even above a lowered total.
    """
    if not admits(spent, price, limit):
        after = spent + price
        parts = ["loss"] if after.loss > limit.loss else []
        parts += ["delta for unknown keys"] if after.delta > limit.delta else []
        raise BudgetExhausted(
            "the privacy budget of the dataset is exhausted"
            if user is None
            else f'the allowance of user "{user}" is exhausted',
            detail=f"The query needs more {' and more '.join(parts)} than is left.",
            hint="Lower the query's price, repeat a query that was answered before, or ask the owner for more.",
            needed=price,
            left=left_of((spent, limit)),
        )


def _append(db: Database, user: str, sql: str, bill: _Bill, position: _Position) -> tuple[int, bytes]:
    number, previous = (0, first_hash(db)) if position.last is None else position.last
    number += 1
    row = (number, clock.timestamp(), user, storable(sql), *_grains(bill.dataset), *_grains(bill.user))
    pure = (bill.dataset.pure, bill.user.pure)
    hash_ = hash_of(previous, row, pure, bill.keys, position.protection)
    db.execute(
        "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, hash_, *pure, position.protection)
    )
    for key in bill.keys:
        db.execute("INSERT INTO paid VALUES (?, ?, ?)", (key, user, number))
    return int(number), hash_


def has_paid(db: Database, user: str, key: bytes) -> bool:
    return db.execute('SELECT 1 FROM paid WHERE key = ? AND "user" = ?', (key, user)).fetchone() is not None


# --- sums and limits ---


def require_storable(price: Price) -> None:
    """A Price is a non-negative integer by construction; here it must also fit the column."""
    if max(price.loss, price.delta, price.pure or 0) > MAX_GRAINS:
        raise BadSetting("a price is at most 2^63 - 1 grains")


def spent(db: Database, subject: str) -> Price:
    row = db.execute("SELECT loss, delta, pure FROM accounts WHERE subject = ?", (subject,)).fetchone()
    return FREE if row is None else Price(*row)


def allowance(db: Database, user: str) -> Price:
    """What the user may spend in total; raises UnknownUser for a user whom the policy does not name."""
    limit = _limit_or_none(db, subject_of(user))
    if limit is None:
        raise _unknown(user)
    return limit


def _unknown(user: str) -> UnknownUser:
    return UnknownUser(f'user "{user}" is not known', hint="The owner declares users in the policy.")


def set_limits(db: Database, limits: Mapping[str, Price]) -> None:
    """Put limits in force, replacing all earlier ones; each change adds a row."""
    known = {subject for (subject,) in db.execute("SELECT DISTINCT subject FROM limits")}
    for subject in sorted(known | limits.keys()):
        _record_limit(db, subject, _limit_or_none(db, subject), limits.get(subject))


def _grains(price: Price) -> tuple[int, int]:
    return price.loss, price.delta


def _sum(prices: Iterable[Price]) -> Price:
    return sum(prices, FREE)


def _set_spent(db: Database, subject: str, sum_: Price) -> None:
    db.execute(
        "INSERT INTO accounts (subject, loss, delta, pure) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (subject) DO UPDATE SET loss = excluded.loss, delta = excluded.delta, pure = excluded.pure",
        (subject, *_grains(sum_), sum_.pure),
    )


def _limit_or_none(db: Database, subject: str) -> Price | None:
    row = db.execute(
        "SELECT new_loss, new_delta, new_pure FROM limits WHERE subject = ? ORDER BY number DESC LIMIT 1", (subject,)
    ).fetchone()
    return None if row is None else _price(*row)


def _record_limit(db: Database, subject: str, old: Price | None, new: Price | None) -> None:
    """Add a row if the limit changed; None: the policy does not name the subject."""
    if old != new:
        before, after = ((None, None) if p is None else _grains(p) for p in (old, new))
        pure = [None if p is None else p.pure for p in (old, new)]
        db.execute(
            "INSERT INTO limits VALUES ((SELECT COALESCE(MAX(number), 0) + 1 FROM limits), ?, ?, ?, ?, ?, ?, ?, ?)",
            (clock.timestamp(), subject, *before, *after, *pure),
        )
