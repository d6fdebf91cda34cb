"""An audit from outside: what an analyst sees, asked often enough, proves no more loss than was paid for.

Thousands of groups per answer are thousands of trials. Table `with_unit` holds one unit more in every group than table
`without_unit`; no unit is in two groups, so each group is a pair of neighbours of its own, at the price of the query.
That a bound lies near the claim shows that the audit sees; that half the noise is noticed shows it again.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pytest

from dpsql.answering.answer_store import StoredAnswer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import build_dataset, open_backend
from dpsql.answering.reuse import AnswerReuse
from dpsql.audit.losses import Seen, Trials, audited, beside_delta, epsilon, rho
from dpsql.noise.samplers import Exact, Losses, Sampler, SystemSampler
from dpsql.policy.load import load
from dpsql.privacy.noise_laws import Noise, selecting
from dpsql.release import QuerySettings
from dpsql.tables import Integers

GROUPS = 5_000
ANSWERS = 4
OTHERS = 4  # units in a group beside the one that comes and goes; one below the threshold of unknown keys
DELTA = Fraction(2, 100)
BLIND = 0.3  # a bound below this share of the claim proves nothing


class HalfTheNoise:
    """A planted defect: scales are half of what was paid for, or less."""

    def __init__(self) -> None:
        self._inner = SystemSampler()

    def discrete_laplace(self, scale: Fraction, size: int) -> Integers:
        return self._inner.discrete_laplace(scale / 2, size)

    def discrete_gaussian(self, variance: Fraction, size: int) -> Integers:
        return self._inner.discrete_gaussian(variance / 4, size)

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        # A third: a part of the price of a median buys a count of its rows, in which the defect does not show.
        return self._inner.exponential(widths, losses, scale / 3, exact)

    def salt(self) -> str:
        return self._inner.salt()


POLICY = """
[database]
url = "duckdb:///groups.duckdb"

[privacy]
epsilon = 1_000.0
delta = 0.99
accounting = "{accounting}"
{more}

[users.auditor]
"""
TABLE = """
[tables.{name}]
unit = "id"
[tables.{name}.columns]
g = {{ min = 0, max = 4_999 }}
word = {{}}
x = {{ min = 0, max = 10 }}
y = {{ min = -20, max = 2 }}
"""


Form = Literal["basic", "zcdp", "pure"]  # the last: zcdp, with pure answers

# So many that the noisy count of a group leaves no doubt that it has a median.
CROWD = 41

# Others in a group, and whether the unit is there that comes and goes.
TABLES = {
    "with_unit": (OTHERS, True),
    "without_unit": (OTHERS, False),
    "crowd_with_unit": (CROWD, True),
    "crowd": (CROWD, False),
    "alone": (0, True),
    "nobody": (0, False),
}


@dataclass(frozen=True, slots=True)
class Audit:
    """The engine under audit and the price of one answer."""

    dataset: Dataset
    accounting: Form

    @property
    def settings(self) -> QuerySettings:
        if self.accounting == "pure":
            return QuerySettings(epsilon=Fraction(1), pure=True)
        # In zcdp an epsilon of 2 at the conversion's delta of 0.09 is a rho of about one half.
        return QuerySettings(epsilon=Fraction(1 if self.accounting == "basic" else 2), delta=DELTA)

    def trials(self, sql: str, table: str, settings: QuerySettings | None = None) -> Trials:
        """The second column of several fresh answers, one trial for each group; NaN where a group is missing."""
        found = np.full((ANSWERS, GROUPS), math.nan)
        text = sql.format(table=table)
        release = self.dataset.compile(text, (), settings or self.settings)
        for answer in found:
            for group, value in self.dataset.answer(release, user="auditor", sql=text, fresh=True).table.rows:
                assert isinstance(group, int | str)
                answer[int(group)] = math.nan if value is None else value
        return found.reshape(-1)

    def loss(self, sql: str, with_unit: str, without_unit: str) -> float:
        """What the answers prove, as a share of what was paid; what delta allows, the noise need not hide."""
        one, other = self.trials(sql, with_unit), self.trials(sql, without_unit)
        price = self.dataset.compile(sql.format(table=with_unit), (), self.settings).price
        paid, delta = float(price.pure_value or price.loss_value), float(price.delta_value)
        if self.accounting != "zcdp":
            return audited(one, other, beside_delta(epsilon, delta)) / paid
        # Rho goes with the square of the distance between the two laws, epsilon with the distance.
        return math.sqrt(max(audited(one, other, beside_delta(rho, delta)), 0) / paid)


@pytest.fixture(scope="module")
def groups_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "groups.duckdb"
    with duckdb.connect(str(path)) as connection:
        for name, (others, target) in TABLES.items():
            connection.execute(
                f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, g INTEGER, word VARCHAR, x DOUBLE, y INTEGER)"
            )
            connection.execute(
                f"INSERT INTO {name} SELECT i, i % {GROUPS}, CAST(i % {GROUPS} AS VARCHAR), 0,"
                f" CASE sign(i // {GROUPS} - {others // 2}) WHEN -1 THEN -20 WHEN 0 THEN 0 ELSE 2 END"
                f" FROM range({others * GROUPS}) AS t(i)"
            )
            if target:
                connection.execute(
                    f"INSERT INTO {name} SELECT {others * GROUPS} + i, i, CAST(i AS VARCHAR), 10, 2"
                    f" FROM range({GROUPS}) AS t(i)"
                )
    return path


def opened(directory: Path, database: Path, accounting: Form, sampler: Sampler) -> Audit:
    shutil.copy(database, directory / database.name)
    policy_path = directory / "dpsql.toml"
    more = {"basic": "", "zcdp": "key_delta = 0.9", "pure": "key_delta = 0.9\npure = true"}[accounting]
    head = POLICY.format(accounting="basic" if accounting == "basic" else "zcdp", more=more)
    policy_path.write_text(head + "".join(TABLE.format(name=name) for name in TABLES))
    policy = load(policy_path)
    return Audit(build_dataset(policy, open_backend(policy), sampler), accounting)


@pytest.fixture(params=["basic", "zcdp"])
def accounting(request: pytest.FixtureRequest) -> Form:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def each_answer_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined with earlier answers to the same question, one would show what was paid for all of them."""

    def as_bought(self: AnswerReuse, measurement: object, bought: StoredAnswer, older: object) -> StoredAnswer:
        return bought

    monkeypatch.setattr(AnswerReuse, "combined", as_bought)


