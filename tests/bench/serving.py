"""The server from outside: the fixed cost over the wire, many connections, logins, memory and the time to start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from tests.bench.figures import Figure, Show, side_by_side
from tests.server.process import Connection, Serving, home, write_clinic

_SECTION = "wire"
_SMALL = "SELECT state, COUNT(*) FROM people GROUP BY state"
_PRICE = "SET dpsql.epsilon = 0.0001"
_CHEAP = f"{_PRICE}; SET client_min_messages = warning"


def _another_small(number: int) -> str:
    return f"SELECT COUNT(*) FROM people WHERE income <= {number}"


def over_the_wire(seconds: float, crowds: list[int], show: Show, arguments: tuple[str, ...] = ()) -> None:
    with home() as folder:
        policy = write_clinic(folder, server="max_connections = 200")
        started = time.perf_counter()
        with Serving(policy, *arguments) as server:
            show(Figure("start-up", "dpsql serve, until it listens", (time.perf_counter() - started) * 1_000, "ms"))
            _fixed(server, seconds, show)
            _logins(server, seconds, show)
            for size in crowds:
                _crowd(server, size, seconds, show)
            show(Figure("memory", "dpsql serve, at its largest", _peak_megabytes(server.process.pid), "MB"))


def command_line(show: Show, repeats: int = 5) -> None:
    with home() as folder:
        asked = ("--policy", str(write_clinic(folder)), "--user", "alice", "SELECT COUNT(*) FROM people")
        commands = {
            "python -c pass": ("-c", "pass"),
            "dpsql --help": ("-m", "dpsql", "--help"),
            "dpsql explain": ("-m", "dpsql", "explain", *asked),
            "dpsql query": ("-m", "dpsql", "query", *asked),
        }
        actions = [partial(_run, arguments, folder) for arguments in commands.values()]
        empty, *others = side_by_side(actions, seconds=0, least=repeats)
        for name, value in zip(list(commands)[1:], others, strict=True):
            show(Figure("start-up", name, value, "ms", empty))


def _run(arguments: Sequence[str], folder: Path) -> None:
    # As installed: Python keeps what it has compiled.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)


def _fixed(server: Serving, seconds: float, show: Show) -> None:
    """Over the wire, and in this process with the same policy, file and ledger."""
    numbers = count(1)
    with (
        server.connect() as fresh,
        server.connect() as replaying,
        closing(open_dataset(server.policy)) as engine,
    ):
        fresh_here, replaying_here = Session(engine, "alice"), Session(engine, "alice")
        fresh_here.execute(_PRICE)
        replaying_here.execute(_PRICE)
        fresh_here.settings.fresh = True
        fresh.execute(_CHEAP)
        fresh.execute("SET dpsql.fresh = on")
        replaying.execute(_CHEAP)
        *asked, passed = side_by_side(
            [
                lambda: fresh.execute(_another_small(next(numbers)).encode()).fetchall(),
                lambda: fresh_here.execute(_another_small(next(numbers))),
                lambda: fresh.execute(_SMALL).fetchall(),
                lambda: fresh_here.execute(_SMALL),
                lambda: replaying.execute(_SMALL).fetchall(),
                lambda: replaying_here.execute(_SMALL),
                lambda: replaying.execute("SELECT 1").fetchall(),
            ],
            seconds=seconds,
        )
    names = ("a new text", "a known text", "an answer replayed")
    for name, over_wire, here in zip(names, asked[::2], asked[1::2], strict=True):
        show(Figure(_SECTION, f"{name}; beside: in process", over_wire, "ms", here))
    show(Figure(_SECTION, "SELECT 1 through the relay", passed, "ms"))


def _logins(server: Serving, seconds: float, show: Show) -> None:
    (login,) = side_by_side([lambda: server.connect().close()], seconds=seconds)
    show(Figure(_SECTION, "logins, one after the other", 1_000 / login, "/s"))


def _crowd(server: Serving, size: int, seconds: float, show: Show) -> None:
    """Statements a second of so many connections at once."""
    with server.connect() as first:
        first.execute(_CHEAP)
        first.execute(_SMALL)  # bought once, for all who replay it
    for name, before, sql in (
        ("fresh answers", "SET dpsql.fresh = on", _SMALL),
        ("replayed answers", "SET dpsql.fresh = off", _SMALL),
        ("SELECT 1 through the relay", "SET dpsql.fresh = off", "SELECT 1"),
    ):
        connections = [server.connect() for _ in range(size)]
        for connection in connections:
            connection.execute(_CHEAP)
            connection.execute(before.encode())
        show(Figure(_SECTION, f"{name}, {size} connections", _rate(connections, sql, seconds), "/s"))
        for connection in connections:
            connection.close()


def _rate(connections: list[Connection], sql: str, seconds: float) -> float:
    done, began = [0] * len(connections), time.perf_counter()

    def ask(place: int) -> None:
        while time.perf_counter() < began + seconds:
            connections[place].execute(sql.encode()).fetchall()
            done[place] += 1

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(connections))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def _peak_megabytes(pid: int) -> float:
    (found,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(found.split()[1]) / 1_024
