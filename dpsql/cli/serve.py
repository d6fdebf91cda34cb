"""`dpsql serve`: answers PostgreSQL clients until it is told to stop."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals

if TYPE_CHECKING:
    from dpsql.server.listener import Server
    from dpsql.server.workers.supervisor import Supervisor


@click.command()
@click.option("--host", metavar="HOST", help="Where to listen; the policy's [server] or 127.0.0.1 otherwise.")
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65_535), help="The port to listen on; 0 takes one that is free."
)
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that answer, behind the one port.",
)
@click.option("--new-ledger", is_flag=True, help="Create a missing ledger. It forgets what was spent before.")
def serve(host: str | None, port: int | None, policy: str, workers: int, new_ledger: bool) -> None:
    """Answer PostgreSQL clients: psql, JDBC, ODBC, pandas, Superset and the like.

    Users and their passwords are those of the policy file (see: dpsql user). What else can be set is in its [server]:
    where to listen, TLS, the number of connections, a port for /metrics and /healthz.

    SIGTERM and Ctrl-C end the server when running statements have ended, a second one at once. SIGHUP reads the policy
    file again: who is connected stays, unless the tables have changed. A policy with mistakes changes nothing.

    With --workers, several processes share port, ledger and stored answers, and one that dies is started again: as many
    as there are cores. What the policy limits (connections, statements of a user, memory) it limits for all together.

    What happens is written to standard error, an event a line: as JSON, or as words at a terminal.

    \b
    Example:
      dpsql user add alice --epsilon 1
      dpsql serve
      dpsql serve --host 0.0.0.0 --port 5432 2>> serve.log
    """
    from dpsql.server.ending import leave
    from dpsql.server.ops.logs import write_logs
    from dpsql.server.serve import serve as run

    write_logs(sys.stderr)
    with refusals():
        run(Path(policy), host=host, port=port, ready=_announce, workers=workers, new_ledger=new_ledger)
    leave()


def _announce(server: Server | Supervisor) -> None:
    click.echo(f"listening on {server.policy.server.host}:{server.port}; Ctrl-C ends")
    users = server.policy.users.values()
    with_password = [user.name for user in users if user.password is not None]
    without = [user.name for user in users if user.password is None]
    again = f"then: kill -HUP {os.getpid()}"
    if with_password:
        click.echo(f"connect with: {psql_line(server, with_password[0])}")
        if without:
            click.echo(f"without a password, and so locked out: {', '.join(without)}")
    elif without:
        click.echo(f"nobody can log in yet: give a user a password with dpsql user password {without[0]}, {again}")
    else:
        click.echo(f"nobody can log in yet: add a user with dpsql user add NAME, {again}")


def psql_line(server: Server | Supervisor, user: str) -> str:
    """A command that connects from this machine."""
    host = server.policy.server.host
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where it listens is said, not chosen
    address = f"host={reached} port={server.port} user={_quoted(user)} dbname={_quoted(server.twin.database)}"
    return f"psql {shlex.quote(address)}"


def _quoted(value: str) -> str:
    """A value as libpq reads it."""
    if value.isascii() and value.isidentifier():
        return value
    return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"
