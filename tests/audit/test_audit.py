"""`dpsql audit` of the toy policy: sound as it is, and a planted defect in noise, bounding or threshold is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from dpsql.answering.open_dataset import bind_all, open_backend
from dpsql.audit import Audit, Finding, Refused, open_audit
from dpsql.cli import commands
from dpsql.compliance.toy import POLICIES, fill_clean
from dpsql.engines.postgres.local_cluster import Cluster
from dpsql.engines.registry import engine_kind
from dpsql.lowering.select import Pipeline
from dpsql.noise.samplers import Exact, Losses, Sampler, SystemSampler
from dpsql.policy.load import load
from dpsql.privacy.noise_laws import Noise, selecting
from dpsql.tables import Integers
from grammar_tests.servers import Server
from grammar_tests.toy_postgres import fill

TRIALS = 12_000
COMBINED_TRIALS = 4_000  # each takes as long as an answer
# A few of each kind: aggregate, key and join. Sums are asked of every policy, what takes long of one.
SUMS = [
    ("people", "COUNT(*)", "declared"),
    ("people", "STDDEV", "none"),
    ("visits", "SUM", "declared"),
    ("visits", "COUNT(*)", "unknown"),
    ("Gifts", "COUNT(DISTINCT unit)", "unknown"),
    ("visits", "COUNT(DISTINCT)", "none"),
    ("items ⋈ visits", "SUM", "none"),
    ("people ⋈ visits", "COUNT(*)", "none"),
]
CHOSEN = {
    "zcdp": [
        *SUMS,
        ("people", "CORR", "none"),
        ("people", "MIN", "declared"),
        ("people", "MODE", "none"),
        ("people", "COUNT(*)", "cube"),
        ("items", "running COUNT(*)", "declared"),
        ("remarks", "centre of AVG", "none"),
        ("visits", "most COUNT(DISTINCT unit), LIMIT 1", "declared"),
        ("visits", "most COUNT(DISTINCT unit), LIMIT 3", "declared"),
        ("people", "quartiles", "none"),
        ("remarks", "clip of differences of AVG", "none"),
        ("remarks", "SUM with what is chosen", "none"),
        ("remarks", "AVG with what is chosen", "none"),
        ("visits", "COUNT(*) of groups", "all unknown"),
        ("visits", "SUM(n) of groups", "all unknown"),
    ],
    "laplace": [
        *SUMS,
        ("people", "MEDIAN", "none"),
        ("people", "MODE", "none"),
        ("remarks", "clip of SUM", "none"),
        ("visits", "most COUNT(DISTINCT unit), LIMIT 1", "declared"),
        ("visits", "most COUNT(DISTINCT unit), LIMIT 3", "declared"),
        ("people", "quartiles", "none"),
        ("remarks", "SUM with what is chosen", "none"),
        ("visits", "COUNT(*) of groups", "all unknown"),
        ("visits", "SUM(n) of groups", "all unknown"),
    ],
    "basic": [("visits", "COUNT(*)", "none"), ("visits", "COUNT(*)", "unknown")],
    "on_postgres": [
        ("visits", "SUM", "declared"),
        ("visits", "COUNT(DISTINCT)", "none"),
        ("items ⋈ visits", "SUM", "none"),
    ],
}


CHOICES = ("MODE", "quartiles", "most COUNT(DISTINCT unit), LIMIT 1", "most COUNT(DISTINCT unit), LIMIT 3")


class HalfTheChoices(SystemSampler):
    """A planted defect: scales of choices are half of what was paid for."""

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        return super().exponential(widths, losses, scale / 2, exact)


class HalfTheNoise(HalfTheChoices):
    """A planted defect: all scales are half of what was paid for."""

    def discrete_laplace(self, scale: Fraction, size: int) -> Integers:
        return super().discrete_laplace(scale / 2, size)

    def discrete_gaussian(self, variance: Fraction, size: int) -> Integers:
        return super().discrete_gaussian(variance / 4, size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("audited")
    with duckdb.connect(str(made / "toy.duckdb")) as connection:
        fill_clean(connection)
    for name in ("zcdp", "basic", "laplace"):
        text = "\n".join((POLICIES / part).read_text() for part in (f"{name}.toml", "tables.toml"))
        # So many visits that three of the keys with most people are chosen, one after another.
        (made / f"{name}.toml").write_text(text.replace("max_rows_per_unit = 6\n", "max_rows_per_unit = 12\n"))
    return made


def audited(folder: Path, policy: str, sampler: Sampler) -> Iterator[Audit]:
    declared = load(folder / f"{policy}.toml")
    kind, engine = engine_kind(declared.database), open_backend(declared)
    try:
        with open_audit(bind_all(declared, engine), declared.privacy, kind, engine, sampler) as made:
            made.questions = [q for q in made.questions if (q.tables, q.aggregate, q.keys) in CHOSEN[policy]]
            assert len(made.questions) == len(CHOSEN[policy])
            yield made
    finally:
        engine.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.audit.trials.MOST_TRIALS", COMBINED_TRIALS)


@pytest.fixture(params=["zcdp", "laplace"])
def sound(folder: Path, request: pytest.FixtureRequest) -> Iterator[Audit]:
    yield from audited(folder, request.param, SystemSampler())


@pytest.fixture(params=["zcdp", "laplace"])
def defective(folder: Path, request: pytest.FixtureRequest) -> Iterator[Audit]:
    yield from audited(folder, request.param, HalfTheNoise())


@pytest.fixture(params=["zcdp", "laplace"])
def choosing_badly(folder: Path, request: pytest.FixtureRequest) -> Iterator[Audit]:
    yield from audited(folder, request.param, HalfTheChoices())


@pytest.fixture
def pure(folder: Path) -> Iterator[Audit]:
    yield from audited(folder, "basic", SystemSampler())


def test_a_sound_policy_shows_no_more_than_it_costs(sound: Audit) -> None:
    for finding in sound.run(TRIALS):
        assert isinstance(finding, Finding)
        assert not finding.is_defect, finding
        assert finding.has_power, finding


def test_half_the_noise_is_shown(defective: Audit) -> None:
    for finding in defective.run(TRIALS):
        assert isinstance(finding, Finding)
        assert finding.is_defect, finding


def test_choices_show_no_more_than_they_cost(sound: Audit) -> None:
    for finding in _of_choices(sound):
        assert finding.has_power, finding
        assert not finding.is_defect, finding


def test_half_the_noise_of_choices_alone_is_shown(choosing_badly: Audit) -> None:
    """What is counted beside them, or afterwards, has the noise that it should have."""
    for finding in _of_choices(choosing_badly):
        assert finding.is_defect, finding


def _of_choices(audit: Audit) -> list[Finding]:
    audit.questions = [q for q in audit.questions if q.aggregate in CHOICES]
    assert {q.aggregate for q in audit.questions} == {*CHOICES}
    return [finding for finding in audit.run(TRIALS) if isinstance(finding, Finding)]


def test_what_the_policy_refuses_is_told(pure: Audit) -> None:
    """Without a delta there are no unknown keys."""
    refused = [result for result in pure.run(1_000) if isinstance(result, Refused)]
    assert [found.question.keys for found in refused] == ["unknown"]


def test_a_person_who_moves_a_sum_too_far_is_shown(sound: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clip of a person's sum in a cell is planted too wide: the noise is right, and the sums are not."""
    original = "dpsql.lowering.steps.sum_of_owner"

    def unbounded(_: object, i: int, statistic: object) -> str:
        del statistic
        return f"CAST(COALESCE(SUM(v{i}), 0) AS BIGINT) AS s{i}"

    monkeypatch.setattr(original, unbounded)
    sound.questions = [q for q in sound.questions if (q.tables, q.aggregate) == ("items ⋈ visits", "SUM")]
    (finding,) = sound.run(TRIALS)
    assert isinstance(finding, Finding)
    assert finding.is_defect, finding


