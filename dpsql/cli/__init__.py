"""The command line. A command's module is imported when it runs, so that --help is fast."""

from __future__ import annotations

import importlib
import io
import sys

import click

from dpsql import __version__
from dpsql.cli.report import describe_defect

# Each command with its module and its line in --help.
COMMANDS = {
    "init": ("dpsql.cli.init", "Draft a policy file for a database."),
    "check": ("dpsql.cli.check", "Check a policy file against its database."),
    "prepare": ("dpsql.cli.prepare", "Copy the tables into a form that is faster to query."),
    "query": ("dpsql.cli.query", "Answer a query, and pay for it."),
    "explain": ("dpsql.cli.query", "Show what a query would cost, its noise and why it is private."),
    "budget": ("dpsql.cli.budget", "Show the budget that is spent and left."),
    "log": ("dpsql.cli.log", "Show every charge and every refusal."),
    "user": ("dpsql.cli.user", "Add, list and remove users, and set their allowances."),
    "ledger": ("dpsql.cli.ledger", "Verify, move or accept the ledger."),
    "audit": ("dpsql.cli.audit", "Measure what answers reveal about one person, against their price."),
    "serve": ("dpsql.cli.serve", "Serve PostgreSQL clients."),
    "shell": ("dpsql.cli.shell", "Start an interactive shell."),
    "demo": ("dpsql.cli.demo", "Create a demo dataset, and take a short tour."),
}


class _Commands(click.Group):
    """Knows its commands by name; imports a module only for the command that is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def main() -> None:
    """Run the command line. Every failure becomes a message, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escapes ± or a key that cannot be encoded, as stderr does
    try:
        commands(prog_name="dpsql")
    except OSError as error:
        # Usually a full disk behind standard output. The system's message reveals nothing of the data.
        click.echo(f"error: {(error.strerror or 'input or output failed').lower()} (SQLSTATE 58000)", err=True)
        sys.exit(1)
    except Exception as error:
        click.echo(describe_defect(error), err=True)
        sys.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Ordinary SQL in, differentially private answers out.

    \b
    Example:
      dpsql check
      dpsql explain "SELECT state, COUNT(*) FROM people GROUP BY state"
      dpsql query "SELECT state, COUNT(*) FROM people GROUP BY state"

    Exit status: 0 on success, 1 if something was refused or failed, 2 if the command line is invalid.
    """
