"""Prices and budgets as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.group_privacy import GroupLoss

if TYPE_CHECKING:
    from dpsql.ledger.protections import Since
    from dpsql.ledger.reading import Books
    from dpsql.policy.protection import Subject
    from dpsql.privacy.accounting import Accountant, Price


def amount_text(price: Price, accountant: Accountant) -> str:
    """Epsilon, the additive quantity (rho) if it is another one, and the delta of unknown keys."""
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


# ------------------------------------------------------------
# Whom a total protects, and since when, as text and as JSON.


@dataclass(frozen=True, slots=True)
class Protected:
    """What the ledger records: the units of each table, since when they count, and what was spent before."""

    units: dict[Subject, str]
    since: Since | None
    spent_before: Price


def read_protected(books: Books) -> Protected:
    from dpsql.ledger.protections import since

    recorded = books.protections()
    last = since(recorded)
    return Protected(
        {each.subject: each.units for each in recorded}, last, books.spent_before(0 if last is None else last.charges)
    )


def protected_lines(protected: Protected, accountant: Accountant) -> Iterator[str]:
    from dpsql.cli.amounts import amount_text
    from dpsql.cli.rows import printable
    from dpsql.policy.protection import subject_text, units_text

    if not protected.units:
        yield "protected: not recorded yet; the next query records the units of the policy"
        return
    last = protected.since
    yield f"protected since {'the ledger began' if last is None else _moment(last.time)}:"
    for subject, units in sorted(protected.units.items()):
        if subject:
            yield f"  {printable('.'.join(subject))}: {printable(units_text(units))}"
    if last is None:
        return
    yield f"  before, {amount_text(protected.spent_before, accountant)} was spent on answers that may not protect them;"
    if last.changed:
        others = "; ".join(
            f"{subject_text(each.subject)}: {units_text(each.before or '[]')}" for each in last.changed if each.before
        )
        yield f"  they protect other units ({printable(others)})"
    else:
        yield "  earlier versions of dpsql did not record whom they protect"


def protected_document(protected: Protected, accountant: Accountant) -> dict[str, object]:
    from dpsql.cli.amounts import amount_document
    from dpsql.policy.protection import units_text

    last = protected.since
    return {
        "tables": {".".join(subject): units_text(units) for subject, units in protected.units.items() if subject},
        "since": None if last is None else last.time,
        "charges_before": 0 if last is None else last.charges,
        "spent_before": amount_document(protected.spent_before, accountant),
    }


def _moment(time: str) -> str:
    return f"{time[:10]} {time[11:19]} UTC"