@pytest.fixture
def audit(tmp_path: Path, groups_database: Path, accounting: Form) -> Iterator[Audit]:
    found = opened(tmp_path, groups_database, accounting, SystemSampler())
    yield found
    found.dataset.close()


@pytest.fixture
def defective(tmp_path: Path, groups_database: Path, accounting: Form) -> Iterator[Audit]:
    found = opened(tmp_path, groups_database, accounting, HalfTheNoise())
    yield found
    found.dataset.close()


QUESTIONS = {
    "COUNT": ("SELECT g, COUNT(*) FROM {table} GROUP BY g", "with_unit", "without_unit"),
    "SUM": ("SELECT g, SUM(x) FROM {table} GROUP BY g", "with_unit", "without_unit"),
    # A mean of one value or of none: its noisy count decides whether there is a mean at all.
    "AVG": ("SELECT g, AVG(x) FROM {table} GROUP BY g", "alone", "nobody"),
    # One of the others is in the middle. One more above: candidates below the middle become worse, those above better.
    "MEDIAN": ("SELECT g, MEDIAN(y) FROM {table} GROUP BY g", "crowd_with_unit", "crowd"),
    # As many units as the threshold asks, and one less: whether a key comes out is the question.
    "unknown keys": ("SELECT word, COUNT(*) FROM {table} GROUP BY word", "with_unit", "without_unit"),
}


PURE = {name: question for name, question in QUESTIONS.items() if name != "unknown keys"}


@pytest.mark.parametrize("question", PURE.values(), ids=PURE)
def test_pure_answers_prove_no_more_than_was_paid(tmp_path: Path, groups_database: Path, question: Any) -> None:
    with closing(opened(tmp_path, groups_database, "pure", SystemSampler()).dataset) as dataset:
        assert BLIND < Audit(dataset, "pure").loss(*question) <= 1


def test_half_the_noise_of_a_pure_answer_is_noticed(tmp_path: Path, groups_database: Path) -> None:
    with closing(opened(tmp_path, groups_database, "pure", HalfTheNoise()).dataset) as dataset:
        assert Audit(dataset, "pure").loss(*QUESTIONS["COUNT"]) > 1


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_answers_prove_no_more_than_was_paid(audit: Audit, question: tuple[str, str, str]) -> None:
    assert BLIND < audit.loss(*question) <= 1


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_half_the_noise_is_noticed(defective: Audit, question: tuple[str, str, str]) -> None:
    assert defective.loss(*question) > 1


# At a low price noise is wide, and one unit more in the threshold changes little: delta is nearly used up.
CHEAP = QuerySettings(epsilon=Fraction(1, 4), delta=DELTA)


def _shown_alone(audit: Audit) -> Seen:
    """How often the key of a single unit came out. Without that unit it never does: there is no such key."""
    sql = "SELECT word, COUNT(*) FROM {table} GROUP BY word"
    assert np.isnan(audit.trials(sql, "nobody", CHEAP)).all()
    shown = ~np.isnan(audit.trials(sql, "alone", CHEAP))
    return Seen(int(np.count_nonzero(shown)), len(shown))


def test_the_key_of_a_single_unit_comes_out_no_more_often_than_delta(audit: Audit) -> None:
    assert BLIND * DELTA < _shown_alone(audit).at_least <= DELTA


def test_a_lower_threshold_is_noticed(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*args: Any) -> tuple[Noise, int]:
        noise, least = selecting(*args)
        return noise, least - 5

    monkeypatch.setattr("dpsql.privacy.mechanisms.partition_selection.selecting", lower)
    assert _shown_alone(audit).at_least > DELTA
