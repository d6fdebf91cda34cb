"""What a query must pay for: finds stored and derivable answers, and charges the rest before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from dpsql.answering.answer_store import StoredAnswer, decode
from dpsql.answering.circuit_breaker import CircuitBreaker
from dpsql.answering.reuse import AnswerReuse, Derived, Older
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.errors import BudgetExhausted, Cancelled, EngineFailed, Error, InternalError, OperationalError
from dpsql.ledger import AttemptTaken, Ledger, PaidAttempt, Purchase, Receipt, Unanswered
from dpsql.noise.samplers import Sampler
from dpsql.policy.canonical import digest, rows_text
from dpsql.privacy.accounting import Accountant, Price
from dpsql.release import Measurement, QuerySettings, Release
from dpsql.release.explain import price_text
from dpsql.release.identity import EarlierAnswers, key_of_answer
from dpsql.sql.kept_text import kept_text
from dpsql.tables import NoisyTable

_ASK_AGAIN = "Run the same query again: it costs nothing more."


@dataclass(frozen=True, slots=True)
class _Attempt:
    index: int  # of the measurement in the release
    unanswered: Unanswered  # the paid attempt, in case it fails


class Bill:
    """What one query needs: stored answers, answers derived from stored ones, and purchases."""

    def __init__(self) -> None:
        self.purchases: list[Purchase] = []
        self.keys: dict[int, bytes] = {}
        self.stages: dict[int, EarlierAnswers] = {}  # the identities of each measurement
        self.derived: dict[int, tuple[Purchase, ...]] = {}  # the sources of answers that are derived from earlier ones
        self.older: dict[int, Older] = {}  # earlier answers to combine with the missing ones
        self.instances: dict[int, str] = {}
        self.known: dict[int, StoredAnswer] = {}
        self.prices: dict[int, Price] = {}  # the price of what is missing
        self.retries: dict[int, PaidAttempt] = {}  # paid attempts that are run again
        self.noised: set[int] = set()  # those whose noise was drawn

    def attempts(self, receipt: Receipt) -> Iterator[_Attempt]:
        """The attempts to run, paid for by this payment or an earlier one."""
        for index, price in self.prices.items():
            retry = self.retries.get(index)
            charge, runs = (receipt.number, 1) if retry is None else (retry.charge, retry.runs + 1)
            if charge is not None:
                yield _Attempt(index, Unanswered(self.keys[index], price, charge, runs, self.instances[index]))

    @property
    def sources(self) -> list[Purchase]:
        """The earlier answers that others are derived from."""
        return list(chain.from_iterable(self.derived.values()))

    @property
    def missing(self) -> list[bytes]:
        """The keys that are not stored."""
        return [key for index, key in self.keys.items() if index not in self.known]


class Purchases:
    """Finds stored answers, and charges the ledger for the rest. A charge is never returned."""

    def __init__(
        self,
        ledger: Ledger,
        accountant: Accountant,
        reuse: AnswerReuse,
        sampler: Sampler,
        engine: Engine,
        timeout: float,
    ) -> None:
        self._ledger = ledger
        self._accountant = accountant
        self._reuse = reuse
        self._sampler = sampler
        self._engine = engine
        self._timeout = timeout
        self.circuits = CircuitBreaker()

    def bill(self, release: Release, user: str | None, fresh: bool) -> Bill:
        """Which measurements are stored already, and the key under which each is paid for and stored."""
        bill = Bill()
        for index, measurement in enumerate(release.measurements):
            if not measurement.statistics:
                # Nothing is measured: the keys are the answer, and its identity.
                assert measurement.cells is not None
                bill.instances[index] = digest(rows_text(measurement.cells)).hex()
                bill.known[index] = StoredAnswer(bill.instances[index], NoisyTable(measurement.cells, ()))
                continue
            used = [release.stages[stage] for stage in measurement.stages]
            earlier = [(stage.asked.identity, tuple(bill.instances[i] for i in stage.measurements)) for stage in used]
            clips = [(index, bill.instances[search]) for index, search in measurement.clips]
            key = key_of_answer(measurement.identity, earlier, clips)
            # A clip is bought once; another answer to the same query uses it too.
            stored = None if fresh and not measurement.is_search else self._ledger.lookup(key)
            bill.keys[index] = key
            bill.stages[index] = earlier
            if stored is not None:
                bill.known[index] = decode(stored)
            elif not fresh and user and (made := self._made(measurement, bill.stages[index], release.asked, user)):
                bill.known[index] = made.known
                bill.derived[index] = made.purchases
                bill.purchases += made.purchases
            attempt = None
            if index in bill.known:
                bill.instances[index] = bill.known[index].instance
            else:
                attempt = self._paid_attempt(key, measurement.price, user)
                bill.instances[index] = attempt.instance if attempt else self._sampler.salt()
            if measurement.is_search and not measurement.price.loss:
                if stored is None:
                    raise OperationalError("a stored contribution bound has expired", hint="Ask again.")
                continue
            if index not in bill.derived:
                replay = stored is not None or attempt is not None
                bill.purchases.append(Purchase(key, measurement.price, replay, attempt))
            if index not in bill.known:
                bill.prices[index] = measurement.price
                if attempt is not None:
                    bill.retries[index] = attempt
        return bill

    def _paid_attempt(self, key: bytes, price: Price, user: str | None) -> PaidAttempt | None:
        """A failed paid attempt at this answer. A user who has not paid need not wait for it, and may buy a new one."""
        if user is None or not price.loss:
            return None
        found = self._ledger.paid_attempt(key, price)
        return found if found is None or not found.wait or self._ledger.has_paid(user, key) else None

    def _made(
        self, measurement: Measurement, stages: EarlierAnswers, asked: QuerySettings, user: str
    ) -> Derived | None:
        """The answer derived from earlier ones, if it costs no more and has no wider margins than a new one."""
        made = self._reuse.find(measurement, stages, asked)
        if made is None:
            return None
        owed = self.owed(user, made.purchases)
        if owed != Price() and not (owed.is_no_dearer(measurement.price) and made.is_no_wider):
            return None
        return made

    def owed(self, user: str, purchases: Iterable[Purchase]) -> Price:
        """What the user would pay for earlier answers bought by others."""
        return sum((p.price for p in set(purchases) if not self._ledger.has_paid(user, p.key)), Price())

    def _find_older(self, release: Release, bill: Bill, user: str) -> None:
        """Earlier answers, paid for by the user, that new ones may be combined with."""
        for index, measurement in enumerate(release.measurements):
            if index not in bill.known:
                older = self._reuse.older(measurement, bill.stages[index], user)
                if older is not None:
                    bill.older[index] = older

    def paid(
        self, release: Release, bill: Bill, user: str, sql: str, fresh: bool, cancellation: Cancellation | None
    ) -> tuple[Receipt, Bill, Price]:
        """Charge the bill: the receipt, the bill as paid, and what the user owed for answers bought by others.

        Nothing is charged while the engine is known to fail, or after the statement was cancelled.
        """
        while True:
            if bill.missing:
                self._require_engine(release, bill, user, cancellation)
            owed = self.owed(user, bill.sources)
            self._find_older(release, bill, user)
            try:
                return self._charge(user, bill, sql, cancellation), bill, owed
            except AttemptTaken:  # another process took the attempt
                bill = self.bill(release, user, fresh)

    def _require_engine(self, release: Release, bill: Bill, user: str, cancellation: Cancellation | None) -> None:
        """Raise if a charge would give no answer now. Reads no private row, and charges nothing."""
        waits = [attempt.wait for attempt in bill.retries.values()]
        if any(waits):
            runs = max(attempt.runs for attempt in bill.retries.values())
            raise OperationalError(
                f"the query was paid for, and has failed {runs} times",
                detail=f"It is run again after a pause of {math.ceil(max(waits))} s, at no further cost.",
                hint="Run it again then, or run another query. The owner finds the cause of the failures in the log.",
            )
        if any(purchase.price.loss and not purchase.replay for purchase in bill.purchases):
            self.circuits.require_closed(user)
        measurements = [release.measurements[index] for index in bill.keys if index not in bill.known]
        sources = {source for each in measurements for branch in each.branches for source in branch.query.sources}
        try:
            self._engine.ready(sorted(sources), timeout=self._timeout, cancellation=cancellation)
        except EngineFailed as error:
            error.detail = "Nothing was charged."
            raise

    @contextmanager
    def kept_if_unanswered(
        self, user: str, bill: Bill, receipt: Receipt, known: Mapping[int, StoredAnswer]
    ) -> Iterator[None]:
        """Record paid attempts that fail in the block, so that the same query runs them again at no cost.

        Claim: each charge gives at most one answer to each question.
        Because: only attempts whose noise was not drawn are recorded; of the others the answer may be stored, or
        seen. A retry uses a recorded attempt up, durably, before the engine runs it (`ledger.failures`), and draws
        noise of its own under the same key and price.
        Needs: nothing of an attempt leaves this process before its noise is drawn.
        """
        try:
            yield
        except BaseException as error:
            open_ = [attempt for attempt in bill.attempts(receipt) if attempt.index not in known]
            unanswered = [attempt.unanswered for attempt in open_ if attempt.index not in bill.noised]
            kept = len(unanswered) == len(open_)
            try:
                if unanswered:
                    self._ledger.fail(unanswered)
            except Error:
                kept = False
            if isinstance(error, EngineFailed):
                self.circuits.failed(user, error)
            if isinstance(error, Error):
                self._say_what_was_paid(error, bill, receipt, kept)
            raise
        if bill.missing:
            self.circuits.succeeded(user)

    def _say_what_was_paid(self, error: Error, bill: Bill, receipt: Receipt, kept: bool) -> None:
        if receipt.paid != Price():
            error.detail = f"It was charged {price_text(receipt.paid, self._accountant)}, and there is no answer yet."
        elif bill.retries:
            error.detail = "It was charged before, and there is no answer yet."
        else:
            return
        if kept and isinstance(error, EngineFailed | Cancelled | InternalError):
            error.hint = " ".join(filter(None, (_ASK_AGAIN, error.hint)))

    def _charge(self, user: str, bill: Bill, sql: str, cancellation: Cancellation | None) -> Receipt:
        if not bill.purchases:
            return Receipt(Price(), None)
        try:
            return self._ledger.charge(user, bill.purchases, sql=kept_text(sql), cancellation=cancellation)
        except BudgetExhausted as error:
            cost = sum((purchase.price for purchase in bill.purchases), Price())
            error.detail = f"The query costs {price_text(cost, self._accountant)}; left is {self.left(user)}."
            error.hint = (
                "Lower the price with SET dpsql.epsilon, repeat an earlier query at no cost, or ask the owner for more."
            )
            raise

    def left(self, user: str) -> str:
        """What a user can still spend, as text; with the reason if no more pure answers can be paid."""
        left = self._ledger.remaining(user)
        if not self._accountant.sells_pure or left.pure is not None or not left.loss:
            return price_text(left, self._accountant)
        had_others = self._ledger.spent().pure is None or self._ledger.spent(user).pure is None
        why = "not all answers were pure" if had_others else "their epsilon is spent"
        return f"{price_text(left, self._accountant)}; pure answers are charged like others, because {why}"
