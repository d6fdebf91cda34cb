"""`dpsql serve`: serves PostgreSQL clients until it is stopped."""

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
@click.option("--host", metavar="HOST", help="The address to listen on. Default: [server] of the policy, or 127.0.0.1.")
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65_535), help="The port to listen on; 0 takes any free one."
)
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of worker processes on the port.",
)
@click.option("--new-ledger", is_flag=True, help="Create a missing ledger. It forgets what was spent before.")
def serve(host: str | None, port: int | None, policy: str, workers: int, new_ledger: bool) -> None:
    """Serve PostgreSQL clients: psql, JDBC, ODBC, pandas, Superset and others.

    Users and their passwords are in the policy file (see: dpsql user). Its section [server] sets the address, TLS, the
    number of connections, and a port for /metrics and /healthz.

    SIGTERM and Ctrl-C stop the server when running statements have ended, a second one at once. SIGHUP reloads the
    policy file: connections stay open unless the tables have changed. A policy with errors changes nothing.

    With --workers, several processes, such as one per core, share port, ledger and stored answers; one that dies is
    restarted. Limits of the policy (connections, statements of a user, memory) apply to all together.

    The log goes to standard error, one event a line: as JSON, or as plain text at a terminal.

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
    click.echo(f"listening on {server.policy.server.host}:{server.port}; press Ctrl-C to stop")
    users = server.policy.users.values()
    with_password = [user.name for user in users if user.password is not None]
    without = [user.name for user in users if user.password is None]
    again = f"then: kill -HUP {os.getpid()}"
    if with_password:
        click.echo(f"connect with: {psql_line(server, with_password[0])}")
        if without:
            click.echo(f"users without a password, who cannot log in: {', '.join(without)}")
    elif without:
        click.echo(f"no user can log in yet: set a password with dpsql user password {without[0]}, {again}")
    else:
        click.echo(f"no user can log in yet: add one with dpsql user add NAME, {again}")


def psql_line(server: Server | Supervisor, user: str) -> str:
    """A psql command that connects from this machine."""
    host = server.policy.server.host
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a comparison, not an address to bind
    address = f"host={reached} port={server.port} user={_quoted(user)} dbname={_quoted(server.twin.database)}"
    return f"psql {shlex.quote(address)}"


def _quoted(value: str) -> str:
    """A value quoted for a libpq connection string."""
    if value.isascii() and value.isidentifier():
        return value
    return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"
