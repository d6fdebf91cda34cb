"""What was paid, by whom, and which answers were released: paid before anything runs, never refunded."""

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

    `replay` says that the answer was released before: the dataset pays nothing, and a user who never paid
    for it pays from the own allowance only. Likewise for one that was paid for and never given, which `retry` names.
    """

    key: bytes  # identity of the released answer, 32 bytes
    price: Price
    replay: bool
    retry: PaidAttempt | None = None


@dataclass(frozen=True, slots=True)
class PaidAttempt:
    """An answer that was paid for and never given, because each run of its query failed."""

    number: int  # of the failure in the ledger
    charge: int  # that paid for it
    runs: int  # so far
    instance: str  # the identity that the answer was to have
    wait: float  # seconds until it may be run again


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A paid attempt that has just failed. Nothing of it was shown or stored, and never will be."""

    key: bytes
    price: Price
    charge: int
    runs: int
    instance: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a user paid, and the number of the row that says so; a question that costs and buys nothing leaves none."""

    paid: Price
    number: int | None
    hash: bytes = b""  # of that row


class AttemptTaken(OperationalError):
    """Somebody else has taken the paid attempt; look again what there is."""

    def __init__(self) -> None:
        super().__init__("the query is being run by another process", hint="Ask again.")


@dataclass(frozen=True, slots=True)
class Closing:
    """A way to pay that would end: with pure answers alone, or with others; of a user's allowance, or of all (None)."""

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
    """One recorded refusal. It says nothing about the data: a query is refused before any private row is read."""

    time: str  # UTC, ISO 8601
    user: str
    sql: str
    sqlstate: str
    message: str


class Ledger(Protocol):
    """The account of a dataset. Every method may be called from many threads and processes at once."""

    @property
    def begun(self) -> bool:
        """Whether it was made when it was opened, and so knows of nothing that was spent before."""
        ...

    @property
    def adopted(self) -> bool:
        """Whether it had charges when it was opened, and did not know until then whom they protect."""
        ...

    def charge(
        self, user: str, purchases: Sequence[Purchase], *, sql: str, cancellation: Cancellation | None = None
    ) -> Receipt:
        """Record the purchases, durably when this returns, and say what the user paid.

        Raises BudgetExhausted, and then changes nothing, if the dataset or the user cannot pay for all of them; and
        AttemptTaken if one of the paid attempts that they name is no longer there. A statement that was cancelled while
        it waited for its turn is not charged.
        """
        ...

    def fail(self, attempts: Sequence[Unanswered]) -> None:
        """Record, durably, that paid attempts ended without an answer. Each may then be taken once more."""
        ...

    def paid_attempt(self, key: bytes, price: Price) -> PaidAttempt | None:
        """An attempt at this answer, at this very price, that was paid for and failed, and that nobody has taken."""
        ...

    def refuse(self, user: str, sql: str, sqlstate: str, message: str) -> None:
        """Record that a query of a known user was not answered; what is recorded of a user and day is bounded."""
        ...

    def spent(self, user: str | None = None) -> Price:
        """What the dataset has paid, or one user."""
        ...

    def remaining(self, user: str) -> Price:
        """What the user can still spend: the smaller of the dataset's rest and the user's own, per component.

        As pure, what one more pure answer may cost; None where that is no more than the rest of the loss pays for.
        """
        ...

    def closing(self, user: str, purchases: Sequence[Purchase]) -> list[Closing]:
        """Which ways to pay would end with these purchases, though something is left. Changes nothing."""
        ...

    def lookup(self, key: bytes) -> bytes | None:
        """The stored answer; None if there is none or it has expired."""
        ...

    def lookup_all(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Those stored answers that there are, by their keys."""
        ...

    def has_paid(self, user: str, key: bytes) -> bool:
        """Whether a replay of this answer is free for the user."""
        ...

    def store(self, key: bytes, answer: bytes, beside: Mapping[bytes, bytes] | None = None) -> None:
        """Keep a released answer, in place of an older one, and what stands beside it. They hold noisy values only."""
        ...

    def history(self, user: str | None = None, limit: int = 100) -> list[Entry]:
        """The last charges, newest first."""
        ...

    def refusals(self, user: str, limit: int = 100) -> list[Refusal]:
        """The last refusals of a user, newest first."""
        ...

    def check(self) -> None:
        """Raise what keeps it from being charged: it cannot be read, has gone back in time, or is damaged."""
        ...

    def condemn(self, damage: str) -> None:
        """Refuse all charges from now on, in all processes that share its state folder, until the owner accepts it."""
        ...

    def verify(self) -> list[str]:
        """Recompute everything from the append-only rows; each string is a contradiction, none means sound."""
        ...

    def close(self) -> None:
        """Let go of the file or the server. A closed ledger refuses everything else."""
        ...
