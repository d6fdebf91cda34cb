"""What a fixture shows under its dashes: a Release or a refusal, in a few stable lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from fractions import Fraction

from dpsql.errors import Error
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.rules.aggregates import CHOSEN, Statistic, StatisticKind
from dpsql.privacy.stability import Derivation
from dpsql.release import Measurement, Release
from dpsql.release.explain import in_turn_text, key_text, number_text, price_text, statistic_text
from dpsql.release.limits import NOISE_ALONE, UNCOVERED

LIMITS = (NOISE_ALONE, UNCOVERED)


def accepted(release: Release, accountant: Accountant, *, rewrite: bool) -> str:
    lines = [_line("price", price_text(release.price, accountant))]
    for measurement in release.measurements:
        lines += _measurement(measurement)
        if rewrite:
            for branch in measurement.branches:
                lines += _wrapped("engine", "; ".join(f"{step.name}: {step}" for step in branch.query.steps))
    for stage in release.stages:
        lines.append(_line("stage", f"{stage.kind} {stage.type}"))
    if rewrite:
        lines += _wrapped("rest", release.rest.sql)
    lines.append(_line("output", ", ".join(f"{output.name} {output.type}" for output in release.outputs)))
    lines += [_line("mark", f'"{output.name}" {output.mark}') for output in release.outputs if output.mark]
    # What limits may cut off would stand under most cases; tests/release/test_margins.py holds it.
    lines += [_line("caution", sentence) for sentence in release.cautions if not sentence.startswith(LIMITS)]
    lines += [_line("note", note) for note in release.notes]
    return "\n".join(lines)


def refused(error: Error) -> str:
    place = "" if error.position is None else f" at {error.position}"
    lines = [_line("reject", f"{error.sqlstate}{place}: {error.message}")]
    if error.detail is not None:
        lines.append(_line("detail", error.detail))
    if error.hint is not None:
        lines.append(_line("hint", error.hint))
    return "\n".join(lines)


def _line(word: str, text: str) -> str:
    return f"{word:<7} {text}".rstrip()


def _wrapped(word: str, sql: str) -> list[str]:
    lines = textwrap.wrap(sql, 108, break_long_words=False, break_on_hyphens=False)
    return [_line(word if i == 0 else "", line) for i, line in enumerate(lines)]


def _measurement(measurement: Measurement) -> Iterator[str]:
    yield _line("keys", _keys(measurement))
    for statistic, noise in zip(measurement.statistics, measurement.noises, strict=True):
        claim = _sensitivity(statistic, noise)
        word = "value" if statistic.kind in CHOSEN else "sum"
        yield _line(word, f"{statistic_text(statistic)}{_clamp(statistic)}: {claim}")
    mechanism = measurement.mechanism
    if isinstance(mechanism, RunningTotals) and mechanism.rooted:
        along = ", ".join(key_text(measurement.keys[step.key].value) for step in mechanism.chains.along)
        yield _line("running", f"along {along}: {mechanism.chains.length:,} cells in a chain")
    for group in measurement.groups:
        if len(group) > 1 and measurement.statistics[group[0]].kind in CHOSEN:
            yield _line("joint", in_turn_text(len(group)))
        elif len(group) > 1:
            yield _line("joint", f"sums {', '.join(str(i + 1) for i in group)}: as one")
    if isinstance(mechanism, GroupingSets):
        sets = [", ".join(key_text(measurement.keys[i].value) for i in kept) for kept in mechanism.sets]
        shares = [f"({names}) {share}" for names, share in zip(sets, mechanism.shares, strict=True)]
        yield _line("sets", ", ".join(shares))
    rows = measurement.derivation.conclusion.rows
    yield _line("rules", f"{_rules(measurement.derivation)}: {rows:,} {'row' if rows == 1 else 'rows'} per unit")


def _keys(measurement: Measurement) -> str:
    if not measurement.keys:
        return "none"
    names = ", ".join(key_text(key.value) for key in measurement.keys)
    mechanism = measurement.mechanism
    if measurement.cells is not None:
        first = f", {mechanism.keys:,} of them chosen first" if isinstance(mechanism, TopKeys) else ""
        return f"{names}: {len(measurement.cells):,} declared{first}"
    assert isinstance(mechanism, PartitionSelection)
    least = number_text(Fraction(mechanism.threshold, measurement.statistics[mechanism.by].factor))
    return f"{names}: unknown, threshold {least}, at most {measurement.bound.groups} per unit"


def _clamp(statistic: Statistic) -> str:
    if statistic.value is None or statistic.kind is StatisticKind.DISTINCT:
        return ""
    if statistic.kind is StatisticKind.COMMONEST:
        return f" among {statistic.candidates:,}"
    low, high = statistic.bounds.low, statistic.bounds.high
    assert low is not None and high is not None
    return f" in [{number_text(low)}, {number_text(high)}] step {number_text(statistic.step)}"


def _sensitivity(statistic: Statistic, noise: Noise) -> str:
    """The norms that are claimed: that of the noise, and those that the SQL enforces."""
    claim = statistic.sensitivity
    parts = [f"l0 {claim.l0}"] if claim.l0 is not None else []
    parts.append(f"linf {_size(claim.linf)}")
    parts.append(f"l2² {_size(claim.l2_squared)}" if noise.law == "gaussian" else f"l1 {_size(claim.l1)}")
    if statistic.factor > 1:
        parts.append(f"factor {statistic.factor:,}")
    return ", ".join(parts)


def _size(value: Fraction) -> str:
    return number_text(value) if value < 10**12 else f"{float(value):g}"


def _rules(derivation: Derivation) -> str:
    own = f"{derivation.rule} {derivation.note}".rstrip()
    premises = [_rules(premise) for premise in derivation.premises]
    if not premises:
        return own
    before = premises[0] if len(premises) == 1 else f"({', '.join(premises)})"
    return f"{before} > {own}"
