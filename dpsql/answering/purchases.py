"""What a question must pay: what is stored, what earlier answers determine, and what is charged first."""

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

_ASK_AGAIN = "Ask the same question again: it costs nothing more."


@dataclass(frozen=True, slots=True)
class _Attempt:
    index: int  # of the measurement in the release
    unanswered: Unanswered  # what it is if it fails


class Bill:
    """What one question needs: what is stored, what is made of stored answers, and what must be bought."""

    def __init__(self) -> None:
        self.purchases: list[Purchase] = []
        self.keys: dict[int, bytes] = {}
        self.stages: dict[int, EarlierAnswers] = {}  # what each was asked with
        self.derived: dict[int, tuple[Purchase, ...]] = {}  # what those are made of that are made of earlier answers
        self.older: dict[int, Older] = {}  # what those that are missing are joined with
        self.instances: dict[int, str] = {}
        self.known: dict[int, StoredAnswer] = {}
        self.prices: dict[int, Price] = {}  # of what is missing
        self.retries: dict[int, PaidAttempt] = {}  # what was paid for before and is run again
        self.noised: set[int] = set()  # whose noise was drawn

    def attempts(self, receipt: Receipt) -> Iterator[_Attempt]:
        """What is run by this payment, or by an earlier one."""
        for index, price in self.prices.items():
            retry = self.retries.get(index)
            charge, runs = (receipt.number, 1) if retry is None else (retry.charge, retry.runs + 1)
            if charge is not None:
                yield _Attempt(index, Unanswered(self.keys[index], price, charge, runs, self.instances[index]))

    @property
    def sources(self) -> list[Purchase]:
        """The earlier answers that others are made of."""
        return list(chain.from_iterable(self.derived.values()))

    @property
    def missing(self) -> list[bytes]:
        """The keys of what is not stored."""
        return [key for index, key in self.keys.items() if index not in self.known]


class Purchases:
    """Finds what is stored, and charges the ledger for the rest. A charge is never returned."""

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
        """Which measurements are stored already, and under which key each will be paid and kept."""
        bill = Bill()
        for index, measurement in enumerate(release.measurements):
            if not measurement.statistics:
                # Free: the keys are the answer, and name it.
                assert measurement.cells is not None
                bill.instances[index] = digest(rows_text(measurement.cells)).hex()
                bill.known[index] = StoredAnswer(bill.instances[index], NoisyTable(measurement.cells, ()))
                continue
            used = [release.stages[stage] for stage in measurement.stages]
            earlier = [(stage.asked.identity, tuple(bill.instances[i] for i in stage.measurements)) for stage in used]
            clips = [(index, bill.instances[search]) for index, search in measurement.clips]
            key = key_of_answer(measurement.identity, earlier, clips)
            # A clip is bought once; another answer to the same question uses it too.
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
        """What was paid for and never given. Who has not paid for it need not wait for it, and may buy it anew."""
        if user is None or not price.loss:
            return None
        found = self._ledger.paid_attempt(key, price)
        return found if found is None or not found.wait or self._ledger.has_paid(user, key) else None

    def _made(
        self, measurement: Measurement, stages: EarlierAnswers, asked: QuerySettings, user: str
    ) -> Derived | None:
        """The answer made of earlier ones: free, or no dearer and no further off than a new one would be."""
        made = self._reuse.find(measurement, stages, asked)
        if made is None:
            return None
        owed = self.owed(user, made.purchases)
        if owed != Price() and not (owed.is_no_dearer(measurement.price) and made.is_no_wider):
            return None
        return made

    def owed(self, user: str, purchases: Iterable[Purchase]) -> Price:
        """What the user would pay for earlier answers of others."""
        return sum((p.price for p in set(purchases) if not self._ledger.has_paid(user, p.key)), Price())

    def _find_older(self, release: Release, bill: Bill, user: str) -> None:
        """What the user has paid for before that new answers may be joined with."""
        for index, measurement in enumerate(release.measurements):
            if index not in bill.known:
                older = self._reuse.older(measurement, bill.stages[index], user)
                if older is not None:
                    bill.older[index] = older

    def paid(
        self, release: Release, bill: Bill, user: str, sql: str, fresh: bool, cancellation: Cancellation | None
    ) -> tuple[Receipt, Bill, Price]:
        """The receipt of what is missing, the bill as it was paid, and what the user owed for answers of others.

        Nothing is charged while it is known that the engine would fail, or after the statement was cancelled.
        """
        while True:
            if bill.missing:
                self._require_engine(release, bill, user, cancellation)
            owed = self.owed(user, bill.sources)
            self._find_older(release, bill, user)
            try:
                return self._charge(user, bill, sql, cancellation), bill, owed
            except AttemptTaken:  # another process was faster
                bill = self.bill(release, user, fresh)

    def _require_engine(self, release: Release, bill: Bill, user: str, cancellation: Cancellation | None) -> None:
        """Raise where what is missing would be paid and not answered. It reads no private row, and charges nothing."""
        waits = [attempt.wait for attempt in bill.retries.values()]
        if any(waits):
            runs = max(attempt.runs for attempt in bill.retries.values())
            raise OperationalError(
                f"the query was paid for, and has failed {runs} times",
                detail=f"It is run again after a pause of {math.ceil(max(waits))} s, at no further cost.",
                hint="Ask again then, or ask another question. The owner finds the cause of the failures in the log.",
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
        """What was paid for and is not answered is kept in the ledger, and the same question runs it again for free.

        Claim: each charge gives at most one answer to each question.
        Because: what is kept is the attempts that have not come as far as noise; of the others the answer may be
            stored, or seen. Whoever takes a kept attempt uses it up, durably, before the engine is asked
            (`ledger.failures`), and draws noise of its own under the same key and price.
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
            error.hint = "Ask for less with SET dpsql.epsilon, repeat an earlier query for free, or ask the owner."
            raise

    def left(self, user: str) -> str:
        """What a user can still spend, in words; and where nothing more is paid as pure, why."""
        left = self._ledger.remaining(user)
        if not self._accountant.sells_pure or left.pure is not None or not left.loss:
            return price_text(left, self._accountant)
        had_others = self._ledger.spent().pure is None or self._ledger.spent(user).pure is None
        why = "not all answers were pure" if had_others else "their epsilon is spent"
        return f"{price_text(left, self._accountant)}; pure answers pay as others do, since {why}"
