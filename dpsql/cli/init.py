"""`dpsql init`: a first policy file for a database."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals
from dpsql.errors import PolicyError

if TYPE_CHECKING:
    from dpsql.engines.base import Engine
    from dpsql.policy.draft import Suggestions
    from dpsql.policy.model import DatabaseSchema
    from dpsql.policy.propose import Proposal, SchemaDetails

_DEFAULT = "dpsql.toml"
_SCHEME = "duckdb:///"
_REVEALED = """
--suggest-bounds read the data: the extremes of {columns} columns, rounded outward, and how many rows most units have.
They now stand in the file, carry no noise, and analysts can see them: EXPLAIN shows bounds, and answers are
clamped to them. A single person can have set an extreme. Replace each by what you know without the data."""


@click.command()
@click.argument("database")
@click.option("--output", metavar="FILE", default=_DEFAULT, show_default=True, help="The policy file to write.")
@click.option(
    "--suggest-bounds",
    is_flag=True,
    help="Take min and max from the data, rounded outward. Analysts can see them: they reveal extremes of the data.",
)
def init(database: str, output: str, suggest_bounds: bool) -> None:
    """Draft a policy file for a database.

    DATABASE is a DuckDB file, its address, the address of a PostgreSQL database, or a folder of parquet or CSV files;
    these are imported once into a DuckDB file beside the folder. The draft proposes whom each row belongs to and marks
    what you must decide. Nothing is written over, and no row is read unless you say so with --suggest-bounds.

    \b
    Example:
      dpsql init clinic.duckdb
      dpsql init duckdb:///clinic.duckdb --output clinic.toml
      dpsql init postgresql://dpsql@db.example.org/clinic
      dpsql init exports/
    """
    target = Path(output)
    with refusals():
        _require_new(target)
        _write_draft(_surveyed(database, target), target, suggest_bounds)


def _require_new(target: Path) -> None:
    if target.exists():
        raise PolicyError(
            f'"{target}" already exists',
            hint="Nothing was written. Name another file with --output, or move it away.",
        )
    if not target.parent.is_dir():
        raise PolicyError(
            f'there is no folder "{target.parent}"', hint="Create it, or name another file with --output."
        )


def _database(address: str) -> Path:
    """The DuckDB file that is meant; a folder is imported first."""
    name = address.removeprefix(_SCHEME)
    if not name or "://" in name:
        # The address itself is not repeated: it may hold a password.
        raise PolicyError(
            "this is not the address of a database",
            hint=f"Write it as {_SCHEME}file.duckdb or postgresql://user@host/database.",
        )
    path = Path(name)
    if path.is_dir():
        return _import(path)
    if not path.is_file():
        raise PolicyError(f'there is no database at "{path}"', hint="Name a DuckDB file, or a folder of files.")
    return path


def _import(folder: Path) -> Path:
    from dpsql.engines.duckdb.import_files import import_folder

    # The name of "." is only known once it is resolved.
    database = folder.resolve().with_name(f"{folder.resolve().name}.duckdb")
    imported = import_folder(folder, database)
    click.echo(f"imported into {_shown(database)}:")
    width = max(len(table.table) for table in imported)
    for table in imported:
        click.echo(f"  {table.table.ljust(width)}  {table.columns} columns of {table.file}")
    return database


@dataclass(frozen=True)
class _Survey:
    """A database as the draft sees it."""

    shown: str  # its name, for messages
    url: str  # as the policy file writes it
    ledger: str | None  # where the policy must name one
    schema: DatabaseSchema
    details: SchemaDetails
    suggest: Callable[[Sequence[Proposal]], Suggestions]


def _surveyed(address: str, target: Path) -> _Survey:
    from dpsql.policy.address import is_postgres_address

    return _surveyed_server(address) if is_postgres_address(address) else _surveyed_file(_database(address), target)


def _surveyed_file(database: Path, target: Path) -> _Survey:
    from dpsql.engines.duckdb.engine import DuckDBEngine
    from dpsql.engines.duckdb.survey import read_details, suggest_bounds
    from dpsql.policy.model import Limits

    limits = Limits()
    schema = _schema(DuckDBEngine(database, memory=limits.memory, threads=limits.threads), f'"{database}"')
    return _Survey(
        _shown(database),
        _url(database, target),
        None,
        schema,
        read_details(database),
        lambda proposals: suggest_bounds(database, proposals),
    )


def _surveyed_server(address: str) -> _Survey:
    from dpsql.engines.postgres.connections import without_password
    from dpsql.engines.postgres.engine import PostgresEngine
    from dpsql.engines.postgres.survey import read_details, suggest_bounds
    from dpsql.policy.model import Limits

    limits = Limits()
    url, name = without_password(address)
    schema = _schema(PostgresEngine(address, memory=limits.memory, threads=limits.threads), f'database "{name}"')
    if len(url) < len(address):
        click.echo("the password is not written into the policy: give it in PGPASSWORD or in a password file")
    return _Survey(
        name,
        url,
        f"{name}.ledger",
        schema,
        read_details(address),
        lambda proposals: suggest_bounds(address, proposals),
    )


def _schema(engine: Engine, shown: str) -> DatabaseSchema:
    try:
        schema = engine.schema()
    finally:
        engine.close()
    if not schema.tables:
        raise PolicyError(f"there is no table in {shown}", hint="Fill the database first.")
    return schema


def _write_draft(survey: _Survey, target: Path, suggest: bool) -> None:
    from dpsql.policy.draft import draft, marks
    from dpsql.policy.propose import propose

    proposals = propose(survey.schema, survey.details)
    suggestions = survey.suggest(proposals) if suggest else None
    text = draft(survey.url, survey.schema, survey.details, proposals, suggestions, survey.ledger)
    _write(target, text)
    _tell_proposals(survey, proposals)
    if suggestions is not None:
        click.echo(_REVEALED.format(columns=len(suggestions.bounds)))
    click.echo(f"\nwrote {target}; lines marked TODO, for you to decide: {len(marks(text))}")
    command = "dpsql check" if target == Path(_DEFAULT) else f"dpsql check {target}"
    click.echo(f"next: read it, fill it in, then run: {command}")


def _write(target: Path, text: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                target.unlink()  # half a draft, as on a full disk
                raise
    except OSError as error:
        raise PolicyError(f'"{target}" cannot be written: {error.strerror}') from None


def _url(database: Path, target: Path) -> str:
    """The address as the policy file writes it: relative to the file's own folder if it lies there, or below."""
    path, folder = database.resolve(), target.parent.resolve()
    return f"{_SCHEME}{(path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()}"


