"""A move that is killed at any moment leaves one live ledger or none, and is finished by the next."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dpsql.errors import PolicyError
from dpsql.ledger.migrate import move_ledger
from dpsql.policy.address import PostgresAddress
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.ledger_places import Server, buy, reopen, rows

MANY = 150
MOVER = """
import sys
from tests.recovery.test_ledger_moving import move, place_of
print("ready", flush=True)
sys.stdin.readline()
move(place_of(sys.argv[1]), place_of(sys.argv[2]))
"""


def place_of(text: str) -> LedgerLocation:
    return PostgresAddress(text) if "://" in text else Path(text)


def text_of(place: LedgerLocation) -> str:
    return str(place) if isinstance(place, Path) else place.url


def move(source: LedgerLocation, target: LedgerLocation) -> None:
    move_ledger(source, target, dataset="people", accounting="zcdp")


def spent_where_charged(place: LedgerLocation) -> int | None:
    """What is spent after one more charge; None where it cannot be charged."""
    try:
        with closing(reopen(place, total=Price(10**6), allowances={"bob": None})) as ledger:
            ledger.charge("bob", [buy(10**6 + ledger.spent().loss, 1)], sql="q")
            return ledger.spent().loss
    except PolicyError:
        return None


def killed_after(seconds: float, source: LedgerLocation, target: LedgerLocation) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MOVER, text_of(source), text_of(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("to_server", [True, False])
def test_a_killed_move_is_finished_by_the_next(ledger_server: Server, tmp_path: Path, to_server: bool) -> None:
    rng = random.Random(0)
    for round_ in range(2):
        places: list[LedgerLocation] = [tmp_path / f"ledger {round_}", ledger_server.empty_database()]
        source, target = places if to_server else reversed(places)
        with closing(reopen(source, create=True, total=Price(10**6), allowances={"bob": None})) as ledger:
            for number in range(MANY):
                ledger.charge("bob", [buy(number, 1)], sql=str(number))
        spent = MANY
        for _ in range(2):
            killed_after(rng.uniform(0, 0.3), source, target)
            found = [spent_where_charged(place) for place in (source, target)]
            assert None in found
            for now in found:
                assert now in (None, spent + 1)
            spent = max((now for now in found if now is not None), default=spent)
        with suppress(PolicyError):  # it was moved already, where a killed one had come to its end
            move(source, target)
        assert spent_where_charged(source) is None
        assert spent_where_charged(target) == spent + 1
        assert rows(target, "SELECT COUNT(*) FROM charges") == [(spent + 1,)]
