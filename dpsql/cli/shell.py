"""`dpsql shell`: an interactive shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql import __version__
from dpsql.cli.catalog import table_description, table_list
from dpsql.cli.progress import footer, run, say_if_ledger_is_new
from dpsql.cli.prompt import is_command, split
from dpsql.cli.query import show_table
from dpsql.cli.report import Refusal, refusals
from dpsql.errors import BadSetting, ProgrammingError
from dpsql.settings import SETTINGS

if TYPE_CHECKING:
    from dpsql.driver.dbapi import Connection

_HELP = r"""SQL ends with a semicolon and may span several lines. EXPLAIN of a query is free.

  \d                  the declared tables
  \d TABLE            its columns and what is declared for them
  \budget             the budget spent and left
  \explain QUERY      price, noise and keys of a query, at no cost
  \set NAME VALUE     change a setting of the queries that follow:
{settings}
  \?                  this help
  \q                  quit, like Ctrl-D

Ctrl-C cancels a query, or clears the line. Tab completes names."""


class Shell:
    """One user's session at the shell, independent of the source of its lines."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._commands: dict[str, Callable[[str], None]] = {
            "d": self._describe,
            "budget": self._budget,
            "explain": self._explain,
            "set": self._set,
            "?": self._help,
        }
        self.done = False

    def do(self, text: str) -> None:
        """Run a line: one command, or any number of statements. Raises Refusal, and skips the rest."""
        if is_command(text):
            self._command(text.strip().rstrip(";").rstrip())
            return
        statements, rest = split(text)
        for statement in [*statements, rest.strip()]:
            if statement:
                self._statement(statement)

    def _statement(self, sql: str) -> None:
        with refusals(sql):
            run(self._cursor, sql)
            show_table(self._cursor)
            lines = footer(self._cursor)
        for line in lines:
            click.echo(line, err=True)

    def _command(self, text: str) -> None:
        name, _, rest = text.removeprefix("\\").partition(" ")
        rest = rest.strip()
        if name == "q" or name.lower() in ("exit", "quit"):
            self.done = True
        elif name.lower() == "help":
            self._help(rest)
        else:
            # Positions of errors are relative to the query of \explain, not to the whole line.
            with refusals(rest):
                if name not in self._commands:
                    raise ProgrammingError(f'there is no command "\\{name}"', hint="Type \\? for help.")
                self._commands[name](rest)

    def _describe(self, name: str) -> None:
        catalog = self._connection.catalog
        click.echo("\n".join(table_description(catalog, name.strip('"')) if name else table_list(catalog)))

    def _budget(self, _: str) -> None:
        budget = self._connection.budget
        click.echo(f"spent: {budget.spent}\nleft:  {budget.left}")

    def _explain(self, sql: str) -> None:
        if not sql:
            raise ProgrammingError("there is no query to explain", hint="Write it on the same line.")
        click.echo(self._cursor.explain(sql))

    def _set(self, setting: str) -> None:
        name, _, value = setting.partition(" ")
        if not value:
            raise BadSetting("a setting needs a name and a value", hint="For example: \\set epsilon 0.5")
        self._cursor.execute(f"SET dpsql.{name.removeprefix('dpsql.')} = {value.strip()}")

    def _help(self, _: str) -> None:
        click.echo(_HELP.format(settings=_setting_lines()))


def _setting_lines() -> str:
    return "\n".join(f"    {setting.name:<17} {setting.meaning}" for setting in SETTINGS.values())


def history_file() -> Path | None:
    """The history file; None if it cannot be created."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "dpsql"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "history"
        path.touch(mode=0o600)
    except OSError:
        return None
    return path


def _script(lines: Iterable[str]) -> Iterator[str]:
    """Commands and statements from piped lines; the last needs no semicolon."""
    waiting = ""
    for line in lines:
        if not waiting and is_command(line):
            yield line
            continue
        statements, waiting = split(waiting + line)
        yield from (f"{statement};" for statement in statements)
    if waiting.strip():
        yield waiting


def converse(shell: Shell, connection: Connection) -> None:
    """Read lines until the user quits. An error ends a statement, not the session."""
    from dpsql.cli.prompt import prompt_for

    click.echo(f"dpsql {__version__}, user {connection.user}, left: {connection.budget.left}")
    click.echo("Type \\? for help, \\q to leave.")
    ask = prompt_for(connection.catalog, history_file())
    while not shell.done:
        try:
            shell.do(ask())
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
        except Refusal as refusal:
            refusal.show()


@click.command()
@click.option("--user", metavar="NAME", help="The user whose account pays. Default: the policy's only user.")
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def shell(policy: str, user: str | None) -> None:
    """Start an interactive shell, with history and completion.

    SQL from a pipe is run as a script, which ends at the first error.

    \b
    Example:
      dpsql shell
      dpsql shell --user alice < report.sql
    """
    from dpsql.driver.dbapi import connect

    with refusals(), connect(policy, user) as connection:
        say_if_ledger_is_new(connection)
        conversation = Shell(connection)
        if sys.stdin.isatty():
            converse(conversation, connection)
            return
        for text in _script(sys.stdin):
            conversation.do(text)
            if conversation.done:
                break
