"""Removes every unit in turn and sees that the exact sums moved no further than stated.

All neighbours of a database are asked in one query: the generated SQL stands in a LATERAL join with the list of units
to leave out, its tables filtered by the unit at hand. That this asks the same is checked each time against the
generated SQL as it is, run by dpsql's own backend on the whole data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import duckdb
import psycopg

from dpsql.compliance.lab import open_database
from dpsql.compliance.toy import OWNED_BY_REFERENCE, OWNERS, units
from dpsql.engines.base import Engine
from dpsql.engines.postgres.connections import SETTINGS
from dpsql.engines.postgres.engine import PostgresEngine, numbered
from dpsql.lowering.query import EngineQuery
from dpsql.policy.prepared import COPIED_OWNER
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.running_totals import RunningTotals, coefficients
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.rules.aggregates import CHOSEN, Statistic, StatisticKind, weight_in_keys
from dpsql.release import Measurement
from dpsql.tables import ExactTable
from dpsql.types import Value

Key = tuple[Value, ...]
Sums = dict[Key, tuple[int, ...]]

# Rows without an owner do not exist: leaving them all out must change nothing.
UNOWNED = "rows without an owner"
EVERYONE = "nobody"

_EXTREMES: Mapping[type, Sequence[object]] = {
    int: (None, 2**63 - 1, -(2**63)),
    float: (None, 1.7e308, -1.7e308),
}


@dataclass(frozen=True, slots=True)
class _Run:
    """What one engine query gives on the whole data, and without each scenario's rows."""

    whole: Sums
    without: dict[str, Sums]


