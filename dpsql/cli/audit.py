"""`dpsql audit`: what answers reveal about one person, against their price."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.report import refusals
from dpsql.cli.rows import aligned

if TYPE_CHECKING:
    from dpsql.audit import Finding, Refused


@click.command()
@click.option(
    "--trials", default=20_000, show_default=True, type=click.IntRange(1_000, 1_000_000), help="Answers drawn."
)
@click.option("--picture", metavar="FILE.svg", help="Draw the distributions of the answers.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
def audit(trials: int, picture: str | None, format_: str, policy: str) -> None:
    """Audit the policy: measure what answers reveal about one person, against their price.

    Creates pairs of synthetic databases with the declared tables. One of each pair has one more person, who exceeds
    every bound: with many rows under one key, under several, or under keys that no one else has. Runs each aggregate,
    over each kind of key, along each join that the policy allows, and computes lower bounds on the privacy loss of the
    answers, and on delta where keys are unknown. The bound of one kind of answer is wrong in fewer than two of a
    million audits. Reads no private row and spends nothing. Takes minutes for many tables.

    The synthetic databases use the policy's engine: DuckDB files, or databases on a PostgreSQL server that is started
    for the audit. They are deleted afterwards.

    Exit status 1 if an answer reveals more than its price.

    \b
    Example:
      dpsql audit
      dpsql audit --picture audit.svg
    """
    from dpsql.answering.open_dataset import bind_all, open_backend
    from dpsql.audit import Finding, Refused, open_audit
    from dpsql.engines.registry import engine_kind
    from dpsql.noise.samplers import SystemSampler
    from dpsql.policy.load import load

    with refusals():
        declared = load(Path(policy))
        engine = open_backend(declared)
        try:
            catalog = bind_all(declared, engine)
            kind = engine_kind(declared.database)
            with open_audit(catalog, declared.privacy, kind, engine, SystemSampler()) as made:
                currency = made.currency
                with click.progressbar(
                    made.run(trials), length=len(made.questions), file=sys.stderr, label="auditing"
                ) as asked:
                    results = list(asked)
        finally:
            engine.close()
    findings = [result for result in results if isinstance(result, Finding)]
    refused = [result for result in results if isinstance(result, Refused)]
    if picture is not None:
        from dpsql.audit.picture import picture as drawn

        Path(picture).write_text(drawn(findings, currency))
    if format_ == "json":
        click.echo(json.dumps(_document(findings, refused, currency), indent=2, ensure_ascii=False))
    else:
        for line in _lines(findings, refused, currency):
            click.echo(line)
        if picture is not None:
            click.echo(f'the distributions are drawn in "{picture}"')
    if any(finding.is_defect for finding in findings):
        sys.exit(1)


def _verdict(finding: Finding) -> str:
    if finding.is_defect:
        return "DEFECT: more than was paid for"
    return "ok" if finding.has_power else "ok, but the audit has little power"


def _lines(findings: list[Finding], refused: list[Refused], currency: str) -> list[str]:
    numbers = (f"claimed {currency}", f"shown {currency}", "claimed delta", "shown delta")
    names = ("tables", "aggregate", "keys", *numbers, "")
    rows = [
        (
            finding.question.tables,
            finding.question.aggregate,
            finding.question.keys,
            f"{finding.claimed:.3f}",
            f"{finding.shown:.3f}",
            *((f"{finding.claimed_delta:.3f}", f"{finding.shown_delta:.3f}") if finding.claimed_delta else ("", "")),
            _verdict(finding),
        )
        for finding in findings
    ]
    lines = aligned(names, rows, numeric=(False, False, False, True, True, True, True, False))
    if refused:
        reasons = sorted({found.reason for found in refused})
        lines += ["", f"not audited, because the policy does not allow them ({len(refused)}):"]
        lines += [f"  {reason}" for reason in reasons]
    defects = sum(finding.is_defect for finding in findings)
    blind = sum(not finding.has_power for finding in findings)
    lines += [
        "",
        f"{len(findings)} kinds of answers audited; {defects} reveal more than their price; {blind} had little power",
    ]
    lines += ["each at the price with the most power; noise is made the same way for every other price"]
    if blind:
        lines += [
            "little power proves nothing: more --trials may help, unless the synthetic people reveal nothing there"
        ]
    return lines


def _document(findings: list[Finding], refused: list[Refused], currency: str) -> dict[str, object]:
    return {
        "currency": currency,
        "findings": [
            {
                "tables": finding.question.tables,
                "aggregate": finding.question.aggregate,
                "keys": finding.question.keys,
                "sql": finding.question.sql,
                "claimed": finding.claimed,
                "shown": finding.shown,
                "claimed_delta": finding.claimed_delta,
                "shown_delta": finding.shown_delta,
                "power": finding.has_power,
                "defect": finding.is_defect,
            }
            for finding in findings
        ],
        "refused": [{"sql": found.question.sql, "reason": found.reason} for found in refused],
    }
