"""Many clients for minutes, while twin and server die and come back: python -m tests.soak [--seconds N] [--clients N].

First the server lives and the twin is killed now and then: memory, files and threads must stay where they are. Then the
server itself is stopped and killed in turn. Shared questions must have one answer for everybody all the time, nothing
may fail otherwise than it should, and in the end nobody's session is left and the ledger adds up.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psycopg

from dpsql.answering.open_dataset import open_dataset
from dpsql.ledger.sql_ledger import SqlLedger
from tests.server import process
from tests.server.process import USERS, Serving, eventually, free_port, home, write_clinic

# What everybody asks, and is told the same.
SHARED = (
    "SELECT COUNT(*) FROM people",
    "SELECT state, COUNT(*), AVG(income) FROM people GROUP BY state ORDER BY state",
    "SELECT MEDIAN(age) FROM people",
    "SELECT kind, SUM(fee) FROM visits GROUP BY kind ORDER BY kind",
    "SELECT COUNT(*) FROM people p JOIN visits v ON v.patient_id = p.id",
    "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)",
)
# What costs, each time something else; what is free; and what is refused, with its code.
OWN = "SELECT COUNT(*), SUM(age) FROM people WHERE age <> {}"
FREE = ("SELECT 1", "EXPLAIN SELECT COUNT(*) FROM people", "SELECT * FROM dpsql.budget", "SHOW dpsql.epsilon")
REFUSED = {
    "SELECT age FROM people": "42501",
    "SELECT nothing FROM people": "42703",
    "DELETE FROM people": "25006",
    "SELECT COUNT(* FROM people": "42601",
}
ENDED = ("57P01", "57P02", "57P03", "57P05", "53300", None)  # the session, by a restart
GROWTH = 1.3  # of memory, from the second quarter to the last


@dataclass(slots=True)
class Seen:
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answers: dict[str, object] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, outcome: str, wrong: str | None = None) -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            if wrong is not None:
                self.wrong.append(wrong)

    def compare(self, sql: str, rows: object) -> None:
        with self.lock:
            known = self.answers.setdefault(sql, rows)
        self.note("answered", None if known == rows else f"another answer to {sql}: {rows}, {known}")


class Client(threading.Thread):
    def __init__(self, number: int, port: int, seen: Seen, until: threading.Event) -> None:
        super().__init__(daemon=True)
        self._random = random.Random(number)
        self._user = USERS[number % len(USERS)]
        self._port = port
        self._seen = seen
        self._until = until

    def run(self) -> None:
        while not self._until.is_set():
            try:
                self._visit()
            except psycopg.Error as error:
                outcome = f"lost or not let in ({error.sqlstate or 'no server'})"
                self._seen.note(outcome, None if error.sqlstate in ENDED else f"{error.sqlstate}: {error}")
                self._until.wait(0.2)
            except Exception as error:
                self._seen.note("failed", f"{type(error).__name__}: {error}")

    def _visit(self) -> None:
        given = {"host": "127.0.0.1", "port": self._port, "user": self._user, "dbname": "dpsql", "sslmode": "disable"}
        with psycopg.connect(**given, password="correct horse", autocommit=True) as connection:  # type: ignore[arg-type]  # noqa: S106
            for _ in range(self._random.randrange(1, 40)):
                if self._until.is_set():
                    return
                self._ask(connection)
            if self._random.random() < 0.2:
                connection.pgconn.finish()

    def _ask(self, connection: psycopg.Connection) -> None:
        match self._random.randrange(10):
            case 0:
                self._refused(connection)
            case 1:
                connection.execute(self._random.choice(FREE).encode()).fetchall()
                self._seen.note("free")
            case 2:
                connection.execute(OWN.format(self._random.randrange(10**6)).encode()).fetchall()
                self._seen.note("bought")
            case 3:
                with connection.transaction(), connection.cursor("c") as cursor:
                    cursor.execute(SHARED[1].encode())
                    self._seen.compare(SHARED[1], cursor.fetchmany(2) + cursor.fetchall())
            case 4:
                with connection.cursor().copy(f"COPY ({SHARED[0]}) TO STDOUT".encode()) as copy:
                    self._seen.compare(f"COPY {SHARED[0]}", b"".join(map(bytes, copy)))
            case _:
                sql = self._random.choice(SHARED)
                self._seen.compare(sql, connection.execute(sql.encode(), prepare=True).fetchall())

    def _refused(self, connection: psycopg.Connection) -> None:
        sql, code = self._random.choice(list(REFUSED.items()))
        try:
            connection.execute(sql.encode())
        except psycopg.Error as error:
            if error.sqlstate != code:
                raise
            self._seen.note("refused")
        else:
            self._seen.note("failed", f"not refused: {sql}")


@dataclass(frozen=True, slots=True)
class Size:
    """Of the server's process."""

    megabytes: float
    files: int
    threads: int


