"""dpsql itself, in process: for every run a new ledger whose whole budget the queries of the case share.

Rows that a salt chooses are chosen anew in every 25th run; the noise is drawn in each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import bind_all, open_backend
from dpsql.answering.session import Session
from dpsql.engines.base import Engine
from dpsql.errors import Error
from dpsql.ledger.opening import open_ledger
from dpsql.lowering.query import EngineQuery
from dpsql.noise.samplers import SystemSampler
from dpsql.policy.load import load
from dpsql.policy.model import Catalog, Policy
from dpsql.privacy.accounting import Accountant
from dpsql.tables import ExactTable
from tests.accuracy.asked import Aggregate, Answers, Case, Condition, Query, Table
from tests.accuracy.data import AccuracyData

_ANEW = 25


class _Remembering:
    """An engine that need not read the same rows for every run: but for the salt, its exact tables are the same."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, ExactTable] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def execute(self, queries: Sequence[EngineQuery], **limits: Any) -> list[ExactTable]:
        keys = [repr((query.sql, sorted({**query.parameters, "salt": ""}.items()))) for query in queries]
        if not all(key in self._known for key in keys):
            self._known |= zip(keys, self._engine.execute(queries, **limits), strict=True)
        return [self._known[key] for key in keys]


def answers(case: Case, dataset: AccuracyData, runs: int) -> Answers:
    table = dataset.tables[case.table]
    policy = load(dataset.policy(case.accounting, unknown=case.unknown))
    texts = [written(query, table) for query in case.queries]
    found: list[list[list[list[Any]]]] = [[] for _ in texts]
    with closing(open_backend(policy)) as engine:
        catalog = bind_all(policy, engine)
        try:
            for run in range(runs):
                if run % _ANEW == 0:
                    remembering = cast(Engine, _Remembering(engine))
                with _new(policy, catalog, remembering) as session:
                    session.settings.epsilon = share(session.dataset.accountant, len(texts))
                    for query, text, rows in zip(case.queries, texts, found, strict=True):
                        answer = session.execute(text)
                        assert isinstance(answer, Answer)
                        rows.append(_rows(answer.table.rows, query))
        except Error as refusal:
            return Answers(refused=f"{refusal.sqlstate}: {refusal}")
    return Answers(found)


@contextmanager
def _new(policy: Policy, catalog: Catalog, engine: Engine) -> Iterator[Session]:
    """The same data under a ledger that nothing was paid from, and that remembers nothing."""
    with tempfile.TemporaryDirectory() as folder:
        accountant = Accountant(policy.privacy)
        elsewhere = replace(policy, ledger=Path(folder) / "ledger")
        with closing(open_ledger(elsewhere, accountant, catalog.protection, new_ledger=True)) as ledger:
            yield Session(Dataset(catalog, accountant, engine, ledger, SystemSampler(), policy.limits), "analyst")


def share(accountant: Accountant, queries: int) -> Fraction:
    """The largest price, in millionths of epsilon, that can be paid so many times."""
    low, high = 0, int(accountant.policy.epsilon * 10**6)
    while low < high:
        middle = (low + high + 1) // 2
        if accountant.price_of(Fraction(middle, 10**6)) * queries <= accountant.total.loss:
            low = middle
        else:
            high = middle - 1
    return Fraction(low, 10**6)


def written(query: Query, table: Table) -> str:
    """The query in SQL."""
    selected = [*query.by, *(_aggregate(aggregate, table) for aggregate in query.aggregates)]
    where = " AND ".join(_condition(condition) for condition in query.where)
    return (
        f"SELECT {', '.join(selected)} FROM {table.name}"
        + (f" WHERE {where}" if where else "")
        + (f" GROUP BY {', '.join(query.by)}" if query.by else "")
    )


def _aggregate(aggregate: Aggregate, table: Table) -> str:
    column = table.columns[aggregate.column].expression if aggregate.column in table.columns else ""
    column = column or aggregate.column
    match aggregate.kind:
        case "count":
            return "COUNT(*)"
        case "count distinct":
            return f"COUNT(DISTINCT {column})"
        case "quantile":
            return f"PERCENTILE_CONT({aggregate.at}) WITHIN GROUP (ORDER BY {column})"
        case kind:
            return f"{kind.upper()}({column})"


def _condition(condition: Condition) -> str:
    column, sign, value = condition
    return f"{column} {sign} " + (f"DATE '{value}'" if isinstance(value, str) else str(value))


def _rows(rows: Any, query: Query) -> list[list[Any]]:
    keys = len(query.by)
    if query.unknown:
        return [[list(row[:keys]), []] for row in rows]
    return [[list(row[:keys]), [_number(value) for value in row[keys:]]] for row in rows]


def _number(value: object) -> float | None:
    assert value is None or isinstance(value, int | float | Decimal)
    return None if value is None else float(value)
