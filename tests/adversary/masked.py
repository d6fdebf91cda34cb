"""A server whose noise step is the test's own: whatever the engine found, the same values come out.

With it, nothing of the data is left in an answer but what leaks past the noise. Everything else is as in `dpsql serve`:
the wire, the twin, the relay, the ledger, and an engine that holds real rows.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import build_dataset
from dpsql.compliance.toy import POLICIES
from dpsql.engines.base import Engine
from dpsql.noise.samplers import Sampler, SystemSampler
from dpsql.policy.load import load
from dpsql.policy.load_server import state_folder
from dpsql.policy.model import Policy
from dpsql.policy.passwords import Verifier
from dpsql.release import Measurement
from dpsql.server.auth.login import login_rules
from dpsql.server.listener import Server, bind
from dpsql.server.twin import start_twin
from dpsql.tables import ExactTable, Integers, NoisyTable
from dpsql.types import Kind, Type, Value
from tests.server.connection import Address

USERS = ("alice", "bob")
PASSWORD = "correct horse"  # noqa: S105 - of made-up data

# A purse for thousands of questions at a usual price; bob can pay for a few only.
_PRIVACY = """
[privacy]
epsilon = 9_000
delta = 1e-3
query_epsilon = 0.01
max_query_epsilon = 1_000
"""

# Keys that a threshold would let pass, of each type; some are in the data, some are not.
_KEYS: dict[Kind, tuple[Value, ...]] = {
    Kind.BOOLEAN: (False, True),
    Kind.INTEGER: (-1, 3, 53_063),
    Kind.DECIMAL: (Decimal("0.25"), Decimal(10)),
    Kind.DOUBLE: (-0.5, 53_063.0),
    Kind.TEXT: ("", "Paris", "nowhere to be found"),
    Kind.DATE: (date(2020, 2, 29), date(2022, 1, 1)),
    Kind.TIMESTAMP: (datetime(2020, 2, 29, 12), datetime(2022, 1, 1)),
}


def masked_noise(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
    """A noise step that tells nothing of `exact`: its keys and values follow from the measurement alone."""
    del exact, sampler
    if measurement.is_search:  # the first of the clips
        return NoisyTable(((),), (np.zeros(1, dtype=np.int64),))
    keys = measurement.every_cell if measurement.cells is not None else _fixed_keys(measurement)
    return NoisyTable(keys, tuple(_fixed_sums(number, len(keys)) for number in range(len(measurement.statistics))))


def _fixed_keys(measurement: Measurement) -> tuple[tuple[Value, ...], ...]:
    choices = [_values(key.value.type) for key in measurement.keys]
    return tuple(tuple(values[row % len(values)] for values in choices) for row in range(max(map(len, choices))))


def _values(type_: Type) -> tuple[Value, ...]:
    return _KEYS[type_.kind]


def _fixed_sums(number: int, rows: int) -> Integers:
    """Small, large, zero and negative ones: what is done with noisy values above them is done."""
    return np.asarray([(row * 37 + number * 101) % 97 * 13 - 40 for row in range(rows)], dtype=np.int64)


def write_policy(folder: Path, database: str) -> Policy:
    verifier = Verifier.derived(PASSWORD, b"salt of sixteen!", 4_096)
    tables = (POLICIES / "tables.toml").read_text().replace("[users.alice]\n", "")
    tables = tables.replace('url = "duckdb:///toy.duckdb"', f'url = "{database}"\nledger = "{folder}/toy.ledger"')
    users = f'\n[users.alice]\npassword = "{verifier}"\n[users.bob]\nepsilon = 0.04\npassword = "{verifier}"\n'
    path = folder / "dpsql.toml"
    path.write_text(_PRIVACY + tables + users)
    return load(path)


class MaskedServer:
    """The server, in a thread of its own; stopped and deleted at the end."""

    def __init__(self, make: Callable[[Path], tuple[Policy, Engine]]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="masked"))
        self._folder.chmod(0o711)  # where the tests run as root, the twin runs as somebody else
        policy, engine = make(self._folder)
        self.dataset: Dataset = build_dataset(policy, engine, SystemSampler(), new_ledger=True)
        self._twin = start_twin(state_folder(policy), self.dataset.catalog, policy.users)
        (socket,) = bind("127.0.0.1", 0, "")
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._server = Server(policy, self.dataset, self._twin, login_rules(policy, self._twin.database, None))

        async def run() -> None:
            await self._server.start([socket])
            self._ready.set()
            await self._end.wait()
            at_once = asyncio.Event()
            at_once.set()
            await self._server.stop(at_once)

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(run()))
        self._thread.start()
        self._ready.wait(60)

    @contextmanager
    def ticking(self, seconds: float) -> Iterator[None]:
        """Answers leave at whole ticks meanwhile."""
        before = self._server.policy
        self._server.policy = replace(before, limits=replace(before.limits, answer_tick=seconds))
        try:
            yield
        finally:
            self._server.policy = before

    def address(self, user: str = "alice") -> Address:
        return Address("127.0.0.1", self._server.port, user, self._twin.database, PASSWORD)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()
        self._twin.stop()
        self.dataset.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def masked(make: Callable[[Path], tuple[Policy, Engine]]) -> Iterator[MaskedServer]:
    server = MaskedServer(make)
    try:
        yield server
    finally:
        server.close()
