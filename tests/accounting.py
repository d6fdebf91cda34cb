"""`python -m tests.accounting`: how many counts of a given 95 % error fit into (epsilon 1, delta 1e-6), by accounting.

By the exact discrete laws and the prices that the ledger charges. The table is in tests/accuracy/README.md.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.policy.model import Accounting, PrivacyPolicy
from dpsql.privacy.accounting import LOSS_UNIT, Accountant, Price, admits, pure_price
from dpsql.privacy.noise_laws import Noise, gaussian, laplace, margin
from dpsql.release import least

EPSILON, DELTA = Fraction(1), Fraction(1, 10**6)
MARGINS = (10, 30, 100, 300, 1_000)
ONE = Fraction(1)

HEAD = (
    "| counts within | Laplace, `basic` | Gaussian, zCDP by the textbook | `zcdp` | `zcdp`, 1 % of delta for keys"
    " | `zcdp`, `pure = true` |",
    "| ---: | ---: | ---: | ---: | ---: | ---: |",
)


def accountant(accounting: Accounting, key_share: Fraction) -> Accountant:
    policy = PrivacyPolicy(EPSILON, DELTA, accounting, EPSILON, None, DELTA * key_share, EPSILON, accounting == "zcdp")
    return Accountant(policy)


def textbook_grains() -> int:
    """The largest rho with rho + 2 sqrt(rho ln(1 / delta)) <= epsilon, all of delta spent on it."""
    log = math.log(1 / DELTA)
    return math.floor((math.sqrt(log + EPSILON) - math.sqrt(log)) ** 2 / LOSS_UNIT)


def noise(accounting: Accounting, loss: int) -> Noise:
    price = loss * LOSS_UNIT
    return laplace(ONE, price) if accounting == "basic" else gaussian(ONE, price)


def least_price(accounting: Accounting, total: int, wanted: int) -> int | None:
    """The least price of a count within the margin; None where all of the total is not enough."""
    if margin(noise(accounting, total)) > wanted:
        return None
    return least(lambda loss: loss > 0 and margin(noise(accounting, loss)) <= wanted, total)


def how_many(accounting: Accounting, total: int, wanted: int) -> int:
    """How often the least price of a count within the margin fits into the total."""
    price = least_price(accounting, total, wanted)
    return 0 if price is None else total // price


def how_many_of_either(wanted: int) -> int:
    """The same where a ledger admits what fits one side or the other: of all mixtures of both kinds, the best.

    Pure answers come first, as many as it takes; whatever then fits beside them follows.
    """
    books = accountant("zcdp", Fraction(1, 2))
    assert books.total.pure is not None
    prices = [least_price("basic", books.total.pure, wanted), least_price("zcdp", books.total.loss, wanted)]
    pure = None if prices[0] is None else pure_price([prices[0]])
    other = None if prices[1] is None else Price(prices[1])
    best, spent, number = 0, Price(), 0
    while True:
        left = books.total.loss - spent.loss
        best = max(best, number + (left // other.loss if other is not None and left > 0 else 0))
        if pure is None or not admits(spent, pure, books.total):
            return best
        spent, number = spent + pure, number + 1


def table() -> list[str]:
    totals: list[tuple[Accounting, int]] = [
        ("basic", accountant("basic", ONE).total.loss),
        ("zcdp", textbook_grains()),
        ("zcdp", accountant("zcdp", Fraction(1, 2)).total.loss),
        ("zcdp", accountant("zcdp", Fraction(1, 100)).total.loss),
    ]
    rows = []
    for wanted in MARGINS:
        fits = [f"{how_many(accounting, total, wanted):,}" for accounting, total in totals]
        rows.append(f"| ±{wanted:,} | {' | '.join([*fits, f'{how_many_of_either(wanted):,}'])} |")
    return [*HEAD, *rows]


if __name__ == "__main__":
    print("\n".join(table()))
