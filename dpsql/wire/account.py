"""What the ledger holds of a user, for the views of the twin."""

from __future__ import annotations

from datetime import datetime

import psycopg
from psycopg.rows import TupleRow

from dpsql.engine import Engine
from dpsql.privacy.accounting import Accountant, Price
from dpsql.twin.account import BudgetRow, HistoryRow, refresh

SHOWN = 1_000  # charges of the history


def refresh_account(connection: psycopg.Connection[TupleRow], engine: Engine, user: str) -> None:
    """Let the user's views show what the ledger holds now."""
    refresh(connection, user, [_budget(engine, user)], _history(engine, user))


def _budget(engine: Engine, user: str) -> BudgetRow:
    accountant = engine.accountant
    spent, left = engine.ledger.spent(user), engine.ledger.remaining(user)
    limit = Price(spent.loss + left.loss, spent.delta + left.delta)
    default = accountant.price_of(accountant.policy.query_epsilon)
    amounts = [(_epsilon(p, accountant), _rho(p, accountant), float(p.delta_value)) for p in (limit, spent, left)]
    return BudgetRow(
        accountant.policy.accounting,
        *(epsilon for epsilon, _, _ in amounts),
        *(rho for _, rho, _ in amounts),
        *(delta for _, _, delta in amounts),
        queries_left=left.loss // default,
    )


def _history(engine: Engine, user: str) -> list[HistoryRow]:
    accountant = engine.accountant
    return [
        HistoryRow(
            datetime.fromisoformat(entry.time),
            "paid" if entry.user_price.loss or entry.user_price.delta else "replayed",
            _epsilon(entry.user_price, accountant),
            _rho(entry.user_price, accountant),
            float(entry.user_price.delta_value),
            "00000",
            None,
            entry.sql,
        )
        for entry in engine.ledger.history(user, SHOWN)
    ]


def _epsilon(price: Price, accountant: Accountant) -> float:
    return float(accountant.epsilon_of(price.loss))


def _rho(price: Price, accountant: Accountant) -> float | None:
    return float(price.loss_value) if accountant.policy.accounting == "zcdp" else None
