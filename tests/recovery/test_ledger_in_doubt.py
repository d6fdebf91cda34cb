"""No answer leaves without a charge, and nothing is read for one, when the server of the ledger fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.errors import OperationalError
from dpsql.ledger import postgres
from dpsql.policy.address import PostgresAddress
from tests.cut_wire import Fault, Wire
from tests.ledger_places import Server, rows

COUNT = "SELECT COUNT(*) FROM people"


@pytest.fixture
def books(ledger_server: Server) -> PostgresAddress:
    return ledger_server.empty_database()


@pytest.fixture
def wire(books: PostgresAddress) -> Iterator[Wire]:
    with closing(Wire(books)) as wire:
        yield wire


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine was asked: the real one, watched."""
    asked: list[str] = []
    execute = DuckDBEngine.execute

    def watched(self: DuckDBEngine, *arguments: Any, **options: Any) -> Any:
        asked.append("execute")
        return execute(self, *arguments, **options)

    monkeypatch.setattr(DuckDBEngine, "execute", watched)
    return asked


@pytest.mark.parametrize("fault", Fault)
def test_a_query_whose_charge_is_in_doubt_is_not_asked(
    clinic: Path, books: PostgresAddress, wire: Wire, reads: list[str], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "DOUBT_SECONDS", 0.1)
    clinic.write_text(clinic.read_text().replace("[privacy]", f'ledger = "{wire.address.url}"\n[privacy]'))
    with dpsql.connect(clinic, user="alice", new_ledger=True) as connection, connection.cursor() as cursor:
        wire.fault, wire.fails_for_good = fault, True
        with pytest.raises(OperationalError, match="unknown whether the charge was recorded"):
            cursor.execute(COUNT)
        with pytest.raises(OperationalError, match="cannot be reached"):
            cursor.execute(COUNT)
        assert reads == []
        wire.fails_for_good = False
        cursor.execute(COUNT)
        assert reads == ["execute"]
    charged = rows(books, "SELECT COUNT(*) FROM charges")
    assert charged == ([(1,)] if fault is Fault.LOST else [(2,)])  # what was recorded stands


@pytest.mark.parametrize("fault", Fault)
def test_a_query_whose_charge_is_found_again_is_answered_once(
    clinic: Path, books: PostgresAddress, wire: Wire, reads: list[str], fault: Fault
) -> None:
    clinic.write_text(clinic.read_text().replace("[privacy]", f'ledger = "{wire.address.url}"\n[privacy]'))
    with dpsql.connect(clinic, user="alice", new_ledger=True) as connection, connection.cursor() as cursor:
        wire.fault = fault
        cursor.execute(COUNT)
        answer = cursor.fetchall()
        assert reads == ["execute"]
        cursor.execute(COUNT)
        assert cursor.fetchall() == answer
    assert reads == ["execute"]
    assert rows(books, "SELECT COUNT(*) FROM charges") == [(1,)]
