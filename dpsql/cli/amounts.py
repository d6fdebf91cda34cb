"""Prices and budgets as an owner reads them, and as programs do."""

from __future__ import annotations

from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.groups import GroupLoss


def amount_text(price: Price, accountant: Accountant) -> str:
    """Epsilon as the accountant shows it, what adds up beside it, and the delta of unknown keys."""
    if price == Price():
        return "nothing"
    as_pure = f"epsilon {float(price.pure_value):.4g} as pure" if price.pure_value else None
    if as_pure and not price.loss:
        return f"{as_pure}, and nothing else"
    text = f"epsilon {float(accountant.epsilon_of(price.loss)):.4g}"
    if price.loss and accountant.policy.accounting == "zcdp":
        text += f" (rho {float(price.loss_value):.4g})"
    if price.delta:
        text += f", delta {float(price.delta_value):.4g} for keys"
    return f"{text}, or {as_pure}" if as_pure else text


def group_text(loss: GroupLoss | None) -> str:
    """Epsilon and delta together: neither means anything without the other."""
    if loss is None:
        return "no bound"
    return f"epsilon {float(loss.epsilon):.4g}, delta {float(loss.delta):.4g}"


def group_document(loss: GroupLoss | None) -> dict[str, float] | None:
    return None if loss is None else {"epsilon": float(loss.epsilon), "delta": float(loss.delta)}


def amount_document(price: Price, accountant: Accountant) -> dict[str, float]:
    document = {"epsilon": float(accountant.epsilon_of(price.loss))}
    if accountant.policy.accounting == "zcdp":
        document["rho"] = float(price.loss_value)
    document["delta"] = float(price.delta_value)
    if price.pure_value is not None and accountant.sells_pure:
        document["pure_epsilon"] = float(price.pure_value)
    return document
