"""Any sequence of charges, replays and changed limits gives what a dozen lines of plain Python give."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dpsql.errors import BudgetExhausted, UnknownUser
from dpsql.ledger import Purchase
from dpsql.ledger.accounts import storable
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price, pure_price, pure_within
from tests.ledger_places import Server, reopen

USERS = ("alice", "bob", "dataset")
DATASET = None
KEYS = [bytes([number]) * 32 for number in range(5)]

# Small numbers, so that limits are met exactly, missed by one and passed often.
# One grain of rho pays for a pure epsilon of about fifty million.
pure = st.integers(1, 6) | st.integers(1, 4).map(lambda many: many * 10**8)
prices = st.builds(Price, st.integers(0, 6), st.integers(0, 3)) | st.builds(Price, st.integers(1, 30), st.just(0), pure)
limits = st.builds(Price, st.integers(0, 40), st.integers(0, 15), st.none() | st.integers(0, 20) | pure)
policies = st.tuples(limits, st.dictionaries(st.sampled_from(USERS), st.none() | limits, min_size=1))
handles = st.integers(0, 1)
users = st.sampled_from(USERS)
keys = st.sampled_from(KEYS)
wishes = st.lists(st.tuples(keys, prices, st.booleans()), max_size=3)


def within(price: Price, limit: Price | None) -> bool:
    return limit is None or (price.loss <= limit.loss and price.delta <= limit.delta)


def within_either(price: Price, limit: Price | None) -> bool:
    """The union of both filters, in other words than the ledger's."""
    if limit is None or within(price, limit):
        return True
    return price.delta == 0 and price.pure is not None and limit.pure is not None and price.pure <= limit.pure


def total(prices: list[Price]) -> Price:
    """Pure as long as everything in it is that costs anything."""
    paid = [price for price in prices if price.loss or price.delta]
    epsilons = [price.pure for price in paid if price.pure is not None]
    every = sum(epsilons) if len(epsilons) == len(paid) else None
    return Price(sum(price.loss for price in paid), sum(price.delta for price in paid), every)


class LedgerMachine(RuleBasedStateMachine):
    """Two handles on one ledger, as two processes would hold them; one model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.handles: list[SqlLedger] = []
        self.limits: dict[str | None, Price | None] = {}
        self.charged: dict[str | None, list[Price]] = {subject: [] for subject in (DATASET, *USERS)}
        self.paid: set[tuple[str, bytes]] = set()
        self.rows: list[tuple[str, str, Price, Price]] = []
        self.answers: dict[bytes, bytes] = {}

    @property
    def spent(self) -> dict[str | None, Price]:
        return {subject: total(prices) for subject, prices in self.charged.items()}

    def open(self, policy: tuple[Price, dict[str, Price | None]]) -> SqlLedger:
        total, allowances = policy
        self.limits = {DATASET: total}
        self.limits.update(allowances)
        return reopen(self.place(), total=total, allowances=allowances, create=not self.handles)

    def place(self) -> LedgerLocation:
        return self.directory / "ledger"

    @initialize(first=policies, second=policies)
    def begin(
        self, first: tuple[Price, dict[str, Price | None]], second: tuple[Price, dict[str, Price | None]]
    ) -> None:
        for policy in (first, second):
            self.handles.append(self.open(policy))

    @rule(handle=handles, policy=policies)
    def reopen(self, handle: int, policy: tuple[Price, dict[str, Price | None]]) -> None:
        self.handles[handle].close()
        self.handles[handle] = self.open(policy)

    @rule(handle=handles, user=users, wishes=wishes, sql=st.text(max_size=3))
    def charge(self, handle: int, user: str, wishes: list[tuple[bytes, Price, bool]], sql: str) -> None:
        bought = {key for _, key in self.paid}
        purchases = []
        for key, price, may_replay in wishes:
            purchases.append(Purchase(key, price, replay=may_replay and key in bought))
            bought.add(key)
        for_all, for_user, paid = [], [], set(self.paid)
        for purchase in purchases:
            if not purchase.replay:
                for_all.append(purchase.price)
            if not purchase.replay or (user, purchase.key) not in paid:
                for_user.append(purchase.price)
            paid.add((user, purchase.key))
        dataset, own = total(for_all), total(for_user)

        def pay() -> Price:
            return self.handles[handle].charge(user, purchases, sql=sql).paid

        if user not in self.limits:
            with pytest.raises(UnknownUser):
                pay()
        elif (dataset == Price() or self.admitted(DATASET, for_all)) and (
            own == Price() or self.admitted(user, for_user)
        ):
            assert pay() == own
            if own != Price() or paid != self.paid:
                self.rows.insert(0, (user, storable(sql), dataset, own))
            self.charged[DATASET] += for_all
            self.charged[user] += for_user
            self.paid = paid
        else:
            with pytest.raises(BudgetExhausted):
                pay()

    def admitted(self, subject: str | None, prices: list[Price]) -> bool:
        return within_either(total([*self.charged[subject], *prices]), self.limits[subject])

    @rule(handle=handles, key=keys, answer=st.binary(max_size=3))
    def store(self, handle: int, key: bytes, answer: bytes) -> None:
        self.handles[handle].store(key, answer)
        self.answers[key] = answer

    @invariant()
    def both_handles_agree_with_the_model(self) -> None:
        for ledger in self.handles:
            for subject in (DATASET, *USERS):
                assert ledger.spent(subject) == self.spent[subject]
            for user in USERS:
                assert {key for key in KEYS if ledger.has_paid(user, key)} == {k for u, k in self.paid if u == user}
            entries = [(entry.user, entry.sql, entry.dataset_price, entry.user_price) for entry in ledger.history()]
            assert entries == self.rows
            assert {key: ledger.lookup(key) for key in KEYS} == {key: self.answers.get(key) for key in KEYS}
            assert ledger.verify() == []

    @invariant()
    def remaining_is_exactly_what_one_more_charge_may_cost(self) -> None:
        for ledger in self.handles:
            for user in USERS:
                if user not in self.limits:
                    with pytest.raises(UnknownUser):
                        ledger.remaining(user)
                    continue
                left = ledger.remaining(user)
                above = not all(within(self.spent[who], self.limits[who]) for who in (DATASET, user))
                for one_more in (Price(), Price(1), Price(0, 1)):
                    fits = all(within(self.spent[who] + left + one_more, self.limits[who]) for who in (DATASET, user))
                    assert above or fits == (one_more == Price())
                most = pure_within(left.loss) if left.pure is None else left.pure
                for epsilon in (most, most + 1):
                    step = pure_price([epsilon])
                    fits = all(self.admitted(who, [step]) for who in (DATASET, user))
                    assert epsilon == 0 or fits == (epsilon == most)

    def teardown(self) -> None:
        for ledger in self.handles:
            ledger.close()
        shutil.rmtree(self.directory)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_the_same_on_a_server(ledger_server: Server) -> None:
    class ServerMachine(LedgerMachine):
        def place(self) -> LedgerLocation:
            if not self.handles:
                self.address = ledger_server.empty_database()
            return self.address

    run_state_machine_as_test(ServerMachine, settings=settings(max_examples=10, stateful_step_count=15, deadline=None))