def size_of(pid: int) -> Size:
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Size(int(facts["VmRSS"].split()[0]) / 1_024, files, int(facts["Threads"]))


def watched(serving: Serving, seconds: float, pause_of_twin: float) -> list[Size]:
    """What the server's process was like, each half second; the twin is killed now and then."""
    sizes = []
    began = time.monotonic()
    killed = 0
    while (passed := time.monotonic() - began) < seconds:
        sizes.append(size_of(serving.process.pid))
        if passed > (killed + 1) * pause_of_twin:
            killed += 1
            with suppress(OSError, ValueError, IndexError):  # it is being started just now
                os.kill(serving.twin_pid(), signal.SIGKILL)
        time.sleep(0.5)
    return sizes


def grown(sizes: list[Size]) -> list[str]:
    """What was more in the last quarter than in the second."""
    quarter = max(len(sizes) // 4, 1)
    early, late = sizes[quarter : 2 * quarter], sizes[-quarter:]
    found = []
    for name in ("megabytes", "files", "threads"):
        before, after = (median(getattr(size, name) for size in part) for part in (early, late))
        if after > before * GROWTH + 10:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def soak(seconds: float, clients: int, restarts: int) -> tuple[Seen, list[str]]:
    """What was seen, and the lines that tell of it."""
    seen, until, port = Seen(), threading.Event(), free_port()
    with home() as folder:
        # A purse for some hundred thousand questions.
        policy = write_clinic(folder, server=f"max_connections = {clients + 20}")
        policy.write_text(policy.read_text().replace("query_epsilon = 1.0", "query_epsilon = 0.01"))
        crowd = [Client(number, port, seen, until) for number in range(clients)]
        with Serving(policy, "--port", str(port)) as serving:
            for client in crowd:
                client.start()
            share = seconds * 0.7 if restarts else seconds
            sizes = watched(serving, share, share / 3)
            seen.wrong += grown(sizes)
            if restarts:
                serving.stop()
        for number in range(restarts):
            with Serving(policy, "--port", str(port)) as serving:
                time.sleep(seconds * 0.3 / restarts)
                if number % 2 == 0:
                    serving.process.kill()
                    serving.process.wait()
        with Serving(policy, "--port", str(port)) as serving:
            before = sum(seen.outcomes.values())
            eventually(lambda: sum(seen.outcomes.values()) > before + clients)
            until.set()
            for client in crowd:
                client.join(60)
            seen.wrong += [f"{client.name} does not end" for client in crowd if client.is_alive()]
            eventually(lambda: serving.twin_sessions() == 0)
        with closing(open_dataset(policy)) as dataset:
            assert isinstance(dataset.ledger, SqlLedger)
            seen.wrong += dataset.ledger.verify()
            charges = serving.charges()
        if charges < seen.outcomes["bought"]:
            seen.wrong.append(f"{seen.outcomes['bought']} answers were bought, and {charges} charges recorded")
    least, most = (getter(size.megabytes for size in sizes) for getter in (min, max))
    lines = [
        f"{clients} clients, {seconds:.0f} s, {restarts} restarts of the server",
        ", ".join(f"{count:,} {name}" for name, count in seen.outcomes.most_common()) + f"; {charges:,} charges",
        f"memory {least:.0f} to {most:.0f} MB, at the end {sizes[-1].megabytes:.0f}; "
        f"{sizes[-1].files} files, {sizes[-1].threads} threads",
    ]
    return seen, lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=4)
    options = parser.parse_args()
    process.PATIENCE = 300.0  # a machine that is busy with all the clients takes long to start anything
    seen, lines = soak(options.seconds, options.clients, options.restarts)
    print("\n".join(lines))
    for wrong, count in Counter(seen.wrong).most_common(20):
        print(f"WRONG {count} times: {wrong}")
    return 1 if seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