def _shown(path: Path) -> str:
    shown = os.path.relpath(path)
    return str(path) if shown.startswith(os.pardir + os.sep + os.pardir) else shown


def _tell_proposals(survey: _Survey, proposals: list[Proposal]) -> None:
    from dpsql.policy.draft import policy_name

    schema = survey.schema
    verdicts = {policy_name(proposal.table, schema): _verdict(proposal) for proposal in proposals}
    verdicts |= {policy_name(t, schema): "left out: it is a view" for t in schema.tables.values() if t.is_view}
    verdicts |= {policy_name(t, schema): f"left out: it {t.obstacle}" for t in schema.tables.values() if t.obstacle}
    parts = [policy_name(schema.tables[source[0], source[1]], schema) for source in sorted(survey.details.parts)]
    verdicts |= dict.fromkeys(parts, "left out: it is a part of another table")
    click.echo(f"{survey.shown}:")
    width = max(map(len, verdicts))
    for name, verdict in verdicts.items():
        click.echo(f"  {name.ljust(width)}  {verdict}")
    if not any(proposal.unit for proposal in proposals):
        click.echo("no column seems to name a person: decide whose rows each table holds")


def _verdict(proposal: Proposal) -> str:
    if proposal.unit is not None:
        return f'private, unit "{proposal.unit}" ({proposal.why})'
    if proposal.via is not None:
        return f"private, unit by reference ({proposal.why})"
    return "left out: is it public?"