class Neighbourhood(ABC):
    """A database and all its neighbours."""

    units: list[int]
    _engine: Engine

    def check(self, measurement: Measurement, queries: Sequence[EngineQuery]) -> Iterator[str]:
        """Every way in which the measurement breaks its promise on this database or a neighbour."""
        top = measurement.mechanism if isinstance(measurement.mechanism, TopKeys) else None
        selection = measurement.mechanism if isinstance(measurement.mechanism, PartitionSelection) else None
        for branch, query in zip(measurement.branches, queries, strict=True):
            run = self._run(query)
            statistics = [measurement.statistics[i] for i in branch.statistics]
            if measurement.cells is not None:
                width = len(measurement.keys)  # behind them stands the value, in a histogram
                strange = {key[:width] for key in run.whole} - set(measurement.every_cell)
                if strange:
                    yield f"keys that are not declared: {sorted(map(str, strange))}"
            for scenario, sums in run.without.items():
                for i, (number, statistic) in enumerate(zip(branch.statistics, statistics, strict=True)):
                    moved = _moved(run.whole, sums, _place(statistic, i))
                    if top is not None and statistic.kind is StatisticKind.UNITS:
                        moved = sorted(moved)[-top.keys :]  # of those that are chosen, as bad as can be
                    for fault in _faults(statistic, measurement, number, moved, scenario):
                        yield f"without {scenario}: {fault}"
                    if measurement.is_rooted(number) and measurement.noises[number].law == "gaussian":
                        for fault in _rooted_faults(measurement, number, run.whole, sums, i):
                            yield f"without {scenario}: {fault}"
                by = [0] if statistics[0].kind in CHOSEN else []
                if top is not None and top.by in branch.statistics:
                    by = [branch.statistics.index(top.by)]
                none = (0,) * len(branch.statistics)
                if any(run.whole.get(key, none)[place] < sums[key][place] for place in by for key in sums):
                    yield f"without {scenario}: a count among which is chosen rises"
                for group in measurement.groups:
                    if len(group) > 1 and group[0] in branch.statistics and measurement.is_sum(group[0]):
                        places = {number: branch.statistics.index(number) for number in group}
                        moves = {number: _moved(run.whole, sums, place) for number, place in places.items()}
                        for fault in joint_faults(measurement, moves):
                            yield f"without {scenario}: {fault}"
                if selection is not None and selection.by in branch.statistics:
                    place = branch.statistics.index(selection.by)
                    for fault in _threshold_faults(measurement, run.whole, sums, place):
                        yield f"without {scenario}: {fault}"

    def total(self, queries: Sequence[EngineQuery]) -> None:
        """Run the queries with extreme values of earlier stages; raises if the engine fails."""
        for query in queries:
            for name, value in query.parameters.items():
                for extreme in _EXTREMES.get(type(value), ()):
                    changed = replace(query, parameters={**query.parameters, name: extreme})
                    self._engine.execute([changed], timeout=60)

    def run_as_it_is(self, query: EngineQuery) -> Sums:
        (table,) = self._engine.execute([query], timeout=60)
        return _of_table(table)

    def run_on_neighbours(self, query: EngineQuery) -> dict[str, Sums]:
        """The sums without each scenario's rows."""
        sql = self._without_some(query.sql)
        together = f"SELECT scenario.name, answer.* FROM scenarios AS scenario, LATERAL ({sql}) AS answer"
        rows = self._ask(together, query.parameters)
        found: dict[str, list[tuple[Key, tuple[int, ...]]]] = {EVERYONE: [], UNOWNED: []}
        found |= {f"unit {unit}": [] for unit in self.units}
        for name, *row in rows:
            found[name].append((tuple(row[: query.keys]), tuple(row[query.keys :])))
        return {name: _sums(pairs) for name, pairs in found.items()}

    def _without_some(self, sql: str) -> str:
        """The query over the rows that the scenario at hand leaves."""
        for table, owner in OWNERS.items():
            sql = sql.replace(f'"main"."{table}"', f'(SELECT * FROM main."{table}" WHERE {_kept(owner)})')
        for table in OWNED_BY_REFERENCE:
            rest = f"(SELECT * FROM owned_{table} WHERE {_kept('owner_of_row')})"
            sql = sql.replace(f'"main"."{table}"', rest)
        return sql

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _ask(self, sql: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """On a connection of its own, which has a table of the scenarios."""

    def _run(self, query: EngineQuery) -> _Run:
        whole = self.run_as_it_is(query)
        without = self.run_on_neighbours(query)
        if without.pop(EVERYONE) != whole:
            raise AssertionError("the query answers something else beside its neighbours; the check is blind")
        return _Run(whole, without)


class DuckDBNeighbourhood(Neighbourhood):
    def __init__(self, path: Path, *, references: bool = True) -> None:
        self._engine = open_database(path)
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        self._connection.execute(f"ATTACH '{path}' AS toy (READ_ONLY)")
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("USE toy")
        self.units = units(self._connection)
        for table, owned in OWNED_BY_REFERENCE.items() if references else ():
            self._connection.execute(f"CREATE TEMP TABLE owned_{table} AS {owned}")
        self._connection.execute(_SCENARIOS)
        self._connection.executemany("INSERT INTO scenarios VALUES (?, ?, ?)", _scenarios(self.units))

    def close(self) -> None:
        self._engine.close()
        self._connection.close()

    def _ask(self, sql: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, dict(parameters)).fetchall()


class CopyNeighbourhood(DuckDBNeighbourhood):
    """The same of a prepared copy: that of a neighbour is the copy without one owner's rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, references=False)

    def _without_some(self, sql: str) -> str:
        for table in (*OWNERS, *OWNED_BY_REFERENCE):
            rest = f'(SELECT * FROM main."{table}" WHERE {_kept(COPIED_OWNER)})'
            sql = sql.replace(f'"main"."{table}"', rest)
        return sql


class PostgresNeighbourhood(Neighbourhood):
    """The same in a PostgreSQL database that holds the toy data."""

    def __init__(self, url: str, everyone: Sequence[int]) -> None:
        self._engine = PostgresEngine(url, memory="64MB", threads=1)
        self._engine.schema()
        self._connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)
        for name, value in SETTINGS.items():
            self._connection.execute("SELECT set_config($1, $2, false)", [name, value])
        self.units = list(everyone)
        for table, owned in OWNED_BY_REFERENCE.items():
            self._connection.execute(f"CREATE TEMP TABLE owned_{table} AS {owned}")
        self._connection.execute(_SCENARIOS)
        with self._connection.cursor() as cursor:
            cursor.executemany("INSERT INTO scenarios VALUES ($1, $2, $3)", _scenarios(everyone))

    def close(self) -> None:
        self._engine.close()
        self._connection.close()

    def _ask(self, sql: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self._connection.execute(*numbered(sql, parameters)).fetchall()


_SCENARIOS = "CREATE TEMP TABLE scenarios (name text, unit int, unowned boolean)"


def _scenarios(everyone: Sequence[int]) -> list[tuple[str, int | None, bool]]:
    return [(EVERYONE, None, True), (UNOWNED, None, False), *((f"unit {u}", u, True) for u in everyone)]


def sum_faults(measurement: Measurement, before: Sequence[ExactTable], after: Sequence[ExactTable]) -> Iterator[str]:
    """How far a unit that left moved the sums beyond what is stated, in the norm of Gaussian noise."""
    for branch, mine, other in zip(measurement.branches, before, after, strict=True):
        whole, rest = _of_table(mine), _of_table(other)
        for i, number in enumerate(branch.statistics):
            statistic = measurement.statistics[number]
            moved = _moved(whole, rest, _place(statistic, i))
            claim = statistic.sensitivity
            if statistic.kind in CHOSEN and sum(moved) > claim.l1:
                yield f"histogram {number} moved by {sum(moved)}, {claim} is stated"
            if sum(change * change for change in moved) > claim.l2_squared:
                yield f"sum {number} moved by {moved}, {claim} is stated"
        for group in measurement.groups:
            if len(group) > 1 and group[0] in branch.statistics:
                places = {number: branch.statistics.index(number) for number in group}
                moves = {number: _moved(whole, rest, place) for number, place in places.items()}
                yield from joint_faults(measurement, moves)


def _of_table(table: ExactTable) -> Sums:
    columns = [column.tolist() for column in table.sums]
    return _sums((key, row) for key, row in zip(table.keys, zip(*columns, strict=True), strict=True))


def _kept(owner: str) -> str:
    """Which rows of a table stay in the scenario at hand."""
    other = f'"{owner}" IS DISTINCT FROM scenario.unit'
    return f'CASE WHEN "{owner}" IS NULL THEN scenario.unowned ELSE {other} END'


def _sums(pairs: Iterable[tuple[Key, tuple[int, ...]]]) -> Sums:
    found: Sums = {}
    for key, sums in pairs:
        if key in found or any(isinstance(part, float) and math.isnan(part) for part in key):
            raise AssertionError(f"a key comes twice or is not a number: {key}")
        found[key] = sums
    return found


def _place(statistic: Statistic, place: int) -> int:
    """In which column of its query a statistic stands: all ranks of one histogram in the only one."""
    return 0 if statistic.kind in CHOSEN else place


def _moved(whole: Sums, without: Sums, place: int) -> list[int]:
    zeros = (0,) * (place + 1)
    changes = [whole.get(key, zeros)[place] - without.get(key, zeros)[place] for key in whole.keys() | without.keys()]
    return [abs(change) for change in changes if change]


def _faults(
    statistic: Statistic, measurement: Measurement, number: int, moved: list[int], scenario: str
) -> Iterator[str]:
    claim = statistic.sensitivity
    if scenario == UNOWNED:
        if moved:
            yield f"sum {number} moved"
        return
    if claim.l0 is not None and len(moved) > claim.l0:
        yield f"sum {number} moved in {len(moved)} cells, l0 is {claim.l0}"
    if max(moved, default=0) > claim.linf:
        yield f"sum {number} moved by {max(moved)} in one cell, linf is {claim.linf}"
    if measurement.noises[number].law in ("laplace", "exponential"):
        if sum(moved) > claim.l1:
            yield f"sum {number} moved by {sum(moved)}, l1 is {claim.l1}"
    elif sum(change * change for change in moved) > claim.l2_squared:
        yield f"sum {number} moved by {sum(change * change for change in moved)}, l2² is {claim.l2_squared}"


def _rooted_faults(measurement: Measurement, number: int, whole: Sums, without: Sums, place: int) -> Iterator[str]:
    """Noise on the root of running totals: the root of the change may be longer than the change, and is noised so."""
    running = measurement.mechanism
    assert isinstance(running, RunningTotals) and measurement.cells is not None
    chains, cells = running.chains, measurement.cells
    zeros = (0,) * (place + 1)
    changes = [whole.get(key, zeros)[place] - without.get(key, zeros)[place] for key in cells]
    order = chains.places(cells)
    root = coefficients(chains.length)
    length = 0
    for start in range(0, len(order), chains.length):
        moved = [changes[at] for at in order[start : start + chains.length]]
        for i in range(chains.length):
            length += sum(root[i - j] * moved[j] for j in range(i + 1) if moved[j]) ** 2
    claim = measurement.statistics[number].sensitivity.l1 ** 2 * sum(part * part for part in root)
    if length > claim:
        yield f"the root of sum {number} moved by {length}, l2² is {claim}"


def joint_faults(measurement: Measurement, moves: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Sums of one group share a price: all moves together, each as a part of its own claim, are at most the whole."""
    claims = {number: measurement.statistics[number].sensitivity for number in moves}
    if all(measurement.noises[number].law == "laplace" for number in moves):
        part = sum(sum(moved) / claims[number].l1 for number, moved in moves.items())
    else:
        part = sum(sum(m * m for m in moved) / claims[number].l2_squared for number, moved in moves.items())
    if part > 1:
        yield f"sums {', '.join(map(str, moves))} moved by {float(part):g} of what they may together"


def _threshold_faults(measurement: Measurement, whole: Sums, without: Sums, place: int) -> Iterator[str]:
    """What the threshold of unknown keys needs: few keys of a unit's own, each counted once; and none that appear."""
    own = whole.keys() - without.keys()
    if len(own) > measurement.bound.groups:
        yield f"{len(own)} keys vanished, at most {measurement.bound.groups} may"
    selection = measurement.mechanism
    assert isinstance(selection, PartitionSelection)
    # A unit has at least the keys that vanished with it, and weighs no more in each than one with just these.
    norm: Literal["l1", "l2"] = "l2" if measurement.noises[selection.by].law == "gaussian" else "l1"
    weight = weight_in_keys(measurement.statistics[selection.by], norm)
    if any(whole[key][place] > weight(len(own)) for key in own):
        yield f"one of {len(own)} keys of one unit alone counts more than {weight(len(own))}"
    if without.keys() - whole.keys():
        yield "a key appeared"
