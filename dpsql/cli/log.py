"""`dpsql log`: all queries, their users, and their price or the reason of refusal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals

if TYPE_CHECKING:
    from dpsql.ledger import Entry, Refusal
    from dpsql.ledger.protections import Recorded
    from dpsql.ledger.reading import Books, LimitChange, Selection
    from dpsql.privacy.accounting import Accountant, Price

    Row = Entry | Refusal | LimitChange | Recorded

_MOST_SHOWN = 200  # characters of a query shown at a terminal


def _start(text: str) -> datetime:
    """A time, or the beginning of a day; in UTC unless it has an offset."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a day like 2030-01-31 nor a time like 2030-01-31T12:00"
        ) from None


def _end(text: str) -> datetime:
    """A time, or the end of a day."""
    moment = _start(text)
    with suppress(ValueError, OverflowError):
        date.fromisoformat(text)  # fails if there is a time too
        return moment + timedelta(days=1)
    return moment


@click.command()
@click.option("--user", metavar="NAME", help="One user only.")
@click.option("--since", metavar="TIME", type=_start, help="From this day or time on (UTC).")
@click.option("--until", metavar="TIME", type=_end, help="To the end of this day, or to this time (UTC).")
@click.option("--refused", is_flag=True, help="Refusals only.")
@click.option("--limits", is_flag=True, help="Show changes of the total and of allowances instead.")
@click.option("--units", is_flag=True, help="Show changes of whom the total protects instead.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Show the newest N only.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def log(
    user: str | None,
    since: datetime | None,
    until: datetime | None,
    refused: bool,
    limits: bool,
    units: bool,
    limit: int | None,
    format_: str,
    policy: str,
) -> None:
    """Show every charge and every refusal, the newest last.

    Free replays and EXPLAIN are not recorded. Long refused queries are truncated, and at most 1,000 refusals per user
    and day are kept. With --format json, each line is one object. Changes nothing.

    \b
    Example:
      dpsql log --limit 20
      dpsql log --user alice --since 2030-01-01 --refused
      dpsql log --limits
      dpsql log --units
    """
    from dpsql.ledger.opening import read_books
    from dpsql.ledger.reading import Selection
    from dpsql.policy.edit import unknown_user
    from dpsql.policy.load import load
    from dpsql.privacy.accounting import Accountant

    if refused + limits + units > 1:
        raise click.UsageError("--refused, --limits and --units exclude each other")
    if units and user is not None:
        raise click.UsageError("--units applies to the dataset, not to a user")
    with refusals():
        declared = load(Path(policy))
        accountant = Accountant(declared.privacy)
        with read_books(declared) as books:
            rows = [] if books is None else _rows(books, Selection(user, since, until, limit), refused, limits, units)
            known = {None, *declared.users, *(() if books is None else books.names())}
        if user not in known:
            assert user is not None
            raise unknown_user(user)
    if format_ == "json":
        for row in rows:
            click.echo(json.dumps(_document(row, accountant), ensure_ascii=False))
    else:
        for line in _lines(rows, accountant):
            click.echo(line)
    if not rows:
        click.echo("nothing is recorded yet" if books is None else "nothing recorded matches", err=True)


def _rows(books: Books, selection: Selection, refused: bool, limits: bool, units: bool) -> Sequence[Row]:
    if units:
        return books.protections(selection)
    return books.limit_changes(selection) if limits else books.log(selection, refused=refused)


# --- as text ---


def _lines(rows: Sequence[Row], accountant: Accountant) -> Iterator[str]:
    """Aligned columns, then the query; below a refused one the reason."""
    if not rows:
        return
    from dpsql.cli.rows import aligned

    names, numeric = _columns(rows)
    cells = [_cells(row, names, accountant) for row in rows]
    starts = aligned(names[:-1], [cell[:-1] for cell in cells], numeric=numeric[:-1])
    ends = [[names[-1]], ["-" * len(names[-1])], *(cell[-1].split("\n") for cell in cells)]
    indent = len(starts[1]) + 2  # the rule is as wide as the widest line
    for start, texts in zip(starts, ends, strict=True):
        for number, text in enumerate(texts):
            yield ((start if number == 0 else "").ljust(indent) + text).rstrip()


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[bool]]:
    """The column names, and which columns are numbers."""
    from dpsql.ledger import Entry
    from dpsql.ledger.protections import Recorded
    from dpsql.ledger.reading import LimitChange

    if isinstance(rows[0], Recorded):
        return ["time (UTC)", "table", "from", "to"], [False] * 4
    if isinstance(rows[0], LimitChange):
        return ["time (UTC)", "account", "from", "to"], [False] * 4
    has_delta = any(isinstance(row, Entry) and row.user_price.delta for row in rows)
    has_pure = any(isinstance(row, Entry) and row.user_price.pure for row in rows)
    price = ["epsilon", *(["delta"] if has_delta else []), *(["as pure"] if has_pure else [])]
    names = ["time (UTC)", "user", "outcome", *price, "query"]
    return names, [name in price for name in names]


