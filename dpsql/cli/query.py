"""`dpsql query` and `dpsql explain`: answer a query, or show its price."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.cli import rows as writers
from dpsql.cli.progress import footer, run, say_if_ledger_is_new
from dpsql.cli.report import refusals
from dpsql.driver import frames
from dpsql.driver.display import Column, Margins
from dpsql.errors import OperationalError
from dpsql.settings import SETTINGS, SessionSetting, Takes
from dpsql.types import Value

if TYPE_CHECKING:
    from dpsql.driver.dbapi import Cursor

Command = Callable[..., Any]

_SETTINGS = "dpsql.settings"  # the context key of options that are session settings
_FOR_PEOPLE = ("table", "markdown")
_FORMATS = (*_FOR_PEOPLE, "csv", "json", "parquet")
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


# --- input ---


def _number(text: str) -> Decimal:
    """An exact number."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise click.BadParameter(f"{text!r} is not a number") from None


def _parameter(text: str) -> tuple[str, Value]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not of the form name=value")
    return name, typed(value)


def typed(text: str) -> Value:
    """The value of a text: a number, true, false, null or a date; anything else is text.

    Text that looks like one of these needs single quotes.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)", text, re.ASCII):
        return Decimal(text)
    if re.match(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        for read in (date.fromisoformat, datetime.fromisoformat):
            try:
                return read(text)
            except ValueError:
                continue
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    return text


def _setting_option(setting: SessionSetting) -> Callable[[Command], Command]:
    """The option of a session setting. Its value goes to the context, so that commands need no argument for it."""

    def keep(context: click.Context, _: click.Parameter, value: Decimal | bool | None) -> None:
        if value is not None and value is not False:  # a price of 0 is equal to False
            context.meta.setdefault(_SETTINGS, {})[setting.name] = "on" if value is True else value

    if setting.takes is Takes.SWITCH:
        return click.option(f"--{setting.name}", is_flag=True, callback=keep, expose_value=False, help=setting.meaning)
    return click.option(
        f"--{setting.name}", metavar="X", type=_number, callback=keep, expose_value=False, help=setting.meaning
    )


def _asks_a_question(command: Command) -> Command:
    options: list[Callable[[Command], Command]] = [
        click.argument("sql", required=False),
        click.option("-f", "--file", metavar="FILE", help="Read the SQL from a file."),
        click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file."),
        click.option("--user", metavar="NAME", help="The user whose account pays. Default: the policy's only user."),
        *map(_setting_option, SETTINGS.values()),
        click.option(
            "--param",
            "parameters",
            metavar="NAME=VALUE",
            type=_parameter,
            multiple=True,
            help="A value for %(NAME)s in the SQL. Can be repeated. Numbers, true, false, null and dates are"
            " recognized; single quotes around a value make it text.",
        ),
    ]
    for option in reversed(options):  # click lists them in reverse order
        command = option(command)
    return command


def _question(sql: str | None, file: str | None) -> str:
    """The SQL from the argument, the file or standard input."""
    if sql is not None and file is not None:
        raise click.UsageError("SQL was passed both as an argument and as a file")
    if sql is not None and sql != "-":
        return sql
    if file is not None and file != "-":
        return _read(Path(file))
    if sql is None and file is None and sys.stdin.isatty():
        raise click.UsageError("no SQL: pass it as an argument, or name a file with -f")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        raise click.UsageError("standard input is not text") from None
    if not text.strip():
        raise click.UsageError("no SQL: standard input is empty")
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f'the file "{path}" cannot be read: {error.strerror}') from None
    except UnicodeDecodeError:
        raise click.UsageError(f'the file "{path}" is not UTF-8 text') from None


def _set(cursor: Cursor) -> None:
    """Apply the settings that were passed as options to the session."""
    for name, value in click.get_current_context().meta.get(_SETTINGS, {}).items():
        cursor.execute(f"SET dpsql.{name} = {value}")


# --- output ---


def show_table(cursor: Cursor) -> None:
    """Print the rows of the last statement as a table."""
    if cursor.columns is not None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in writers.table(cursor.columns, cursor.fetchall(), cursor.row_margins, width=width):
            click.echo(line)


def _write(
    form: str, columns: Sequence[Column], rows: writers.Rows, margins: Margins, output: Path | None, *, behind: bool
) -> None:
    if behind:
        columns, rows = frames.with_margins(columns, rows, margins)
    match form:
        case "csv":
            lines = writers.csv_lines(columns, rows)
        case "json":
            lines = writers.json_lines(columns, rows)
        case "markdown":
            lines = writers.markdown(columns, rows, margins)
        case "parquet":
            from dpsql.driver import frames as parquet

            assert output is not None
            names = writers.unique_names([column.name for column in columns])
            named = [replace(column, name=name) for column, name in zip(columns, names, strict=True)]
            parquet.write(output, named, rows)
            return
        case _:
            lines = writers.table(columns, rows, margins)
    if output is None:
        click.echo("\n".join(lines))
    else:
        with _to_file(output):
            output.write_text("\n".join(lines) + "\n", "utf-8")


@contextmanager
def _to_file(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OperationalError(
            f'the file "{path}" cannot be written: {error.strerror}', hint="The same query again is free."
        ) from None


def _check_output(form: str, output: Path | None, margins: bool) -> None:
    """Check before anything is charged that the output can be written."""
    if form == "parquet" and output is None:
        raise click.UsageError("parquet needs a file: name it with --output")
    if margins and form in _FOR_PEOPLE:
        raise click.UsageError(f"--margins is for csv, json and parquet: a {form} shows margins anyway")
    if output is not None and not output.parent.is_dir():
        raise click.UsageError(f'there is no folder "{output.parent}" to write to')
    if output is not None and output.is_dir():
        raise click.UsageError(f'"{output}" is a folder')


# --- the commands ---


@click.command()
@_asks_a_question
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True, help="How rows are written."
)
@click.option("-o", "--output", metavar="FILE", type=Path, help="Write the rows to this file.")
@click.option("--margins", is_flag=True, help="Add a column NAME_margin after each noisy one (csv, json, parquet).")
@click.option(
    "--new-ledger",
    is_flag=True,
    help="Create the ledger if it does not exist. A new one has no record of what was spent.",
)
def query(
    sql: str | None,
    file: str | None,
    policy: str,
    user: str | None,
    parameters: tuple[tuple[str, Value], ...],
    form: str,
    output: Path | None,
    margins: bool,
    new_ledger: bool,
) -> None:
    """Answer a query, and pay for it.

    SQL is an argument, a file (-f) or standard input. Rows go to standard output; what was paid and what is left go to
    standard error. In a table, ± is the 95 % margin of a noisy number.

    \b
    Example:
      dpsql query "SELECT state, COUNT(*) FROM people GROUP BY state"
      dpsql query --user alice --epsilon 0.5 "SELECT AVG(age) FROM people"
      dpsql query --param age=65 "SELECT COUNT(*) FROM people WHERE age > %(age)s"
      dpsql query -f monthly.sql --format csv --margins > monthly.csv
    """
    from dpsql.driver.dbapi import connect

    _check_output(form, output, margins)
    sql = _question(sql, file)
    with refusals(sql), connect(policy, user, new_ledger=new_ledger) as connection, connection.cursor() as cursor:
        say_if_ledger_is_new(connection)
        _set(cursor)
        run(cursor, sql, dict(parameters) or None)
        if form == "table" and output is None:
            show_table(cursor)
        elif cursor.columns is not None:
            _write(form, cursor.columns, cursor.fetchall(), cursor.row_margins, output, behind=margins)
        for line in footer(cursor):
            click.echo(line, err=True)


@click.command()
@_asks_a_question
def explain(
    sql: str | None,
    file: str | None,
    policy: str,
    user: str | None,
    parameters: tuple[tuple[str, Value], ...],
) -> None:
    """Show what a query would cost, its noise and why it is private.

    Free: no private table is read and nothing is charged. SQL is an argument, a file (-f) or standard input.

    \b
    Example:
      dpsql explain "SELECT state, AVG(income) FROM people GROUP BY state"
      dpsql explain --epsilon 0.5 -f monthly.sql
    """
    from dpsql.driver.dbapi import connect

    sql = _question(sql, file)
    with refusals(sql), connect(policy, user) as connection, connection.cursor() as cursor:
        say_if_ledger_is_new(connection)
        _set(cursor)
        click.echo(cursor.explain(sql, dict(parameters) or None))
