"""`dpsql demo`: a demo dataset, and a short tour of it."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.progress import footer, run
from dpsql.cli.report import describe, refusals
from dpsql.cli.rows import bar, table
from dpsql.driver.display import cell
from dpsql.errors import Error

if TYPE_CHECKING:
    from dpsql.driver.dbapi import Connection, Row
    from dpsql.server.listener import Server
    from dpsql.server.workers.supervisor import Supervisor

_USER = "analyst"  # in the policy of the demo
_PASSWORD = "demo"  # noqa: S105 - of made-up data, on this machine only
_HERE = "127.0.0.1"

_HISTOGRAM = """\
SELECT age / 10 * 10 AS decade, COUNT(*) AS patients
FROM patients
GROUP BY decade
ORDER BY decade"""
_MEAN = "SELECT AVG(age) AS mean_age, SUM(age) AS years, COUNT(age) AS patients FROM patients"
_ROWS = "SELECT town, income FROM patients WHERE income > 150000"
_TOWNS = "SELECT town, COUNT(*) AS patients FROM patients GROUP BY town"
_LARGEST = f"{_TOWNS} ORDER BY patients DESC LIMIT 5"
_SMALLEST = f"{_TOWNS} ORDER BY patients LIMIT 5"
_TOO_DEAR = "SELECT AVG(income) FROM patients"

_NEXT = """\
  dpsql query "SELECT department, COUNT(*) AS visits FROM visits GROUP BY department"
  dpsql query --epsilon 0.1 "SELECT region, AVG(income) AS income FROM patients GROUP BY region"
  dpsql explain "SELECT region, AVG(income) AS income FROM patients GROUP BY region"
  dpsql shell
  dpsql budget
  dpsql demo --serve ."""


class _Tour:
    """The tour's queries, each with an explanation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        self._step = 0
        self._rows: list[Row] = []

    def take(self) -> None:
        self._title("How old are the patients?")
        self._ask(_HISTOGRAM)
        self._say(
            "Noise hides every single patient; in 95 of 100 cases it stays within the margin ±.",
            "An age of 999 counts as 110: the policy clamps wrong values.",
        )

        self._title("How old are they on average, and how sure is that?")
        self._ask(_MEAN)
        self._say(self._interval())

        self._title("Who earns most?")
        self._refused(_ROWS)
        self._say("Refused before anything was read or charged.")

        self._title("Which towns do they come from?")
        self._ask(_LARGEST)
        self._say(
            "The towns are not declared as keys, and a small one could reveal who lives there:", self._keys(_TOWNS)
        )
        self._ask(_SMALLEST)
        self._say(
            "These are the smallest that passed; smaller towns are suppressed.",
            "This query was free: it only sorts what the previous one released.",
        )

        self._title("What if a query costs more than is left?")
        self._cursor.execute("SET dpsql.epsilon = 2")
        self._refused(_TOO_DEAR)
        self._cursor.execute("RESET dpsql.epsilon")
        self._say("The owner gave this user a total of epsilon 2. What is spent is never returned:", self._budget())

        self._title("And the first query again?")
        self._ask(_HISTOGRAM)
        self._say("The same answer to the last digit, at no cost: running it again reveals nothing new.")

    def _title(self, text: str) -> None:
        self._step += 1
        click.secho(f"\n{self._step}. {text}", bold=True)

    def _say(self, *lines: str) -> None:
        click.echo("\n" + "\n".join(lines))

    def _sql(self, sql: str) -> None:
        click.echo()
        for line in sql.splitlines():
            click.secho(f"  {line}", fg="cyan")
        click.echo()

    def _ask(self, sql: str) -> None:
        self._sql(sql)
        run(self._cursor, sql)
        assert self._cursor.columns is not None
        self._rows = self._cursor.fetchall()
        click.echo("\n".join(table(self._cursor.columns, self._rows, self._cursor.row_margins, width=self._width)))
        click.echo("\n".join(footer(self._cursor)))

    def _refused(self, sql: str) -> None:
        self._sql(sql)
        try:
            self._cursor.execute(sql)
        except Error as error:
            click.echo(describe(error, sql))

    def _interval(self) -> str:
        assert self._cursor.columns is not None
        (row,), (margins,) = self._rows, self._cursor.row_margins
        shown = cell(row[0], self._cursor.columns[0], margins[0])
        return f"A mean is a noisy sum divided by a noisy count. Their margins give its own: {shown} years."

    def _keys(self, sql: str) -> str:
        """What EXPLAIN says about the keys of a query."""
        return next(line for line in self._cursor.explain(sql).splitlines() if line.startswith("  Keys: "))

    def _budget(self) -> str:
        budget = self._connection.budget
        spent, left = budget.spent.grains.loss, budget.left.grains.loss
        drawn = bar(left / (spent + left), 40).ljust(40, "░")
        return f"  {drawn} left: {budget.left}"


@click.command()
@click.argument("folder", type=Path, default="dpsql-demo")
@click.option("--serve", "serves", is_flag=True, help="Serve PostgreSQL clients instead of showing the tour.")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65_535), help="Where --serve listens, on this machine.")
def demo(folder: Path, serves: bool, port: int | None) -> None:
    """Create a demo dataset, and take a short tour or serve it.

    Writes a synthetic clinic with 120,000 patients and a commented policy to FOLDER (default: dpsql-demo), then runs a
    few queries, or with --serve serves psql and other clients. Running it again uses the existing folder.

    \b
    Example:
      dpsql demo
      dpsql demo --serve
      dpsql demo /tmp/clinic
    """
    from dpsql.cli.demo_data import PATIENTS, POLICY, write_demo
    from dpsql.driver.dbapi import connect

    if port is not None and not serves:
        raise click.UsageError("--port requires --serve")
    with refusals():
        if write_demo(folder):
            click.echo(f'wrote a synthetic clinic with {PATIENTS:,} patients and its policy to "{folder}"')
        else:
            click.echo(f'"{folder}" already exists: its data and ledger are used again, and earlier answers are free')
        if serves:
            _serve(folder / POLICY, port)
            return
        with connect(folder / POLICY, _USER) as connection:
            _Tour(connection).take()
    click.secho("\nWhat to try next", bold=True)
    click.echo(f"\n  cd {shlex.quote(str(folder))}\n{_NEXT}\n\nRead {POLICY} there: its comments explain it.")


def _serve(policy: Path, port: int | None) -> None:
    from dpsql.cli.serve import psql_line
    from dpsql.policy.edit import require_known, set_password
    from dpsql.policy.load import load
    from dpsql.policy.passwords import Verifier
    from dpsql.server.ending import leave
    from dpsql.server.ops.logs import write_logs
    from dpsql.server.serve import serve

    require_known(policy, _USER)
    password = load(policy).users[_USER].password
    verifier = None if password is None else Verifier.parse(password)
    if verifier is None:
        verifier = Verifier.of(_PASSWORD)
        set_password(policy, _USER, verifier)
        click.echo(f'gave user "{_USER}" the password "{_PASSWORD}": it is public, but only this machine can connect')
    known = f"PGPASSWORD={_PASSWORD} " if verifier.fits(_PASSWORD) else ""

    def announce(server: Server | Supervisor) -> None:
        click.echo(f"listening on {_HERE}:{server.port}; press Ctrl-C to stop. In another terminal:\n")
        click.echo(f"  {known}{psql_line(server, _USER)}\n")

    write_logs(sys.stderr)
    serve(policy, host=_HERE, port=port, ready=announce)
    leave()