def _cells(row: Row, names: Sequence[str], accountant: Accountant) -> list[str]:
    from dpsql.cli.amounts import amount_document
    from dpsql.cli.rows import printable
    from dpsql.ledger import Entry, Refusal
    from dpsql.ledger.protections import Recorded
    from dpsql.policy.protection import subject_text, units_text

    time = row.time[: len("2000-01-01T00:00:00")].replace("T", " ")
    if isinstance(row, Recorded):
        before = "not recorded" if row.before is None else units_text(row.before)
        return [time, *map(printable, (subject_text(row.subject), before, units_text(row.units)))]
    if not isinstance(row, Entry | Refusal):
        account = "dataset" if row.user is None else f"user {row.user}"
        return [time, account, _limit_text(row.old, accountant), _limit_text(row.new, accountant)]
    if isinstance(row, Refusal):
        prices = [""] * (len(names) - 4)
        return [time, row.user, f"refused {row.sqlstate}", *prices, f"{_one_line(row.sql)}\n{_one_line(row.message)}"]
    price = amount_document(row.user_price, accountant)
    if row.user_price.pure_value:
        price["as pure"] = float(row.user_price.pure_value)
    prices = [f"{price[name]:.4g}" if name in price else "" for name in names[3:-1]]
    return [time, row.user, _outcome(row), *prices, _one_line(row.sql)]


def _outcome(entry: Entry) -> str:
    """A replay of an answer bought by another user is charged to the allowance only, not to the dataset."""
    return "paid" if entry.dataset_price.loss or entry.dataset_price.delta else "replayed"


def _limit_text(limit: Price | None, accountant: Accountant) -> str:
    from dpsql.cli.amounts import amount_text
    from dpsql.ledger.accounts import UNLIMITED

    if limit is None:
        return "not in the policy"
    return "no limit" if limit == UNLIMITED else amount_text(limit, accountant)


def _one_line(text: str) -> str:
    """A query or a message on one line, truncated at a terminal."""
    from dpsql.cli.rows import printable

    line = printable(" ".join(text.split()))
    return f"{line[: _MOST_SHOWN - 1]}…" if sys.stdout.isatty() and len(line) > _MOST_SHOWN else line


# --- as JSON ---


def _document(row: Row, accountant: Accountant) -> dict[str, object]:
    from dpsql.cli.amounts import amount_document
    from dpsql.ledger import Entry, Refusal
    from dpsql.ledger.protections import Recorded
    from dpsql.policy.protection import units_text

    if isinstance(row, Recorded):
        return {
            "time": row.time,
            "charges_before": row.charges,
            "table": ".".join(row.subject) or None,
            "from": None if row.before is None else units_text(row.before),
            "to": units_text(row.units),
        }
    if isinstance(row, Refusal):
        return {
            "time": row.time,
            "user": row.user,
            "outcome": "refused",
            "sqlstate": row.sqlstate,
            "message": row.message,
            "sql": row.sql,
        }
    if isinstance(row, Entry):
        return {
            "time": row.time,
            "user": row.user,
            "outcome": _outcome(row),
            "sqlstate": "00000",
            "price": amount_document(row.user_price, accountant),
            "dataset_price": amount_document(row.dataset_price, accountant),
            "sql": row.sql,
        }
    return {
        "time": row.time,
        "account": "dataset" if row.user is None else "user",
        **({} if row.user is None else {"user": row.user}),
        "old": None if row.old is None else amount_document(row.old, accountant),
        "new": None if row.new is None else amount_document(row.new, accountant),
    }
