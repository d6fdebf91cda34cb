"""A user's account in the ledger, for the twin's views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dpsql.answering.dataset import Dataset
from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.group_privacy import total_for_group
from dpsql.server.twin.account_views import BudgetRow, HistoryRow

SHOWN = 1_000  # charges and refusals of the history
SHOWN_TEXT = 2_000  # characters of each; the twin holds a copy, refreshed at each look


@dataclass(frozen=True, slots=True)
class Account:
    """The contents of a user's views."""

    budget: BudgetRow
    history: list[HistoryRow]


def read_account(dataset: Dataset, user: str) -> Account:
    return Account(_budget(dataset, user), _history(dataset, user))


def _budget(dataset: Dataset, user: str) -> BudgetRow:
    accountant = dataset.accountant
    spent, left = dataset.ledger.spent(user), dataset.ledger.remaining(user)
    # Pure answers may have left less than nothing of the rest.
    limit = Price(min(spent.loss + left.loss, accountant.total.loss), spent.delta + left.delta)
    default = accountant.price_of(accountant.policy.query_epsilon)
    return BudgetRow(
        accounting=accountant.policy.accounting,
        limit_epsilon=_epsilon(limit, accountant),
        spent_epsilon=_epsilon(spent, accountant),
        left_epsilon=_epsilon(left, accountant),
        limit_rho=_rho(limit, accountant),
        spent_rho=_rho(spent, accountant),
        left_rho=_rho(left, accountant),
        limit_delta=float(limit.delta_value),
        spent_delta=float(spent.delta_value),
        left_delta=float(left.delta_value),
        queries_left=left.loss // default,
        spent_pure=_pure(spent, accountant),
        left_pure=_pure(left, accountant),
        **_of_groups(dataset),
    )


def _of_groups(dataset: Dataset) -> dict[str, float]:
    """Bounds that hold for the dataset's total, whatever was and will be asked."""
    found = {}
    for people in (2, 5):
        loss = total_for_group(dataset.accountant, people, spent=dataset.ledger.spent())
        if loss is not None:
            found[f"total_epsilon_of_{people}"] = float(loss.epsilon)
            found[f"total_delta_of_{people}"] = float(loss.delta)
    return found


def _history(dataset: Dataset, user: str) -> list[HistoryRow]:
    accountant = dataset.accountant
    charges = [
        HistoryRow(
            datetime.fromisoformat(entry.time),
            "paid" if entry.user_price.loss or entry.user_price.delta else "replayed",
            _epsilon(entry.user_price, accountant),
            _rho(entry.user_price, accountant),
            float(entry.user_price.delta_value),
            "00000",
            None,
            _shown(entry.sql),
            _pure(entry.user_price, accountant),
        )
        for entry in dataset.ledger.history(user, SHOWN)
    ]
    refusals = [
        HistoryRow(
            datetime.fromisoformat(refusal.time),
            "refused",
            None,
            None,
            None,
            refusal.sqlstate,
            refusal.message,
            _shown(refusal.sql),
            None,
        )
        for refusal in dataset.ledger.refusals(user, SHOWN)
    ]
    return sorted([*charges, *refusals], key=lambda row: row.time, reverse=True)[:SHOWN]


def _shown(sql: str) -> str:
    return sql if len(sql) <= SHOWN_TEXT else sql[: SHOWN_TEXT - 1] + "…"


def _epsilon(price: Price, accountant: Accountant) -> float:
    return float(accountant.epsilon_of(price.loss))


def _rho(price: Price, accountant: Accountant) -> float | None:
    return float(price.loss_value) if accountant.policy.accounting == "zcdp" else None


def _pure(price: Price, accountant: Accountant) -> float | None:
    return None if price.pure_value is None or not accountant.sells_pure else float(price.pure_value)
