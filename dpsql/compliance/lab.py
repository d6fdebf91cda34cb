"""dpsql over the toy data, on a real DuckDB, but without noise and with an unlimited ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import bind_all
from dpsql.answering.session import Session
from dpsql.compliance.cases import Case
from dpsql.compliance.toy import fill_clean, fill_dirty, policy_text
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.ledger import Closing, Entry, PaidAttempt, Purchase, Receipt, Refusal, Unanswered
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.query import EngineQuery
from dpsql.noise.samplers import Exact, Losses
from dpsql.policy.load import load
from dpsql.policy.model import DatabaseSchema
from dpsql.privacy.accounting import Accountant, Price
from dpsql.tables import ExactTable, Integers
from dpsql.types import Value

USER = "alice"


class ZeroNoise:
    """A sampler without noise and with a fixed salt, so that answers are exact."""

    def discrete_laplace(self, scale: Fraction, count: int) -> Integers:
        del scale
        return np.zeros(count, dtype=np.int64)

    def discrete_gaussian(self, variance: Fraction, count: int) -> Integers:
        del variance
        return np.zeros(count, dtype=np.int64)

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        del scale, exact
        return int(widths[: int(np.argmin(losses))].sum())  # the first of the best

    def salt(self) -> str:
        return "the salt of the grammar tests"


class Purse:
    """A ledger with an unlimited total, so that no case depends on earlier ones. It stores no answers."""

    begun = adopted = False

    def __init__(self, total: Price) -> None:
        self._total = total
        self._spent = Price()

    def charge(
        self, user: str, purchases: Sequence[Purchase], *, sql: str, cancellation: Cancellation | None = None
    ) -> Receipt:
        del user, sql, cancellation
        price = sum((purchase.price for purchase in purchases), Price())
        self._spent += price
        return Receipt(price, None)

    def fail(self, attempts: Sequence[Unanswered]) -> None:
        del attempts

    def paid_attempt(self, key: bytes, price: Price) -> PaidAttempt | None:
        del key, price
        return None

    def spent(self, user: str | None = None) -> Price:
        del user
        return self._spent

    def refuse(self, user: str, sql: str, sqlstate: str, message: str) -> None:
        del user, sql, sqlstate, message

    def remaining(self, user: str) -> Price:
        del user
        return self._total

    def closing(self, user: str, purchases: Sequence[Purchase]) -> list[Closing]:
        del user, purchases
        return []

    def lookup(self, key: bytes) -> bytes | None:
        del key
        return None

    def lookup_all(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        del keys
        return {}

    def has_paid(self, user: str, key: bytes) -> bool:
        del user, key
        return False

    def store(self, key: bytes, answer: bytes, beside: Mapping[bytes, bytes] | None = None) -> None:
        del key, answer, beside

    def history(self, user: str | None = None, limit: int = 100) -> list[Entry]:
        del user, limit
        return []

    def refusals(self, user: str, limit: int = 100) -> list[Refusal]:
        del user, limit
        return []

    def check(self) -> None:
        pass

    def condemn(self, damage: str) -> None:
        del damage

    def verify(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


class RecordingBackend:
    """Records the engine's queries with their parameters, so that they can be repeated on neighbours."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked: list[list[EngineQuery]] = []  # the queries of one measurement each
        self.found: list[list[ExactTable]] = []  # and their results

    @property
    def dialect(self) -> Dialect:
        return self._engine.dialect

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        return self._engine.warnings(sources)

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        self._engine.ready(sources, timeout=timeout, cancellation=cancellation)

    def schema(self) -> DatabaseSchema:
        return self._engine.schema()

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        self.asked.append(list(queries))
        self.found.append(self._engine.execute(queries, timeout=timeout, cancellation=cancellation))
        return self.found[-1]

    def read_public(self, source: tuple[str, ...], columns: Sequence[str], limit: int) -> list[list[Value]]:
        return self._engine.read_public(source, columns, limit)

    def is_unique(self, source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        return self._engine.is_unique(source, columns)

    def close(self) -> None:
        self._engine.close()


def open_database(path: Path) -> DuckDBEngine:
    # A process can open a file with one set of limits only.
    return DuckDBEngine(path, memory="1GB", threads=1)


class ToyDataset:
    """The clean toy data under one policy, in a DuckDB file or on another engine."""

    def __init__(self, directory: Path, policy: str, engine: Engine | None = None, text: str | None = None) -> None:
        path = directory / f"{policy}.toml"
        path.write_text(text or policy_text(policy))
        declared = load(path)
        self.engine = RecordingBackend(engine or open_database(directory / "toy.duckdb"))
        catalog = bind_all(declared, self.engine)
        accountant = Accountant(declared.privacy)
        self.purse = Purse(accountant.total)
        self.dataset = Dataset(catalog, accountant, self.engine, self.purse, ZeroNoise(), declared.limits)

    def session(self, case: Case) -> Session:
        """A session with the settings of the case; raises if one of them is refused."""
        session = Session(self.dataset, USER)
        for setting in case.settings:
            session.execute(setting)
        return session

    def answer(self, case: Case) -> tuple[Answer, list[list[EngineQuery]]]:
        """The answer, and the engine queries of each measurement that is not free."""
        session = self.session(case)
        self.engine.asked.clear()
        self.engine.found.clear()
        answer = session.execute(case.sql, case.params)
        assert isinstance(answer, Answer)
        return answer, list(self.engine.asked)

    def close(self) -> None:
        self.dataset.close()


class Lab:
    """The toy data in a directory, and a dataset for each policy on demand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._datasets: dict[str, ToyDataset] = {}
        for name, fill in (("toy", fill_clean), ("dirty", fill_dirty)):
            with duckdb.connect(str(directory / f"{name}.duckdb")) as connection:
                fill(connection)

    def dataset(self, policy: str) -> ToyDataset:
        if policy not in self._datasets:
            self._datasets[policy] = ToyDataset(self.directory, policy)
        return self._datasets[policy]

    def close(self) -> None:
        for dataset in self._datasets.values():
            dataset.close()
