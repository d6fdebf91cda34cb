"""`dpsql check`: validates a policy against its database, and shows what analysts can query."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.amounts import Protected, protected_lines, read_protected
from dpsql.cli.report import refusals
from dpsql.cli.rows import aligned, printable
from dpsql.errors import Error

if TYPE_CHECKING:
    from dpsql.answering.answer_store import StillFound
    from dpsql.answering.open_dataset import Checked
    from dpsql.policy.model import Bound, Column, Table
    from dpsql.release import Release

_HEADINGS = ("column", "type", "clamped to", "SUM", "GROUP BY", "COUNT per key")
_RIGHT = (False, False, False, True, False, True)

Reasons = dict[tuple[str, str], list[str]]  # (what cannot be queried, why) -> columns


@click.command()
@click.argument("policy", default="dpsql.toml")
def check(policy: str) -> None:
    """Check a policy file against its database.

    Reports every problem at once, with its line and what to write instead. If there is none, shows what analysts can
    query of each column, and how noisy the answers will be. Shows no data and spends nothing.

    \b
    Example:
      dpsql check
      dpsql check clinic/dpsql.toml
    """
    from dpsql.answering import open_dataset as dataset

    with refusals():
        checked = dataset.check(Path(policy))
        protected, stored = _protected(checked)
    tables = list({table.name: table for table in checked.catalog.tables.values()}.values())
    private = [table for table in tables if table.is_private]
    public = [table for table in tables if not table.is_private]
    click.echo(f"{policy}: ok, {_counted(private, 'private')}, {_counted(public, 'public')}")
    if (prepared := checked.policy.prepared) is not None:
        click.echo(
            f'prepared: "{printable(prepared.copy)}", version {prepared.version}, is read instead of the database'
        )
    for table in private:
        click.echo("\n" + "\n".join(_abilities(table, checked)))
    if public:
        click.echo("\npublic, every row is visible:")
        for table in public:
            click.echo(f"  {printable(table.name)}: {', '.join(map(printable, table.columns))}")
    if private:
        click.echo("\n" + _what_margins_mean(checked))
        click.echo(_what_groups_get(checked))
    if checked.warnings:
        click.echo("\nwarnings:")
        for warning in checked.warnings:
            click.echo(f"  {printable(warning)}")
    if protected is not None:
        click.echo("\n" + "\n".join(protected_lines(protected, checked.accountant)))
    if stored is not None and (stored.found or stored.lost or stored.older):
        click.echo("\n" + _what_is_stored(stored))
    _tell_marks(policy)


def _protected(checked: Checked) -> tuple[Protected | None, StillFound | None]:
    """What the ledger protects, if it can be read; raises PolicyError if it protects other units than the policy."""
    from dpsql.answering.answer_store import still_found
    from dpsql.errors import OperationalError
    from dpsql.ledger.opening import ledger_exists, ledger_location, read_books
    from dpsql.ledger.protections import require_declared

    try:
        if not ledger_exists(checked.policy):
            return None, None
        with read_books(checked.policy) as books:
            if books is None:
                return None, None
            found = read_protected(books)
            stored = still_found(books.answers(), checked.catalog, checked.policy.limits.replay_days)
    except OperationalError as error:
        click.echo(f"warning: cannot read what the ledger protects: {error.message}", err=True)
        return None, None
    require_declared(found.units, checked.catalog.protection, ledger_location(checked.policy))
    return found, stored


def _what_is_stored(stored: StillFound) -> str:
    """How many stored answers are still found under this policy, and which declarations invalidate others."""
    everything = stored.found + stored.lost + stored.older
    text = f"{_plural(everything, 'stored answer')}: {stored.found:,} would be found again under this policy"
    if stored.lost:
        names = ["max_cells" if not source else ".".join(source) for source in stored.changed]
        text += f"; {stored.lost:,} would be bought again, because it changes {', '.join(map(printable, names))}"
    if stored.older:
        text += f"; {stored.older:,} were stored by an older version, and are no longer found"
    return text


def _counted(tables: list[Table], sort: str) -> str:
    columns = sum(len(table.columns) for table in tables)
    return f"{_plural(len(tables), f'{sort} table')} with {_plural(columns, 'column')}"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _what_margins_mean(checked: Checked) -> str:
    accountant, privacy = checked.accountant, checked.policy.privacy
    answers = accountant.total.loss // accountant.price_of(privacy.query_epsilon)
    return (
        f"± is the 95 % margin of the noise at the default price of epsilon {float(privacy.query_epsilon):g};"
        f" the total of epsilon {float(privacy.epsilon):g} pays for {_plural(answers, 'such answer')}"
    )


def _what_groups_get(checked: Checked) -> str:
    """The total for groups, as shown by `dpsql budget --group` before anything is spent."""
    from dpsql.cli.amounts import group_text
    from dpsql.privacy.group_privacy import total_for_group

    accountant = checked.accountant
    largest = accountant.price_of(accountant.policy.max_query_epsilon)
    two, five = (group_text(total_for_group(accountant, people, largest=largest)) for people in (2, 5))
    return f"the total protects each single person; for a group of 2: {two}; of 5: {five} (dpsql budget --group)"


def _tell_marks(policy: str) -> None:
    from dpsql.policy.draft import marks

    left = marks(Path(policy).read_text(encoding="utf-8"))
    if left:
        click.echo(f"\nstill to decide: {_plural(len(left), 'line')} marked TODO")
        for number, line in left:
            click.echo(f"  {policy}:{number}: {printable(' '.join(line.split()))}")


# --- one private table ---


def _abilities(table: Table, checked: Checked) -> list[str]:
    """The unit, the margin of a count, and a line for each column."""
    name = ".".join(map(_quoted, table.name.split(".")))
    count, _ = _attempt(f"SELECT COUNT(*) FROM {name}", checked)
    lines = [f"{printable(table.name)}: {_unit_text(table)}; COUNT(*) {_margin(count)}"]
    if table.columns:
        reasons: Reasons = {}
        rows = [_ability(column, name, checked, reasons) for column in table.columns.values()]
        lines += [f"  {line}" for line in aligned(_HEADINGS, rows, numeric=_RIGHT)]
        for (ability, reason), columns in reasons.items():
            lines.append(f"  no {ability} {', '.join(map(printable, columns))}: {printable(reason)}")
    if table.unowned_text is not None:
        lines.append(f"  note: {printable(table.unowned_text)}")
    return lines


def _unit_text(table: Table) -> str:
    most = table.max_rows_per_unit
    rows = "one row of each counts" if most == 1 else f"up to {most:,} rows of each count"
    enforced = "enforces one row" if table.owner_unique else "enforces no limit"
    return f'unit "{printable(table.unit_text)}", {rows} (the database {enforced})'


def _ability(column: Column, table: str, checked: Checked, reasons: Reasons) -> list[str]:
    """What can be queried of a column; `reasons` collects what cannot, and why."""
    name = _quoted(column.name)
    total, why_no_sum = _attempt(f"SELECT SUM({name}) FROM {table}", checked)
    grouped, why_no_keys = _attempt(f"SELECT {name}, COUNT(*) FROM {table} GROUP BY {name}", checked)
    if not column.type.is_numeric:
        why_no_sum = "only numbers can be summed"
    for ability, why in (("SUM of", why_no_sum), ("GROUP BY", why_no_keys)):
        if why is not None:
            reasons.setdefault((ability, why), []).append(column.name)
    return [
        column.name,
        str(column.type),
        _range_text(column),
        _margin(total),
        _keys_text(grouped),
        _margin(grouped),
    ]


def _attempt(sql: str, checked: Checked) -> tuple[Release | None, str | None]:
    """The release of a query; or None, and why it is refused."""
    try:
        return checked.release(sql), None
    except Error as error:
        return None, error.message if error.hint is None else f"{error.message}. {error.hint}"


def _margin(release: Release | None) -> str:
    margin = None if release is None else release.outputs[-1].margin
    if margin is None:
        return "no"
    # From ten on, decimal places carry no information.
    return f"±{_number_text(margin if margin < 10 else Fraction(math.ceil(margin)))}"


def _number_text(number: Fraction) -> str:
    from dpsql.release.explain import number_text

    return number_text(number)


def _range_text(column: Column) -> str:
    if column.lower is not None and column.upper is not None:
        return f"{_bound_text(column.lower)} to {_bound_text(column.upper)}"
    if column.type.is_numeric and column.values is None:
        return "no min and max"
    return ""


def _bound_text(bound: Bound) -> str:
    if isinstance(bound, Fraction):
        return _number_text(bound)
    # Dates that bound a timestamp mean the first and the last moment of their day.
    return str(bound).removesuffix(" 00:00:00").removesuffix(" 23:59:59.999999")


def _keys_text(release: Release | None) -> str:
    if release is None:
        return "no"
    (measurement,) = release.measurements
    if measurement.cells is not None:
        return _plural(len(measurement.cells), "declared key")
    few, many = measurement.units_to_pass()
    return f"keys of about {few:,}{f' to {many:,}' if many > few else ''} units or more"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
