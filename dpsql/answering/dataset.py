"""The whole pipeline on one screen: compile, charge, run, add noise, finish.

Only `answer` charges, and it charges before the engine runs anything. Each step has its module: `releases` compiles,
`purchases` finds stored answers and charges the rest, `rest` computes the rest of the query over noisy tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction

from dpsql.answering.answer import Answer, Rows
from dpsql.answering.answer_store import StoredAnswer, encode
from dpsql.answering.circuit_breaker import CircuitBreaker
from dpsql.answering.compiling import Compiler
from dpsql.answering.compiling.work import Ground
from dpsql.answering.fairness import FairSlots
from dpsql.answering.purchases import Bill, Purchases
from dpsql.answering.releases import Asker, Releases
from dpsql.answering.rest import RestOfQueries
from dpsql.answering.reuse import AnswerReuse
from dpsql.answering.single_flight import SingleFlight
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.errors import TooManyRows
from dpsql.ledger import Ledger
from dpsql.noise.add_noise import add_noise
from dpsql.noise.samplers import Sampler
from dpsql.plan.zones import UTC_ZONE, Zone
from dpsql.policy.model import Catalog, Limits
from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.confidence import USUAL, Confidence
from dpsql.release import Measurement, QuerySettings, Release, Stage, as_told, with_confidence
from dpsql.slots import Slots
from dpsql.tables import ResultTable
from dpsql.types import Value

AT_ONCE = 16  # concurrent statements in the engine; more would not be faster, and would share the same memory

_ENDS = {
    "others": "this query uses more rho than is left: afterwards only pure answers can be paid, for {whose}",
    "pure": "afterwards pure answers are charged in rho, like others, for {whose}",
}


class Dataset:
    """One dataset: its catalog, engine, ledger and noise. Safe for many threads."""

    def __init__(
        self,
        catalog: Catalog,
        accountant: Accountant,
        engine: Engine,
        ledger: Ledger,
        sampler: Sampler,
        limits: Limits,
        slots: Slots | None = None,
        *,
        compiles_apart: bool = False,
    ) -> None:
        """`compiles_apart`: compile queries in other processes only, so that threads of this one never wait for it."""
        self.catalog = catalog
        self.accountant = accountant
        self.ledger = ledger
        self._engine = engine
        self._sampler = sampler
        self._limits = limits
        changing = limits.replay_days is not None or catalog.is_renewed
        self._reuse = AnswerReuse(ledger, changing=changing)
        self._purchases = Purchases(ledger, accountant, self._reuse, sampler, engine, limits.timeout)
        self._compiler = Compiler(Ground(catalog, accountant, engine.dialect), limits.compiling, apart=compiles_apart)
        self._releases = Releases(self._compiler, accountant, ledger, self._purchases)
        self._rest = RestOfQueries(engine, limits)
        self._single_flight = SingleFlight(slots)
        self._work = FairSlots(AT_ONCE, limits.max_queries_per_user)

    @property
    def circuits(self) -> CircuitBreaker:
        return self._purchases.circuits

    def compile(
        self,
        sql: str,
        parameters: Sequence[Value],
        settings: QuerySettings,
        *,
        fresh: bool = False,
        user: str = "",
        cancellation: Cancellation | None = None,
        zone: Zone = UTC_ZONE,
    ) -> Release:
        """What a query would do. Free: it reads no rows, and from the ledger only stored answers."""
        asker = Asker(user, cancellation)
        return self._releases.release(sql, parameters, settings, asker, fresh=fresh, zone=zone)

    def answer(
        self,
        release: Release,
        *,
        user: str,
        sql: str,
        fresh: bool = False,
        cancellation: Cancellation | None = None,
        level: Fraction = USUAL,
        simultaneous: bool = False,
    ) -> Answer:
        """Charge, then run, then add noise. A charge is never returned.

        The confidence of margins is not part of a purchase: only the rest of the query reads it. Stages, on which later
        measurements depend, use the default confidence.
        """
        paid = release.unsettled or release
        asker = Asker(user, cancellation)
        bill = self._purchases.bill(paid, user, fresh)
        missing = [] if fresh else bill.missing
        with self._single_flight.of(missing, cancellation):
            if missing:  # another query may have bought it in the meantime
                bill = self._purchases.bill(paid, user, fresh)
            with self._working(asker) if bill.missing else nullcontext():
                receipt, bill, owed = self._purchases.paid(paid, bill, user, sql, fresh, cancellation)
                known = dict(bill.known)
                with self._purchases.kept_if_unanswered(user, bill, receipt, known):
                    for index in range(len(paid.measurements)):
                        if index not in known:
                            # A clip chosen by an earlier measurement of this query is available now.
                            release = self._releases.settled(paid, asker, known)
                            measurement = release.measurements[index]
                            known[index] = self._measure(release, measurement, bill, index, known, cancellation)
        with self._purchases.kept_if_unanswered(user, bill, receipt, known):
            release = _as_known(self._releases.settled(paid, asker, known), known, bill, owed)
            numbers = _noisy_numbers(release, {i: len(k.table) for i, k in known.items()}) if simultaneous else 1
            release = with_confidence(release, Confidence(level, numbers))
            wide = self._finished(release, bill, known, asker)
            if simultaneous and (shown := len(wide) * _noisy_columns(release)) > numbers:
                # A public table multiplies rows.
                release = with_confidence(release, Confidence(level, shown))
                wide = self._finished(release, bill, known, asker)
        names = tuple(output.name for output in release.outputs)
        types = tuple(output.type for output in release.outputs)
        has_margins_behind = any(output.margin_at is not None for output in release.outputs)
        rows = [row[: len(names)] for row in wide] if has_margins_behind else list(wide)
        return Answer(ResultTable(names, types, rows), release, receipt.paid, wide)

    def preview(self, release: Release, user: str) -> Release:
        """The release as it would be answered now, for EXPLAIN: derived answers have the margins of their sources.

        Free: it reads only the ledger.
        """
        bill = self._purchases.bill(release.unsettled or release, user, fresh=False)
        return _as_known(release, bill.known, bill, self._purchases.owed(user, bill.sources))

    def with_confidence(self, release: Release, level: Fraction, *, simultaneous: bool) -> Release:
        """The release with margins of another confidence, for EXPLAIN; the number of unknown keys is not known."""
        if not simultaneous:
            return with_confidence(release, Confidence(level))
        if any(measurement.cells is None for measurement in release.measurements if not measurement.is_search):
            release = replace(release, notes=(*release.notes, "margins grow with the number of keys that are returned"))
        return with_confidence(release, Confidence(level, _noisy_numbers(release, {})))

    def warnings(self, release: Release, user: str, *, fresh: bool) -> list[str]:
        """Warnings if the purchase would end a way to pay for good. Free: it reads only the ledger."""
        if not self.accountant.sells_pure:
            return []
        found = self.ledger.closing(user, self._purchases.bill(release.unsettled or release, user, fresh).purchases)
        whose = {
            kind: "your allowance" if all(closing.user for closing in found if closing.kind == kind) else "all users"
            for kind in dict.fromkeys(closing.kind for closing in found)
        }
        return [_ENDS[kind].format(whose=name) for kind, name in whose.items()]

    @property
    def compiling(self) -> int:
        """Queries being compiled in other processes."""
        return self._compiler.quick.held + self._compiler.long.held

    @property
    def compiling_long(self) -> int:
        """Those of them that are long work."""
        return self._compiler.long.held

    @contextmanager
    def _working(self, asker: Asker) -> Iterator[None]:
        """Hold a slot of the engine for the user during the block; a cheap query does not wait for one."""
        self._work.take(asker.user, asker.cancellation)
        try:
            yield
        finally:
            self._work.give_back(asker.user)

    def close(self) -> None:
        self._compiler.close()
        self._engine.close()
        self._rest.close()
        self.ledger.close()

    def left(self, user: str) -> str:
        """What a user can still spend, as text."""
        return self._purchases.left(user)

    # --- after payment ---

    def _measure(
        self,
        release: Release,
        measurement: Measurement,
        bill: Bill,
        index: int,
        known: Mapping[int, StoredAnswer],
        cancellation: Cancellation | None,
    ) -> StoredAnswer:
        parameters: dict[str, object] = {"salt": self._sampler.salt()}
        for number in measurement.stages:
            parameters |= self._stage(release, number, release.stages[number], known, cancellation)
        queries = [branch.query.filled(parameters) for branch in measurement.branches]
        exact = self._engine.execute(queries, timeout=self._limits.timeout, cancellation=cancellation)
        bill.noised.add(index)
        noisy = StoredAnswer(bill.instances[index], add_noise(measurement, exact, self._sampler))
        if (older := bill.older.get(index)) is not None:
            noisy = self._reuse.combined(measurement, noisy, older)
        beside = self._reuse.beside(measurement, bill.stages[index], bill.keys[index], noisy)
        written = encode(noisy, measurement.reads, declared=measurement.cells is not None)
        self.ledger.store(bill.keys[index], written, beside)
        return noisy

    def _stage(
        self,
        release: Release,
        number: int,
        stage: Stage,
        known: Mapping[int, StoredAnswer],
        cancellation: Cancellation | None,
    ) -> dict[str, object]:
        """The value of an earlier stage as parameters; never fails."""
        rows = self._rest.rows(release, stage.rest, known, cancellation)
        values = [None if isinstance(row[0], float) and not math.isfinite(row[0]) else row[0] for row in rows]
        if stage.kind == "in":
            listed = [value for value in values if value is not None]
            return {f"s{number}": listed, f"s{number}_null": None in values, f"s{number}_empty": not values}
        if len(values) > 1:
            raise TooManyRows("more than one row returned by a subquery used as an expression")
        return {f"s{number}": values[0] if values else None}

    def _finished(self, release: Release, bill: Bill, known: Mapping[int, StoredAnswer], asker: Asker) -> Rows:
        return self._rest.of_answer(
            release, bill.keys, known, asker.cancellation, lambda: self._working(asker), bought=bool(bill.missing)
        )


def _noisy_columns(release: Release) -> int:
    return max(sum(output.noisy for output in release.outputs), 1)


def _noisy_numbers(release: Release, rows: Mapping[int, int]) -> int:
    """The most noisy numbers that an answer can show: one for each row of the noisy tables in each noisy column."""
    cells = [
        len(measurement.cells) if measurement.cells is not None else rows.get(index, 1)
        for index, measurement in enumerate(release.measurements)
        if not measurement.is_search
    ]
    return max(sum(cells), 1) * _noisy_columns(release)


def _as_known(release: Release, known: Mapping[int, StoredAnswer], bill: Bill, owed: Price) -> Release:
    """The release with the margins of stored answers; a derived answer costs what the user owes for its sources."""
    told = {index: tuple(map(math.ceil, noisy.steps)) for index, noisy in known.items() if noisy.steps is not None}
    changed = as_told(release, told, bill.derived.keys())
    return replace(changed, price=changed.price + owed) if bill.derived else changed
