"""`dpsql check`: is the policy right, does it fit the database, and what can analysts then ask?"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals
from dpsql.cli.rows import aligned, printable
from dpsql.errors import Error

if TYPE_CHECKING:
    from dpsql.dataset import Checked
    from dpsql.policy.model import Bound, Column, Table
    from dpsql.release import Release

_HEADINGS = ("column", "type", "clamped to", "SUM", "GROUP BY", "COUNT per key")
_RIGHT = (False, False, False, True, False, True)


@click.command()
@click.argument("policy", default="dpsql.toml")
def check(policy: str) -> None:
    """Check a policy file against its database.

    Reports every problem at once, with its line and what to write instead. If there is none, shows what analysts can
    ask of each column, and how noisy the answers will be. Shows no data and spends nothing.

    \b
    Example:
      dpsql check
      dpsql check clinic/dpsql.toml
    """
    from dpsql import dataset

    with refusals():
        checked = dataset.check(Path(policy))
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
        click.echo("\npublic, every row can be seen:")
        for table in public:
            click.echo(f"  {printable(table.name)}: {', '.join(map(printable, table.columns))}")
    if private:
        click.echo("\n" + _what_margins_mean(checked))
    if checked.warnings:
        click.echo("\nwarnings:")
        for warning in checked.warnings:
            click.echo(f"  {printable(warning)}")
    _tell_marks(policy)


def _counted(tables: list[Table], sort: str) -> str:
    columns = sum(len(table.columns) for table in tables)
    return f"{_plural(len(tables), f'{sort} table')} with {_plural(columns, 'column')}"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _what_margins_mean(checked: Checked) -> str:
    accountant, privacy = checked.accountant, checked.policy.privacy
    answers = accountant.total.loss // accountant.price_of(privacy.query_epsilon)
    return (
        f"± is the 95 % margin at the default price of epsilon {float(privacy.query_epsilon):g};"
        f" the total of epsilon {float(privacy.epsilon):g} pays for {_plural(answers, 'such answer')}"
    )


def _tell_marks(policy: str) -> None:
    from dpsql.policy.draft import marks

    left = marks(Path(policy).read_text(encoding="utf-8"))
    if left:
        click.echo(f"\nleft for you to decide: {_plural(len(left), 'line')} marked TODO")
        for number, line in left:
            click.echo(f"  {policy}:{number}: {printable(' '.join(line.split()))}")


# --- one private table ---


def _abilities(table: Table, checked: Checked) -> list[str]:
    """Who is protected, how noisy a count is, and a line for each column."""
    name = ".".join(map(_quoted, table.name.split(".")))
    count = _release(f"SELECT COUNT(*) FROM {name}", checked)
    lines = [f"{printable(table.name)}: {_unit_text(table)}; COUNT(*) {_margin(count)}"]
    if table.columns:
        rows = [_ability(column, name, checked) for column in table.columns.values()]
        lines += [f"  {line}" for line in aligned(_HEADINGS, rows, numeric=_RIGHT)]
    return lines


def _unit_text(table: Table) -> str:
    most = table.max_rows_per_unit
    rows = "one row of each counts" if most == 1 else f"up to {most:,} rows of each count"
    enforced = "enforces one row" if table.owner_unique else "enforces no limit"
    return f'unit "{printable(table.unit_text)}", {rows} (the database {enforced})'


def _ability(column: Column, table: str, checked: Checked) -> list[str]:
    name = _quoted(column.name)
    total = _release(f"SELECT SUM({name}) FROM {table}", checked)
    grouped = _release(f"SELECT {name}, COUNT(*) FROM {table} GROUP BY {name}", checked)
    return [
        column.name,
        str(column.type),
        _range_text(column),
        _margin(total),
        _keys_text(grouped),
        _margin(grouped),
    ]


def _release(sql: str, checked: Checked) -> Release | None:
    """None: an analyst cannot ask this."""
    try:
        return checked.release(sql)
    except Error:
        return None


def _margin(release: Release | None) -> str:
    margin = None if release is None else release.outputs[-1].margin
    if margin is None:
        return "no"
    # Beyond a few units, the digits behind the point say nothing.
    return f"±{_number_text(margin if margin < 10 else Fraction(math.ceil(margin)))}"


def _number_text(number: Fraction) -> str:
    from dpsql.explain import number_text

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
    # Dates that bound a timestamp stand for the first and the last moment of their day.
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