def _of_unknown_keys(audit: Audit) -> list[Finding]:
    audit.questions = [q for q in audit.questions if q.keys == "unknown"]
    findings = [finding for finding in audit.run(TRIALS) if isinstance(finding, Finding)]
    assert findings
    return findings


def test_unknown_keys_show_no_more_than_they_cost(sound: Audit) -> None:
    """False alarms: less than two in a million for each question, as for every other."""
    for finding in _of_unknown_keys(sound):
        assert finding.has_power, finding
        assert finding.shown <= finding.claimed, finding
        assert finding.shown_delta <= finding.claimed_delta, finding


def test_several_unknown_keys_that_are_not_clipped_together_are_shown(
    sound: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_clipped(_: object, pipeline: Pipeline, *__: object) -> Pipeline:
        return pipeline

    monkeypatch.setattr("dpsql.lowering.steps.clipped", not_clipped)
    for finding in _of_unknown_keys(sound):
        # One person counts once in each of its keys, and these are limited before: that needs no clip.
        counts_units = finding.question.aggregate == "COUNT(DISTINCT unit)"
        assert (finding.shown > finding.claimed) != counts_units, finding


def test_a_threshold_that_is_a_little_too_low_is_shown(sound: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*args: Any) -> tuple[Noise, int]:
        noise, least = selecting(*args)
        return noise, least * 85 // 100

    monkeypatch.setattr("dpsql.privacy.mechanisms.partition_selection.selecting", lower)
    for finding in _of_unknown_keys(sound):
        assert finding.shown_delta > finding.claimed_delta, finding


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[Path]:
    """A policy of the toy data on a PostgreSQL server."""
    with closing(Server(16)) as server:
        with server.connect() as connection, duckdb.connect(str(folder / "toy.duckdb"), read_only=True) as data:
            fill(connection, data)
        text = "\n".join((POLICIES / part).read_text() for part in ("zcdp.toml", "tables.toml"))
        path = folder / "on_postgres.toml"
        path.write_text(text.replace('"duckdb:///toy.duckdb"', f'"{server.url()}"\nledger = "toy.ledger"'))
        yield path


@pytest.mark.parametrize("sampler", [SystemSampler(), HalfTheNoise()], ids=["sound", "defective"])
def test_a_policy_on_postgres_is_audited_in_its_own_dialect(postgres: Path, sampler: Sampler) -> None:
    for made in audited(postgres.parent, postgres.stem, sampler):
        assert all(type(engine).__name__ == "PostgresEngine" for pair in made.pairs.values() for engine in pair)
        for finding in made.run(TRIALS):
            assert isinstance(finding, Finding)
            assert finding.has_power
            assert finding.is_defect == isinstance(sampler, HalfTheNoise), finding


def test_nothing_remains_of_the_server_of_an_audit(tmp_path: Path) -> None:
    from dpsql.engines.postgres.scratch import PostgresServer

    cluster = Cluster(tmp_path)
    with PostgresServer(tmp_path):
        assert cluster.data.exists()
    assert not cluster.data.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "small.toml").write_text(
        '[database]\nurl = "duckdb:///toy.duckdb"\n[privacy]\nepsilon = 4\ndelta = 1e-6\n[users.alice]\n'
        '[tables.people]\nunit = "id"\n[tables.people.columns]\nchildren = { min = 0, max = 10 }\nsmoker = {}\n'
    )
    monkeypatch.chdir(folder)
    options = ["audit", "--policy", "small.toml", "--trials", "1000"]
    found = CliRunner().invoke(commands, [*options, "--picture", "audit.svg"])
    assert found.exit_code == 0, found.output
    assert "reveal more than their price" in found.stdout
    assert (folder / "audit.svg").read_text().startswith("<svg")
    document = json.loads(CliRunner().invoke(commands, [*options, "--format", "json"]).stdout)
    assert document["currency"] == "rho"
    assert {finding["aggregate"] for finding in document["findings"]} >= {"COUNT(*)", "SUM", "AVG", "STDDEV"}
    assert not any(finding["defect"] for finding in document["findings"])
