"""`dpsql budget`: the budget spent and left, of the dataset and of each user."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.amounts import protected_document, protected_lines, read_protected
from dpsql.cli.report import refusals

if TYPE_CHECKING:
    from dpsql.policy.model import Policy
    from dpsql.privacy.accounting import Accountant, Price
    from dpsql.privacy.group_privacy import GroupLoss

MARGIN = 100  # margin of the counts in which the rest of the budget is also expressed
BAR_WIDTH = 30


@dataclass(frozen=True, slots=True)
class Account:
    """What the dataset (`user` None) or a user has spent and may still spend; no limit: a removed user."""

    user: str | None
    spent: Price
    limit: Price | None
    left: Price
    mixed: bool = False  # whether some answers, of this account or of the dataset, were not pure

    @property
    def label(self) -> str:
        return "dataset" if self.user is None else f"user {self.user}"

    @property
    def share(self) -> Fraction | None:
        """The share of the limit that is spent; more than 1 if the owner has lowered the limit since.

        If pure answers exceed the limit in rho, the share of the pure limit, which is the one in force.
        """
        if self.limit is None:
            return None
        if not self.spent.fits_beside(self.limit) and self.limit.pure and self.spent.pure is not None:
            return Fraction(self.spent.pure, self.limit.pure)
        return Fraction(self.spent.loss, self.limit.loss)


@dataclass(frozen=True, slots=True)
class Prices:
    """What typical queries cost, in grains of loss; None if the policy does not allow them."""

    count: int | None
    default: int

    def affordable(self, left: Price) -> tuple[int, int]:
        return 0 if self.count is None else left.loss // self.count, left.loss // self.default


@click.command()
@click.option("--user", metavar="NAME", help="One user only.")
@click.option(
    "--group", "people", metavar="K", type=click.IntRange(1, 1_000), help="Show the guarantee for K people together."
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def budget(user: str | None, people: int | None, format_: str, policy: str) -> None:
    """Show the budget spent and left, of the dataset and of each user.

    Limits are those of the policy file as it is now. The rest is also expressed in queries: counts of a table with one
    row per person, ±100 with 95 % confidence, and queries at the default price. Changes nothing.

    The total is a guarantee for each single person. For people who belong together, such as a household, the guarantee
    is weaker: --group shows it, for the total and for what is spent.

    \b
    Example:
      dpsql budget
      dpsql budget --user alice --format json
      dpsql budget --group 5
    """
    from dpsql.ledger.opening import read_books
    from dpsql.policy.edit import unknown_user
    from dpsql.policy.load import load
    from dpsql.privacy.accounting import Accountant, Price

    with refusals():
        declared = load(Path(policy))
        accountant = Accountant(declared.privacy)
        with read_books(declared) as books:
            spent = {} if books is None else books.spent()
            protected = None if books is None else read_protected(books)
            paid = [] if books is None else books.prices()
        accounts = [account for account in _accounts(declared, accountant, spent) if user in (None, account.user)]
        if not accounts:
            assert user is not None
            raise unknown_user(user)
        prices = _prices(accountant)
        group = None if people is None else _group(people, accountant, spent.get(None, Price()), paid)
    if format_ == "json":
        from dpsql.cli.amounts import group_document

        document = _document(accounts, prices, accountant)
        if protected is not None:
            document["protected"] = protected_document(protected, accountant)
        if group is not None:
            document["group"] = {
                "people": group.people,
                "total": group_document(group.total),
                "spent": group_document(group.spent),
            }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for line in _lines(accounts, prices, accountant):
            click.echo(line)
        if protected is not None:
            click.echo("\n" + "\n".join(protected_lines(protected, accountant)))
        if group is not None:
            click.echo("\n" + "\n".join(_group_lines(group)))
        if accountant.policy.accounting == "zcdp":
            click.echo("\nepsilon does not add up under zcdp accounting; rho does, and the bars show it")


def _accounts(policy: Policy, accountant: Accountant, spent: Mapping[str | None, Price]) -> Iterator[Account]:
    from dpsql.privacy.accounting import Price, left_of

    nothing = Price()
    paid_by_all = spent.get(None, nothing)
    mixed = paid_by_all.pure is None
    yield Account(None, paid_by_all, accountant.total, left_of((paid_by_all, accountant.total)), mixed)
    for user in policy.users.values():
        paid, limit = spent.get(user.name, nothing), accountant.allowance(user.epsilon)
        left = left_of((paid_by_all, accountant.total), (paid, limit))
        yield Account(user.name, paid, limit, left, mixed or paid.pure is None)
    for name in sorted(name for name in spent if name is not None and name not in policy.users):
        yield Account(name, spent[name], None, nothing)


# --- group privacy ---


@dataclass(frozen=True, slots=True)
class Group:
    """The guarantee of all answers together for a group of people; None: no bound."""

    people: int
    total: GroupLoss | None
    spent: GroupLoss | None


def _group(people: int, accountant: Accountant, spent: Price, paid: list[tuple[Price, int]]) -> Group:
    from dpsql.privacy.group_privacy import spent_for_group, total_for_group

    dearest = accountant.price_of(accountant.policy.max_query_epsilon)
    largest = max([dearest, *(price.loss for price, _ in paid if price.delta)])
    return Group(
        people,
        total_for_group(accountant, people, spent=spent, largest=largest),
        spent_for_group(accountant, people, paid),
    )


def _group_lines(group: Group) -> Iterator[str]:
    from dpsql.cli.amounts import group_text

    whom = "1 person" if group.people == 1 else f"{group.people:,} people who belong together, such as a household"
    yield f"for {whom}"
    yield f"  total  {group_text(group.total)}"
    yield f"  spent  {group_text(group.spent)}"
    if group.total is None:
        yield "  this many people who share a value in a column without declared keys may be certain to reveal it"
        return
    whom = "this one" if group.people == 1 else "all of them"
    yield f"  no outcome of all answers is more than e^epsilon times as likely with {whom} as without, or the other way"
    yield "  round, but for a chance of delta"


# --- prices ---


def _prices(accountant: Accountant) -> Prices:
    count = _price_of_count(accountant)
    sold = count <= accountant.price_of(accountant.policy.max_query_epsilon)
    return Prices(count if sold else None, accountant.price_of(accountant.policy.query_epsilon))


def _price_of_count(accountant: Accountant) -> int:
    """The least loss, in grains, at which a count with sensitivity one has the margin."""
    from dpsql.privacy.accounting import LOSS_UNIT
    from dpsql.privacy.noise_laws import gaussian, laplace, margin

    noise = laplace if accountant.policy.accounting == "basic" else gaussian
    too_cheap, enough = 0, int(1 / LOSS_UNIT)  # a loss of 1 gives a margin of a few
    while enough - too_cheap > enough // 10**6:  # six digits are enough to count queries
        middle = (too_cheap + enough) // 2
        if margin(noise(Fraction(1), middle * LOSS_UNIT)) <= MARGIN:
            enough = middle
        else:
            too_cheap = middle
    return enough


# --- as text ---


def _lines(accounts: list[Account], prices: Prices, accountant: Accountant) -> Iterator[str]:
    from dpsql.cli.amounts import amount_text
    from dpsql.cli.rows import printable

    labels = [printable(account.label) for account in accounts]
    width = max(map(len, labels))
    for position, (label, account) in enumerate(zip(labels, accounts, strict=True)):
        if position:
            yield ""
        if account.share is None:
            yield f"{label}: no longer in the policy"
            yield f"  spent  {amount_text(account.spent, accountant)}"
            continue
        yield f"{label.ljust(width)}  {_bar(account.share)}  {_percent(account.share)} spent"
        yield f"  spent  {amount_text(account.spent, accountant)}"
        yield f"  left   {amount_text(account.left, accountant)}"
        if accountant.sells_pure and account.left.pure is None and account.left.loss:
            why = "not all answers were pure" if account.mixed else "their epsilon is spent"
            yield f"  pure   answers are charged like others, because {why}"
        yield f"  enough {_enough(account, prices, accountant)}"


def _enough(account: Account, prices: Prices, accountant: Accountant) -> str:
    counts, queries = prices.affordable(account.left)
    default = f"at the default price of epsilon {float(accountant.policy.query_epsilon):.4g}"
    pure = (account.left.pure or 0) // accountant.pure_of(accountant.policy.query_epsilon)
    if not queries and not counts:
        return f"for {pure:,} pure queries {default}" if pure else f"for no further query {default}"
    text = f"for {counts:,} counts ±{MARGIN} (95 %), or {queries:,} queries {default}"
    return f"{text}, or {pure:,} pure ones" if pure else text


def _percent(share: Fraction) -> str:
    """Rounded down, so that 100 % means that everything is spent."""
    return "less than 1 %" if 0 < share < Fraction(1, 100) else f"{int(share * 100):,} %"


def _bar(share: Fraction) -> str:
    from dpsql.cli.rows import bar

    part = float(min(share, Fraction(1)))
    if _draws_blocks():
        return bar(part, BAR_WIDTH).ljust(BAR_WIDTH, "░")
    return "#" * int(part * BAR_WIDTH) + "." * (BAR_WIDTH - int(part * BAR_WIDTH))


def _draws_blocks() -> bool:
    if not sys.stdout.isatty():
        return False
    try:
        "█░".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


# --- as JSON ---


def _document(accounts: list[Account], prices: Prices, accountant: Accountant) -> dict[str, object]:
    from dpsql.cli.amounts import amount_document

    def described(account: Account) -> dict[str, object]:
        counts, queries = prices.affordable(account.left)
        return {
            **({} if account.user is None else {"user": account.user}),
            "limit": None if account.limit is None else amount_document(account.limit, accountant),
            "spent": amount_document(account.spent, accountant),
            "left": amount_document(account.left, accountant),
            f"counts_within_{MARGIN}": counts,
            "queries_at_default_price": queries,
        }

    dataset = [described(account) for account in accounts if account.user is None]
    users = [described(account) for account in accounts if account.user is not None]
    return {"accounting": accountant.policy.accounting, **({"dataset": dataset[0]} if dataset else {}), "users": users}
