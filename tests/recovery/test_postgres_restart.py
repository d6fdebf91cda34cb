"""The server goes away and comes back: queries in between fail with our own error, those after it are answered."""

from __future__ import annotations

from contextlib import closing

import pytest

from dpsql.engines.postgres.engine import PostgresEngine
from dpsql.errors import EngineFailed
from dpsql.lowering.query import EngineQuery
from grammar_tests.servers import Server

QUERY = EngineQuery("SELECT count(*) FROM public.people", 0, sources=(("public", "people"),))


def test_a_restart_of_the_server_is_survived() -> None:
    with closing(Server(18)) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE people (id integer PRIMARY KEY); INSERT INTO people VALUES (1), (2)")
        with closing(PostgresEngine(server.url(), memory="64MB", threads=1)) as engine:
            engine.schema()
            assert engine.execute([QUERY], timeout=30)[0].sums[0].tolist() == [2]
            server.stop()
            for _ in range(2):
                with pytest.raises(EngineFailed):
                    engine.execute([QUERY], timeout=30)
            server.start()
            assert engine.execute([QUERY], timeout=30)[0].sums[0].tolist() == [2]
