"""The privacy budget's ledger: charges, and the answers bought. Paid before anything runs, never refunded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dpsql.effort import Cancellation
from dpsql.errors import OperationalError
from dpsql.privacy.accounting import Price


@dataclass(frozen=True, slots=True)
class Purchase:
    """One answer that a query needs.

    `replay`: the answer was released before. The dataset pays nothing, and a user who has not paid for it pays from
    their own allowance only. The same holds for a paid attempt that never gave an answer, which `retry` names.
    """

    key: bytes  # identity of the released answer, 32 bytes
    price: Price
    replay: bool
    retry: PaidAttempt | None = None


@dataclass(frozen=True, slots=True)
class PaidAttempt:
    """An answer that was paid for and never released, because each run of its query failed."""

    number: int  # number of the failure in the ledger
    charge: int  # the charge that paid for it
    runs: int  # runs so far
    instance: str  # the identity of the missing answer
    wait: float  # seconds until it may be run again


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A paid attempt that has just failed. Nothing of it was or will be shown or stored."""

    key: bytes
    price: Price
    charge: int
    runs: int
    instance: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a user paid, and the number of the charge; a query that costs nothing and buys nothing has no charge."""

    paid: Price
    number: int | None
    hash: bytes = b""  # of that row


class AttemptTaken(OperationalError):
    """Another process has taken the paid attempt; look up the answer again."""

    def __init__(self) -> None:
        super().__init__("the query is being run by another process", hint="Ask again.")


@dataclass(frozen=True, slots=True)
class Closing:
    """A way to pay that would end: by pure answers or by others; for a user's allowance, or for the dataset (None)."""

    user: str | None
    kind: Literal["pure", "others"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded charge."""

    time: str  # UTC, ISO 8601
    user: str
    sql: str
    dataset_price: Price
    user_price: Price


@dataclass(frozen=True, slots=True)
class Refusal:
    """One recorded refusal. It reveals nothing about the data: a query is refused before any private row is read."""

    time: str  # UTC, ISO 8601
    user: str
    sql: str
    sqlstate: str
    message: str


class Ledger(Protocol):
    """The account of a dataset. All methods may be called from many threads and processes at once."""

    @property
    def begun(self) -> bool:
        """Whether it was created when it was opened, so that nothing counts as spent."""
        ...

    @property
    def adopted(self) -> bool:
        """Whether it had charges when it was opened, but no record of whom they protect."""
        ...

    def charge(
        self, user: str, purchases: Sequence[Purchase], *, sql: str, cancellation: Cancellation | None = None
    ) -> Receipt:
        """Record the purchases durably, and return what the user paid.

        Raises, without a change, BudgetExhausted if the dataset or the user cannot pay for all of them, and
        AttemptTaken if a paid attempt that they name has been taken. A statement that is cancelled while it waits is
        not charged.
        """
        ...

    def fail(self, attempts: Sequence[Unanswered]) -> None:
        """Record durably that paid attempts ended without an answer. Each may then be taken once more."""
        ...

    def paid_attempt(self, key: bytes, price: Price) -> PaidAttempt | None:
        """A paid attempt at this answer, at exactly this price, that failed and is free to take."""
        ...

    def refuse(self, user: str, sql: str, sqlstate: str, message: str) -> None:
        """Record that a query of a known user was refused; the number of records per user and day is bounded."""
        ...

    def spent(self, user: str | None = None) -> Price:
        """What the dataset, or one user, has paid."""
        ...

    def remaining(self, user: str) -> Price:
        """What the user can still spend: the smaller of the dataset's and the user's remainder, per component.

        Its pure part is the most that one more pure answer may cost; None where the remaining loss pays for as much.
        """
        ...

    def closing(self, user: str, purchases: Sequence[Purchase]) -> list[Closing]:
        """Which ways to pay these purchases would end, though some budget is left. Changes nothing."""
        ...

    def lookup(self, key: bytes) -> bytes | None:
        """The stored answer; None if there is none or it has expired."""
        ...

    def lookup_all(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """The stored answers among these keys, by key."""
        ...

    def has_paid(self, user: str, key: bytes) -> bool:
        """Whether a replay of this answer is free for the user."""
        ...

    def store(self, key: bytes, answer: bytes, beside: Mapping[bytes, bytes] | None = None) -> None:
        """Store released answers, replacing older ones of the same keys. They hold noisy values only."""
        ...

    def history(self, user: str | None = None, limit: int = 100) -> list[Entry]:
        """The last charges, newest first."""
        ...

    def refusals(self, user: str, limit: int = 100) -> list[Refusal]:
        """The last refusals of a user, newest first."""
        ...

    def check(self) -> None:
        """Raise if it cannot be charged: it cannot be read, has lost charges, or is damaged."""
        ...

    def condemn(self, damage: str) -> None:
        """Refuse all charges from now on, in all processes that share the state folder, until the owner accepts it."""
        ...

    def verify(self) -> list[str]:
        """Recompute everything from the append-only rows; each string is a contradiction, none means sound."""
        ...

    def close(self) -> None:
        """Close the file or the connections. A closed ledger refuses every call."""
        ...
