"""`dpsql serve`: answers PostgreSQL clients until it is told to stop."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals

if TYPE_CHECKING:
    from dpsql.wire.server import Server


@click.command()
@click.option("--host", metavar="HOST", help="Where to listen; the policy's [server] or 127.0.0.1 otherwise.")
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65_535), help="The port to listen on; 0 takes one that is free."
)
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def serve(host: str | None, port: int | None, policy: str) -> None:
    """Answer PostgreSQL clients: psql, JDBC, ODBC, pandas, Superset and the like.

    Users and their passwords are those of the policy file (see: dpsql user). SIGTERM and Ctrl-C end the server when
    running queries have ended; SIGHUP reads the policy file again.

    \b
    Example:
      dpsql user add alice --epsilon 1
      dpsql serve
    """
    from dpsql.wire.logs import write_logs
    from dpsql.wire.serving import serve as run

    write_logs(sys.stderr)
    with refusals():
        run(Path(policy), host=host, port=port, ready=_announce)


def _announce(server: Server) -> None:
    address = server.policy.server
    user = next((user.name for user in server.policy.users.values() if user.password is not None), None)
    click.echo(f"listening on {address.host}:{server.port}; Ctrl-C ends")
    if user is None:
        click.echo("no user has a password yet, so nobody can log in: dpsql user add NAME")
        return
    line = f"host={address.host} port={server.port} user={user} dbname={server.twin.database}"
    click.echo(f"connect with: psql {shlex.quote(line)}")
