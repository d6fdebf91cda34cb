"""Many processes on one ledger, some killed at any moment: nothing is overdrawn, nothing acknowledged is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.errors import BudgetExhausted, OperationalError
from dpsql.ledger import Purchase, sqlite
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.policy.address import PostgresAddress
from dpsql.policy.model import LedgerLocation
from dpsql.privacy.accounting import Price
from tests.ledger_places import Server, reopen, rows, shell

PRICE = Price(3, 2)
ENDLESS = Price(10**12, 10**12)

# A process of its own, not a fork of this one. It prints a line for each charge that was acknowledged.
WORKER = """
import sys
from tests.recovery.test_ledger_processes import work
work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
"""


def open_ledger(location: LedgerLocation, total: Price) -> SqlLedger:
    return reopen(location, total=total, allowances={"alice": None, "bob": None}, create=True)


def work(location: str, worker: int, total: int, threads: int) -> None:
    """Wait for the word, then open the ledger and charge until the budget is exhausted."""
    sqlite.CHECKPOINT_BYTES = 50_000  # often enough to be killed and raced in one, too
    print("ready", flush=True)
    sys.stdin.readline()
    ledger = _opened(PostgresAddress(location) if "://" in location else Path(location), Price(total, total))
    with ThreadPoolExecutor(threads) as pool:
        for ended in [pool.submit(spend, ledger, worker, thread) for thread in range(threads)]:
            ended.result()
    ledger.close()


def _opened(location: LedgerLocation, total: Price) -> SqlLedger:
    """Connections may be cut while it is opened, too."""
    for _ in range(200):
        try:
            return open_ledger(location, total)
        except OperationalError:
            time.sleep(0.05)
    return open_ledger(location, total)


def spend(ledger: SqlLedger, worker: int, thread: int) -> None:
    number = 0
    while True:
        number += 1
        name = f"{worker}:{thread}:{number}"
        key = b"".join(part.to_bytes(8, "big") for part in (0, worker, thread, number))
        try:
            ledger.charge("alice", [Purchase(key, PRICE, replay=False)], sql=name)
            # One write, so that no other thread's line is mixed in.
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            ledger.store(key, b"answer")
        except BudgetExhausted:
            return
        except OperationalError:
            time.sleep(0.05)  # the server is down: refused, nothing answered; ask another question later


def start(location: LedgerLocation, worker: int, total: int, threads: int = 1) -> subprocess.Popen[str]:
    where = str(location) if isinstance(location, Path) else location.url
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, where, str(worker), str(total), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def acknowledged(process: subprocess.Popen[str]) -> list[str]:
    """The charges it saw acknowledged before it ended; the last line of a killed process may be cut."""
    output, _ = process.communicate(timeout=60)
    return [line.strip() for line in output.splitlines(keepends=True) if ":" in line and line.endswith("\n")]


def require_exactly(location: LedgerLocation, total: int, processes: Sequence[subprocess.Popen[str]]) -> None:
    """All was spent, by charges that were each acknowledged once."""
    seen = [line for process in processes for line in acknowledged(process)]
    assert [process.returncode for process in processes] == [0] * len(processes)
    charges = total // PRICE.loss
    assert len(seen) == len(set(seen)) == charges
    with closing(open_ledger(location, Price(total, total))) as ledger:
        assert ledger.spent() == ledger.spent("alice") == Price(PRICE.loss * charges, PRICE.delta * charges)
        assert {entry.sql for entry in ledger.history(limit=1000)} == set(seen)
        assert ledger.verify() == []


def test_eight_processes_spend_one_total_exactly(location: LedgerLocation, tmp_path: Path) -> None:
    """All eight also race to create the ledger."""
    total = 500  # 166 charges of 3, and 2 left over
    processes = [start(location, worker, total) for worker in range(8)]
    for process in processes:
        release(process)
    require_exactly(location, total, processes)
    if isinstance(location, Path):
        assert [file.name for file in tmp_path.iterdir()] == [location.name]


def test_two_proxies_with_many_threads_spend_one_total_exactly(location: LedgerLocation) -> None:
    total = 1_000
    processes = [start(location, worker, total, threads=16) for worker in range(2)]
    for process in processes:
        release(process)
    require_exactly(location, total, processes)


def test_a_killed_process_loses_no_acknowledged_charge(location: LedgerLocation) -> None:
    rng = random.Random(0)
    promised: set[str] = set()
    for round_ in range(6 if isinstance(location, Path) else 3):
        processes = [start(location, 10 * round_ + worker, ENDLESS.loss) for worker in range(2)]
        for process in processes:
            release(process)
        for process in processes:
            time.sleep(rng.uniform(0, 0.15))  # now and then before the ledger even exists
            process.send_signal(signal.SIGKILL)
        seen = [set(acknowledged(process)) for process in processes]
        promised |= seen[0] | seen[1]
        with closing(open_ledger(location, ENDLESS)) as ledger:
            recorded = {entry.sql for entry in ledger.history(limit=10**6)}
            assert promised <= recorded
            # Each may have died between the commit and its acknowledgement, once.
            assert len(recorded - promised) <= len(processes)
            promised = recorded
            assert ledger.spent() == Price(PRICE.loss * len(recorded), PRICE.delta * len(recorded))
            assert ledger.verify() == []
            key = bytes([round_]) * 32
            ledger.charge("bob", [Purchase(key, PRICE, replay=False)], sql=f"after {round_}")
            promised.add(f"after {round_}")


def test_killed_while_creating_leaves_no_half_made_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    rng = random.Random(0)
    for round_ in range(5):
        path.unlink(missing_ok=True)
        for leftover in tmp_path.glob("ledger-*"):
            leftover.unlink()
        process = start(path, round_, ENDLESS.loss)
        release(process)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        seen = acknowledged(process)
        with closing(open_ledger(path, ENDLESS)) as ledger:
            assert len(ledger.history(limit=10**6)) - len(seen) in (0, 1)
            assert ledger.verify() == []


# --- the server of a ledger ---


def recorded_since(ledger: SqlLedger, promised: set[str]) -> set[str]:
    """Everything recorded; all that was promised is among it, and the sums are those of the rows."""
    recorded = {entry.sql for entry in ledger.history(limit=10**6)}
    assert promised <= recorded
    assert ledger.spent() == Price(PRICE.loss * len(recorded), PRICE.delta * len(recorded))
    assert ledger.verify() == []
    return recorded


@pytest.fixture
def mortal_server() -> Server:
    return Server()


def test_a_server_that_dies_loses_no_acknowledged_charge(mortal_server: Server) -> None:
    """No charge is made twice either: a question has a name of its own, and each name is recorded once."""
    with closing(mortal_server) as server:
        location = server.new_database()
        open_ledger(location, ENDLESS).close()
        processes = [start(location, worker, ENDLESS.loss, threads=4) for worker in range(2)]
        for process in processes:
            release(process)
        while not rows(location, "SELECT 1 FROM charges LIMIT 1"):  # a busy machine takes its time
            time.sleep(0.05)
        for _ in range(3):
            time.sleep(0.4)
            server.stop("immediate")
            server.start()
        time.sleep(0.4)
        for process in processes:
            process.send_signal(signal.SIGKILL)
        promised = {line for process in processes for line in acknowledged(process)}
        assert promised
        with closing(open_ledger(location, ENDLESS)) as ledger:
            recorded = recorded_since(ledger, promised)
            # A charge that was recorded and never acknowledged: a thread in doubt when its process was killed.
            assert len(recorded - promised) <= 8
            entries = [entry.sql for entry in ledger.history(limit=10**6)]
            assert len(entries) == len(set(entries))


def test_connections_that_are_cut_lose_and_double_nothing(ledger_server: Server) -> None:
    location = ledger_server.empty_database()
    open_ledger(location, ENDLESS).close()
    processes = [start(location, worker, 1_000, threads=4) for worker in range(2)]
    for process in processes:
        release(process)
    with closing(shell(location)) as executioner:
        while any(process.poll() is None for process in processes):
            executioner.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'dpsql ledger' AND datname = current_database() AND random() < 0.2"
            )
            time.sleep(0.05)
    seen = [line for process in processes for line in acknowledged(process)]
    with closing(open_ledger(location, Price(1_000, 1_000))) as ledger:
        recorded = recorded_since(ledger, set(seen))
        assert len(seen) == len(set(seen))
        assert ledger.spent().loss == 999
        assert recorded == set(seen)  # every doubt was resolved, since the server was there to ask
