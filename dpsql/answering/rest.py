"""The rest of a query, over noisy and public tables: in Python where that is faster, else in DuckDB."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, islice
from typing import cast

from dpsql.answering.answer import Rows
from dpsql.answering.answer_store import StoredAnswer
from dpsql.answering.lru import WeightedLru
from dpsql.answering.postprocess import Postprocessor, require_size
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.errors import NotSupported
from dpsql.lowering.noisy_tables import MANY, Array, array_of
from dpsql.policy.model import Limits
from dpsql.release import Measurement, Release, Rest
from dpsql.tables import Integers, NoisyTable, columns_of
from dpsql.types import Value

MAX_PUBLIC_ROWS = 1_000_000
_ROOM = 100_000_000  # approximate bytes of the cache of small answers
_OF_CELL = 65  # bytes
SMALL_ROWS, SMALL_TEXT = 100, 10_000  # limits of rows and characters for a cached answer


class RestOfQueries:
    """Computes the rest of queries, above the noisy tables. Safe for many threads."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._post = Postprocessor(memory=limits.memory)
        self._answers: WeightedLru[tuple[str, object], Rows] = WeightedLru(
            lambda key, rows: len(key[0]) + _OF_CELL * sum(map(len, rows)), _ROOM
        )
        self._loaded: set[str] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        self._post.close()

    def of_answer(
        self,
        release: Release,
        keys: Mapping[int, bytes],
        known: Mapping[int, StoredAnswer],
        cancellation: Cancellation | None,
        working: Callable[[], AbstractContextManager[None]],
        *,
        bought: bool,
    ) -> Rows:
        """The rows of the answer; those of a small one are cached, and reused if nothing was bought.

        Claim: cached rows are those that the rest of the query would return again.
        Because: it reads the noisy tables that the key names, each by its question and by an identity of its own, and
        public tables, which are read once; nothing in it reads the clock or draws a random number.
        Needs: SQL that was generated from a plan, which has neither.
        """
        used = [(index, keys.get(index), noisy.instance) for index, noisy in sorted(known.items())]
        key = (release.rest.sql, (release.confidence, *used))
        found = None if bought else self._answers.get(key)
        if found is None:
            found = self.computed(release, release.rest, known)
            if found is None:
                with working():
                    found = self.run(release, release.rest, known, cancellation)
            if _is_small(found):
                self._answers.put(key, found)
        return found

    def rows(
        self, release: Release, rest: Rest, known: Mapping[int, StoredAnswer], cancellation: Cancellation | None
    ) -> Rows:
        """The rest of the query, over noisy and public tables."""
        if (rows := self.computed(release, rest, known)) is not None:
            return rows
        return self.run(release, rest, known, cancellation)

    def run(
        self, release: Release, rest: Rest, known: Mapping[int, StoredAnswer], cancellation: Cancellation | None
    ) -> Rows:
        """The same in DuckDB."""
        for name, table in release.public.items():
            self._load(name, table.source, [(column.name, column.type) for column in table.columns.values()])
        read = {
            index: list(islice(_columns_of(release.measurements[index], known[index].table), number))
            for index, number in rest.columns.items()
        }
        tables = None
        if rest.of_tables is not None and any(len(known[index].table) >= MANY for index in read):
            tables = _as_tables(read)
        if tables is not None:
            assert rest.of_tables is not None
            sql, parameters = rest.of_tables, dict[str, object]()
        else:
            sql, tables = rest.sql, {}
            parameters = {
                f"r{index}_{i}": column if isinstance(column, list) else column.tolist()
                for index, columns in read.items()
                for i, column in enumerate(columns)
            }
        return self._post.run(
            sql,
            parameters,
            timeout=self._limits.timeout,
            max_cells=self._limits.max_result_cells,
            tables=tables,
            cancellation=cancellation,
        )

    def computed(self, release: Release, rest: Rest, known: Mapping[int, StoredAnswer]) -> Rows | None:
        """The same in Python, where that is faster and only one noisy table is read; else None."""
        way = rest.in_python
        if way is None:
            return None
        rows = way.rows(list(_columns_of(release.measurements[way.measurement], known[way.measurement].table)))
        if rows:
            require_size(len(rows), len(rows[0]), self._limits.max_result_cells)
        return rows

    def _load(self, name: str, source: tuple[str, ...], columns: Sequence[tuple[str, object]]) -> None:
        with self._lock:
            if name in self._loaded:
                return
            data = self._engine.read_public(source, [column for column, _ in columns], MAX_PUBLIC_ROWS)
            if data and len(data[0]) > MAX_PUBLIC_ROWS:
                raise NotSupported(f"a public table has more than {MAX_PUBLIC_ROWS:,} rows")
            self._post.load(name, columns, data)  # type: ignore[arg-type]
            self._loaded.add(name)


def _columns_of(measurement: Measurement, table: NoisyTable) -> Iterator[list[Value] | Integers]:
    """The columns of a noisy table for the rest of a query: keys, noisy sums and their margins."""
    # The remainder follows the declared cells, and is never shown.
    rows = len(table) if measurement.cells is None else min(len(table), len(measurement.cells))
    yield from columns_of(table.keys[:rows]) or [[] for _ in measurement.keys]
    yield from (column[:rows] for column in table.sums)
    yield from cast(list[list[Value]], measurement.error_columns(table.sums, rows))


def _as_tables(read: Mapping[int, Sequence[list[Value] | Integers]]) -> dict[str, dict[str, Array]] | None:
    """Noisy tables as arrays, for the columns that are read; None for a column that cannot be one."""
    tables: dict[str, dict[str, Array]] = {}
    for index, columns in read.items():
        for i, column in enumerate(columns):
            array = array_of(column) if isinstance(column, list) else column
            if array is None:
                return None
            tables.setdefault(f"n{index}", {})[f"x{i}"] = array
    return tables or None


def _is_small(rows: Rows) -> bool:
    """Whether an answer is small enough for the cache."""
    if len(rows) > SMALL_ROWS:
        return False
    return sum(len(value) for value in chain.from_iterable(rows) if isinstance(value, str)) <= SMALL_TEXT
