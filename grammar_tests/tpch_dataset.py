"""A dpsql over TPC-H data, without noise."""

from __future__ import annotations

from pathlib import Path

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import bind_all
from dpsql.answering.session import Session
from dpsql.compliance.cases import Case
from dpsql.compliance.lab import Purse, RecordingBackend, ZeroNoise, open_database
from dpsql.errors import Error
from dpsql.lowering.query import EngineQuery
from dpsql.policy.load import load
from dpsql.privacy.accounting import Accountant
from grammar_tests import expectation


class TpchDataset:
    """TPC-H data under its policy."""

    def __init__(self, path: Path) -> None:
        declared = load(path)
        self._engine = RecordingBackend(open_database(path.parent / "tpch.duckdb"))
        accountant = Accountant(declared.privacy)
        catalog = bind_all(declared, self._engine)
        purse = Purse(accountant.total)
        self._dataset = Dataset(catalog, accountant, self._engine, purse, ZeroNoise(), declared.limits)

    def expected(self, case: Case) -> str:
        """What should stand under the dashes."""
        try:
            release = Session(self._dataset, "analyst").release(case.sql)
        except Error as error:
            return expectation.refused(error)
        return expectation.accepted(release, self._dataset.accountant, rewrite=False)

    def answer(self, sql: str) -> tuple[Answer, list[list[EngineQuery]]]:
        self._engine.asked.clear()
        answer = Session(self._dataset, "analyst").execute(sql)
        assert isinstance(answer, Answer)
        return answer, list(self._engine.asked)

    def close(self) -> None:
        self._dataset.close()
