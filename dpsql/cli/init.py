"""`dpsql init`: a first policy file for a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals
from dpsql.errors import PolicyError

if TYPE_CHECKING:
    from dpsql.engines.base import Surveyed
    from dpsql.policy.propose import Proposal

_DEFAULT = "dpsql.toml"
_REVEALED = """
--suggest-bounds read the data: the extremes of {columns} columns, rounded outward, and how many rows most units have.
They are now in the file, without noise, and analysts can see them: EXPLAIN shows bounds, and answers are clamped
to them. An extreme may be a single person's value. Replace each by what you know without the data."""


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
    these are imported once into a DuckDB file beside the folder. The draft proposes whose each row is, and marks with
    TODO what you must decide. No file is overwritten, and no row is read except with --suggest-bounds.

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
            hint="Nothing was written. Choose another file with --output, or move this one.",
        )
    if not target.parent.is_dir():
        raise PolicyError(
            f'there is no folder "{target.parent}"', hint="Create it, or choose another file with --output."
        )


def _surveyed(database: str, target: Path) -> Surveyed:
    from dpsql.engines.registry import engine_kind
    from dpsql.policy.schemes import FILES

    kind = engine_kind(database if "://" in database else f"{FILES}://")
    if kind.survey is None:
        raise PolicyError(
            f"no policy can be drafted for a database of {kind.title}", hint="Write the policy by hand: see README.md."
        )
    survey = kind.survey(database, target.parent, click.echo)
    if not survey.schema.tables:
        raise PolicyError(f'there is no table in "{survey.shown}"', hint="Fill the database first.")
    return survey


def _write_draft(survey: Surveyed, target: Path, suggest: bool) -> None:
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
                target.unlink()  # an incomplete draft, as on a full disk
                raise
    except OSError as error:
        raise PolicyError(f'"{target}" cannot be written: {error.strerror}') from None


def _tell_proposals(survey: Surveyed, proposals: list[Proposal]) -> None:
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
        click.echo("no column seems to identify a person: decide whose the rows of each table are")


def _verdict(proposal: Proposal) -> str:
    if proposal.unit is not None:
        return f'private, unit "{proposal.unit}" ({proposal.why})'
    if proposal.via is not None:
        return f"private, unit by reference ({proposal.why})"
    return "left out: is it public?"
