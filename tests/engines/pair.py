"""The toy data of the grammar tests on two engines."""

from __future__ import annotations

import uuid

import duckdb

from dpsql.compliance.cases import all_cases
from dpsql.compliance.lab import Lab, ToyDataset, open_database
from dpsql.engines.base import Engine
from dpsql.engines.postgres.engine import PostgresEngine
from grammar_tests.servers import Server
from grammar_tests.toy_postgres import fill

ACCEPTED = [case for case in all_cases() if not case.expected.startswith("reject") and case.fails is None]


class Pair:
    """The toy data on two engines: clean under every policy, and dirty."""

    def __init__(self, lab: Lab, server: Server) -> None:
        self.lab = lab
        self._server = server
        self._datasets: dict[str, ToyDataset] = {}
        # Workers share a server.
        self._names = {name: f"{name}_{uuid.uuid4().hex[:8]}" for name in ("toy", "dirty")}
        for name, database in self._names.items():
            server.create_database(database)
            with server.connect(database) as connection, duckdb.connect(":memory:") as data:
                data.execute(f"ATTACH '{lab.directory / f'{name}.duckdb'}' AS source (READ_ONLY)")
                data.execute("USE source")
                fill(connection, data)
        self.dirty_duckdb: Engine = open_database(lab.directory / "dirty.duckdb")
        self.dirty_postgres: Engine = self._open("dirty")
        self.dirty_postgres.schema()

    def dataset(self, policy: str) -> ToyDataset:
        if policy not in self._datasets:
            self._datasets[policy] = ToyDataset(self.lab.directory, policy, self._open("toy"))
        return self._datasets[policy]

    def close(self) -> None:
        for dataset in self._datasets.values():
            dataset.close()
        self.dirty_duckdb.close()
        self.dirty_postgres.close()

    def _open(self, database: str) -> Engine:
        return PostgresEngine(self.url(database), memory="64MB", threads=1)

    def url(self, database: str) -> str:
        return self._server.url(self._names[database])
