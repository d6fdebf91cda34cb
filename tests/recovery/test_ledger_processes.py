"""Many processes on one ledger, some killed at any moment: nothing is overdrawn, nothing acknowledged is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from dpsql.errors import BudgetExhausted
from dpsql.ledger import Purchase, sqlite
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.privacy.accounting import Price

PRICE = Price(3, 2)
ENDLESS = Price(10**12, 10**12)

# A process of its own, not a fork of this one. It prints a line for each charge that was acknowledged.
WORKER = """
import sys
from pathlib import Path
from tests.recovery.test_ledger_processes import work
work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


def open_ledger(path: Path, total: Price) -> SqliteLedger:
    return SqliteLedger.open(
        path, dataset="people", accounting="zcdp", total=total, allowances={"alice": None, "bob": None}, create=True
    )


def work(path: Path, worker: int, total: int) -> None:
    """Wait for the word, then open the ledger and charge until the budget is exhausted."""
    sqlite.CHECKPOINT_BYTES = 50_000  # often enough to be killed and raced in one, too
    print("ready", flush=True)
    sys.stdin.readline()
    ledger = open_ledger(path, Price(total, total))
    number = 0
    try:
        while True:
            number += 1
            key = worker.to_bytes(16, "big") + number.to_bytes(16, "big")
            ledger.charge("alice", [Purchase(key, PRICE, replay=False)], sql=f"{worker}:{number}")
            print(f"{worker}:{number}", flush=True)
            ledger.store(key, b"answer")
    except BudgetExhausted:
        ledger.close()


def start(path: Path, worker: int, total: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(worker), str(total)],
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


def test_eight_processes_spend_one_total_exactly(tmp_path: Path) -> None:
    """All eight also race to create the ledger."""
    path = tmp_path / "ledger"
    total = 500  # 166 charges of 3, and 2 left over
    processes = [start(path, worker, total) for worker in range(8)]
    for process in processes:
        release(process)
    seen = [line for process in processes for line in acknowledged(process)]
    assert [process.returncode for process in processes] == [0] * 8
    assert len(seen) == len(set(seen)) == 166
    with closing(open_ledger(path, Price(total, total))) as ledger:
        assert ledger.spent() == ledger.spent("alice") == Price(498, 332)
        assert {entry.sql for entry in ledger.history(limit=1000)} == set(seen)
        assert ledger.verify() == []
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


def test_a_killed_process_loses_no_acknowledged_charge(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    rng = random.Random(0)
    promised: set[str] = set()
    for round_ in range(6):
        processes = [start(path, 10 * round_ + worker, ENDLESS.loss) for worker in range(2)]
        for process in processes:
            release(process)
        for process in processes:
            time.sleep(rng.uniform(0, 0.15))  # now and then before the ledger even exists
            process.send_signal(signal.SIGKILL)
        seen = [set(acknowledged(process)) for process in processes]
        promised |= seen[0] | seen[1]
        with closing(open_ledger(path, ENDLESS)) as ledger:
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
