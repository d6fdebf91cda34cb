"""Whom a total protects, and since when, as an owner reads it and as programs do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpsql.ledger.books import Books
    from dpsql.ledger.protections import Since
    from dpsql.policy.protection import Subject
    from dpsql.privacy.accounting import Accountant, Price


@dataclass(frozen=True, slots=True)
class Protected:
    """What the ledger says: the units of each table, since when they count, and what was spent before."""

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
        yield f"  they were given for others ({printable(others)})"
    else:
        yield "  versions of dpsql before this one did not record whom they were given for"


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
