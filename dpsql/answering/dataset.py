"""The whole pipeline on one screen: compile, charge, run, add noise, finish.

Only `answer` spends, and it spends before the engine sees anything.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import chain, islice
from typing import cast

from dpsql.answering.answer_store import StoredAnswer, decode, encode
from dpsql.answering.circuit_breaker import CircuitBreaker
from dpsql.answering.compiling import Compiler
from dpsql.answering.compiling.work import Choice, Ground
from dpsql.answering.fairness import FairSlots
from dpsql.answering.lru import WeightedLru
from dpsql.answering.postprocess import Postprocessor, require_size
from dpsql.answering.reuse import AnswerReuse, Derived, Older
from dpsql.answering.single_flight import SingleFlight
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.engines.runtime import log_engine_error
from dpsql.errors import (
    BadSetting,
    BudgetExhausted,
    Cancelled,
    EngineFailed,
    Error,
    InternalError,
    NotSupported,
    OperationalError,
    TooManyFiles,
    TooManyRows,
    is_for_files,
)
from dpsql.ledger import AttemptTaken, Ledger, PaidAttempt, Purchase, Receipt, Unanswered
from dpsql.lowering.noisy_tables import MANY, Array, array_of
from dpsql.noise.add_noise import add_noise
from dpsql.noise.samplers import Sampler
from dpsql.plan.zones import UTC_ZONE, Zone
from dpsql.policy.canonical import digest, rows_text
from dpsql.policy.model import Catalog, Limits
from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.confidence import USUAL, Confidence
from dpsql.privacy.rules.aggregates import StatisticKind
from dpsql.release import BoundMode, Measurement, QuerySettings, Release, Rest, Source, Stage, as_told, with_confidence
from dpsql.release.explain import price_text
from dpsql.release.identity import EarlierAnswers, key_of_answer
from dpsql.slots import Slots
from dpsql.sql.clock import Clock
from dpsql.sql.kept_text import kept_text
from dpsql.tables import Integers, NoisyTable, ResultTable, columns_of
from dpsql.types import Cell, Kind, Value

AT_ONCE = 16  # statements that engines work on; more would not be quicker, and would share the same memory
MAX_PUBLIC_ROWS = 1_000_000
ROOM = 100_000_000  # bytes, about, of compiled queries, of keys and of small answers that are remembered
_OF_CELL, _OF_TEXT = 65, 20  # bytes of a cell, and of what was compiled for each character of generated SQL
# A clip, or a centre, is searched for with one part of so many of the usual price, or more. A lone sum gives a fifth of
# its price for its clip, and a twentieth for its centre.
POOREST_SEARCH = {StatisticKind.CLIP: 40, StatisticKind.CENTRE: 160}
SMALL_ROWS, SMALL_TEXT = 100, 10_000  # rows and characters of an answer that is remembered

_ENDS = {
    "others": "it takes more rho than is left: after it, only pure answers can be paid, for {whose}",
    "pure": "after it, pure answers pay with their rho, as others do, for {whose}",
}

_ASK_AGAIN = "Ask the same question again: it costs nothing more."

Rows = list[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    table: ResultTable
    release: Release
    charged: Price  # what this user paid for it now
    wide: Rows = field(repr=False)  # the rows of the table with the margins that stand behind their values

    @property
    def margins(self) -> list[tuple[int | float | None, ...]]:
        """95 %, for each value of the table that is a noisy number. Made when asked for: few ask for many."""
        columns = [self.column_margins(index) for index in range(len(self.release.outputs))]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self.wide)

    def column_margins(self, index: int) -> list[int | float | None]:
        """How far off each value of a column may be; None where it is exact or NULL, infinite where nobody can tell."""
        output = self.release.outputs[index]
        if output.mark is not None:
            return [None if row[index] is None else math.inf for row in self.wide]
        if output.margin is not None and output.margin_at is None:
            same = output.margin.numerator if output.margin.denominator == 1 else float(output.margin)
            return [None if row[index] is None else same for row in self.wide]
        if (at := output.margin_at) is None:
            return [math.inf if output.noisy and row[index] is not None else None for row in self.wide]
        is_whole = output.margin is not None and output.type.kind is Kind.INTEGER  # a count near the threshold
        return [None if row[index] is None else _row_margin(row[at], is_whole) for row in self.wide]


def _row_margin(margin: Cell, is_whole: bool) -> int | float | None:
    """Of one noisy value; errors that cancel out leave it exact."""
    if not isinstance(margin, float) or not math.isfinite(margin):
        return math.inf
    return (math.ceil(margin) if is_whole else margin) or None


@dataclass(frozen=True, slots=True)
class _Asker:
    """Who waits for what is done."""

    user: str
    cancellation: Cancellation | None


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
        """`compiles_apart`: queries are compiled in other processes only, so that nobody in this one waits for it."""
        self.catalog = catalog
        self.accountant = accountant
        self.ledger = ledger
        self._engine = engine
        self._sampler = sampler
        self._limits = limits
        self._post = Postprocessor(memory=limits.memory)
        changing = limits.replay_days is not None or catalog.is_renewed
        self._reuse = AnswerReuse(ledger, changing=changing)
        self._releases: WeightedLru[tuple[object, ...], Release] = WeightedLru(
            lambda _, release: _bytes_of(release), ROOM
        )
        self._answers: WeightedLru[tuple[str, object], Rows] = WeightedLru(
            lambda key, rows: len(key[0]) + _OF_CELL * sum(map(len, rows)), ROOM
        )
        self._loaded: set[str] = set()
        self._lock = threading.Lock()
        self._single_flight = SingleFlight(slots)
        self.circuits = CircuitBreaker()
        self._compiler = Compiler(Ground(catalog, accountant, engine.dialect), limits.compiling, apart=compiles_apart)
        self._work = FairSlots(AT_ONCE, limits.max_queries_per_user)

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
        """The release of a query. Where it has loose clips, those that were found before decide with the ledger.

        What is stored already is preferred, so that the same question has the same answer; then clips that are found
        already, for they leave the whole price to the sums. A query that has little to give to a search does not make
        one: all later ones, of everybody, would have to live with what it finds.
        """
        clock = Clock(this_minute(), zone)
        asker = _Asker(user, cancellation)

        def compiled(clips: BoundMode) -> Release:
            return self._compiled(Source(sql, tuple(parameters), settings, clips, clock), asker)

        searched = compiled("searched")
        self._require_least_price(searched)
        if not searched.searches:
            return searched
        forms = [searched, compiled("declared")]
        found = self._found(searched)
        missing = [searched.measurements[index] for index in searched.searches if index not in found]
        if not missing:
            forms.insert(0, compiled("found"))
        elif self._is_cheap(settings, missing):
            forms.reverse()
        stored = [] if fresh else [form for form in forms if not self._bill(form, None, fresh=False).missing]
        return self._settled(stored[0] if stored else forms[0], asker)

    def _require_least_price(self, release: Release) -> None:
        """The owner may want no answers that cost next to nothing: each is kept, and none of them is of use."""
        least = self.accountant.policy.min_query_epsilon
        if least is None or not release.price.loss or self.accountant.epsilon_of(release.price.loss) >= least:
            return
        text = f"{float(least):g}"
        asked = "dpsql.epsilon" if release.asked.margin is None else "dpsql.margin"
        smaller = f"SET dpsql.epsilon = {text}, or more."
        raise BadSetting(
            f'"{asked}" asks for an answer that costs less than epsilon {text}, the least price of a query',
            hint=smaller if release.asked.margin is None else f"RESET dpsql.margin, and {smaller}",
        )

    def _is_cheap(self, settings: QuerySettings, searches: Sequence[Measurement]) -> bool:
        """Whether a query pays less than half of the usual price, or shares its price among too many sums."""
        usual = self.accountant.policy.query_epsilon
        if settings.epsilon is not None and settings.epsilon * 2 < usual:
            return True
        parts = [(search.price.loss, POOREST_SEARCH[search.statistics[0].kind]) for search in searches]
        return any(loss * least < self.accountant.price_of(usual) for loss, least in parts)

    def _compiled(self, source: Source, asker: _Asker, chosen: Choice = (), *, paid: bool = False) -> Release:
        """Pure, and remembered, so that a repeated text costs no parsing; one that reads the clock, for its minute,
        and one that depends on the time zone, for it.
        """
        _check_parameters(source.parameters)
        # By their text: equal decimals of different scale, and zeros of different sign, are different constants.
        values = tuple((type(value), repr(value)) for value in source.parameters)
        key = (source.sql, values, source.settings, source.clips, chosen)
        now, zone = source.clock.now, source.clock.zone.name
        for depends in ((), (now,), (zone,), (now, zone)):
            if (found := self._releases.get((*key, *depends))) is not None:
                return found
        try:
            compiled = self._compiler.compile(
                source, chosen, user=asker.user, cancellation=asker.cancellation, paid=paid
            )
        except Error:
            raise
        except Exception as error:
            if is_for_files(error):
                raise TooManyFiles from None
            # A defect of ours. It depends on the query alone, for no data was read; still, say nothing of its insides.
            raise InternalError(
                f"the query could not be compiled (log id {log_engine_error(error)})",
                hint="The owner finds the cause in the log under this id.",
            ) from None
        release = replace(compiled.release, source=source)
        depends = (*((now,) if compiled.reads_clock else ()), *((zone,) if compiled.reads_zone else ()))
        self._releases.put((*key, *depends), release)
        return release

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

        With which confidence margins hold is no part of what is bought: the rest of the query reads them, and stages,
        which later measurements depend on, have those of the usual one.
        """
        paid = release.unsettled or release
        asker = _Asker(user, cancellation)
        bill = self._bill(paid, user, fresh)
        missing = [] if fresh else bill.missing
        with self._single_flight.of(missing, cancellation):
            if missing:  # somebody may have bought it in the meantime
                bill = self._bill(paid, user, fresh)
            with self._working(asker) if bill.missing else nullcontext():
                receipt, bill, owed = self._paid(paid, bill, user, sql, fresh, cancellation)
                known = dict(bill.known)
                with self._kept_if_unanswered(user, bill, receipt, known):
                    for index in range(len(paid.measurements)):
                        if index not in known:
                            # A clip that an earlier measurement chose is known by now.
                            release = self._settled(paid, asker, known)
                            measurement = release.measurements[index]
                            known[index] = self._measure(release, measurement, bill, index, known, cancellation)
        with self._kept_if_unanswered(user, bill, receipt, known):
            release = _as_known(self._settled(paid, asker, known), known, bill, owed)
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

    def _paid(
        self, release: Release, bill: _Bill, user: str, sql: str, fresh: bool, cancellation: Cancellation | None
    ) -> tuple[Receipt, _Bill, Price]:
        """The receipt of what is missing, the bill as it was paid, and what the user owed for answers of others.

        Nothing is charged while it is known that the engine would fail, or after the statement was cancelled.
        """
        while True:
            if bill.missing:
                self._require_engine(release, bill, user, cancellation)
            owed = self._owed(user, bill.sources)
            self._find_older(release, bill, user)
            if cancellation is not None:
                cancellation.check()
            try:
                return self._charge(user, bill, sql, cancellation), bill, owed
            except AttemptTaken:  # another process was faster
                bill = self._bill(release, user, fresh)

    def _require_engine(self, release: Release, bill: _Bill, user: str, cancellation: Cancellation | None) -> None:
        """Raise where what is missing would be paid and not answered. It reads no private row, and charges nothing."""
        waits = [attempt.wait for attempt in bill.retries.values()]
        if any(waits):
            runs = max(attempt.runs for attempt in bill.retries.values())
            raise OperationalError(
                f"the query was paid for, and has failed {runs} times",
                detail=f"It is run again after a pause of {math.ceil(max(waits))} s, at no further cost.",
                hint="Ask again then, or ask another question. The owner finds the cause of the failures in the log.",
            )
        if any(purchase.price.loss and not purchase.replay for purchase in bill.purchases):
            self.circuits.require_closed(user)
        measurements = [release.measurements[index] for index in bill.keys if index not in bill.known]
        sources = {source for each in measurements for branch in each.branches for source in branch.query.sources}
        try:
            self._engine.ready(sorted(sources), timeout=self._limits.timeout, cancellation=cancellation)
        except EngineFailed as error:
            error.detail = "Nothing was charged."
            raise

    @contextmanager
    def _kept_if_unanswered(
        self, user: str, bill: _Bill, receipt: Receipt, known: Mapping[int, StoredAnswer]
    ) -> Iterator[None]:
        """What was paid for and is not answered is kept in the ledger, and the same question runs it again for free.

        Claim: each charge gives at most one answer to each question.
        Because: what is kept is the attempts that have not come as far as noise; of the others the answer may be
            stored, or seen. Whoever takes a kept attempt uses it up, durably, before the engine is asked
            (`ledger.failures`), and draws noise of its own under the same key and price.
        Needs: nothing of an attempt leaves this process before its noise is drawn.
        """
        try:
            yield
        except BaseException as error:
            open_ = [attempt for attempt in bill.attempts(receipt) if attempt.index not in known]
            unanswered = [attempt.unanswered for attempt in open_ if attempt.index not in bill.noised]
            kept = len(unanswered) == len(open_)
            try:
                if unanswered:
                    self.ledger.fail(unanswered)
            except Error:
                kept = False
            if isinstance(error, EngineFailed):
                self.circuits.failed(user, error)
            if isinstance(error, Error):
                self._say_what_was_paid(error, bill, receipt, kept)
            raise
        if bill.missing:
            self.circuits.succeeded(user)

    def _say_what_was_paid(self, error: Error, bill: _Bill, receipt: Receipt, kept: bool) -> None:
        if receipt.paid != Price():
            error.detail = f"It was charged {price_text(receipt.paid, self.accountant)}, and there is no answer yet."
        elif bill.retries:
            error.detail = "It was charged before, and there is no answer yet."
        else:
            return
        if kept and isinstance(error, EngineFailed | Cancelled | InternalError):
            error.hint = " ".join(filter(None, (_ASK_AGAIN, error.hint)))

    def preview(self, release: Release, user: str) -> Release:
        """The release as it would be answered now, for EXPLAIN: what is made of earlier answers has their margins.

        Free: it reads the ledger alone.
        """
        bill = self._bill(release.unsettled or release, user, fresh=False)
        return _as_known(release, bill.known, bill, self._owed(user, bill.sources))

    def with_confidence(self, release: Release, level: Fraction, *, simultaneous: bool) -> Release:
        """The release with margins of another confidence, for EXPLAIN; how many unknown keys there are is not known."""
        if not simultaneous:
            return with_confidence(release, Confidence(level))
        if any(measurement.cells is None for measurement in release.measurements if not measurement.is_search):
            release = replace(release, notes=(*release.notes, "margins grow with the number of keys that are returned"))
        return with_confidence(release, Confidence(level, _noisy_numbers(release, {})))

    def left(self, user: str) -> str:
        """What a user can still spend, in words; and where nothing more is paid as pure, why."""
        left = self.ledger.remaining(user)
        if not self.accountant.sells_pure or left.pure is not None or not left.loss:
            return price_text(left, self.accountant)
        had_others = self.ledger.spent().pure is None or self.ledger.spent(user).pure is None
        why = "not all answers were pure" if had_others else "their epsilon is spent"
        return f"{price_text(left, self.accountant)}; pure answers pay as others do, since {why}"

    def warnings(self, release: Release, user: str, *, fresh: bool) -> list[str]:
        """What the purchase would end for good, said before it is paid. Free: it reads the ledger alone."""
        if not self.accountant.sells_pure:
            return []
        found = self.ledger.closing(user, self._bill(release.unsettled or release, user, fresh).purchases)
        whose = {
            kind: "your allowance" if all(closing.user for closing in found if closing.kind == kind) else "everybody"
            for kind in dict.fromkeys(closing.kind for closing in found)
        }
        return [_ENDS[kind].format(whose=name) for kind, name in whose.items()]

    @property
    def compiling(self) -> int:
        """Queries that are compiled just now, in other processes."""
        return self._compiler.quick.held + self._compiler.long.held

    @property
    def compiling_long(self) -> int:
        """Those of them that take long."""
        return self._compiler.long.held

    @contextmanager
    def _working(self, asker: _Asker) -> Iterator[None]:
        """Within the block an engine works for the user; others wait their turn, but for those who ask for little."""
        self._work.take(asker.user, asker.cancellation)
        try:
            yield
        finally:
            self._work.give_back(asker.user)

    def close(self) -> None:
        self._compiler.close()
        self._engine.close()
        self._post.close()
        self.ledger.close()

    # --- clips ---

    def _found(self, release: Release) -> dict[int, StoredAnswer]:
        """The clips and centres that were chosen before, for whoever asked."""
        found: dict[int, StoredAnswer] = {}
        for index in release.searches:
            search = release.measurements[index]
            if all(earlier in found for _, earlier in search.clips):
                clips = [(index, found[earlier].instance) for index, earlier in search.clips]
                stored = self.ledger.lookup(key_of_answer(search.identity, (), clips))
                if stored is not None:
                    found[index] = decode(stored)
        return found

    def _settled(self, release: Release, asker: _Asker, known: Mapping[int, StoredAnswer] | None = None) -> Release:
        """The release with the clips that were chosen by now; they are released values, so anybody may see them."""
        if not release.searches:
            return release
        found = self._found(release) if known is None else known
        chosen = [(index, int(found[index].table.sums[0][0])) for index in release.searches if index in found]
        if not chosen:
            return release
        assert release.source is not None
        settled = self._compiled(release.source, asker, tuple(chosen), paid=known is not None)
        return replace(settled, unsettled=release)

    # --- what must be bought ---

    def _bill(self, release: Release, user: str | None, fresh: bool) -> _Bill:
        """Which measurements are stored already, and under which key each will be paid and kept."""
        bill = _Bill()
        for index, measurement in enumerate(release.measurements):
            if not measurement.statistics:
                # Free: the keys are the answer, and name it.
                assert measurement.cells is not None
                bill.instances[index] = digest(rows_text(measurement.cells)).hex()
                bill.known[index] = StoredAnswer(bill.instances[index], NoisyTable(measurement.cells, ()))
                continue
            used = [release.stages[stage] for stage in measurement.stages]
            earlier = [(stage.asked.identity, tuple(bill.instances[i] for i in stage.measurements)) for stage in used]
            clips = [(index, bill.instances[search]) for index, search in measurement.clips]
            key = key_of_answer(measurement.identity, earlier, clips)
            # A clip is bought once; another answer to the same question uses it too.
            stored = None if fresh and not measurement.is_search else self.ledger.lookup(key)
            bill.keys[index] = key
            bill.stages[index] = earlier
            if stored is not None:
                bill.known[index] = decode(stored)
            elif not fresh and user and (made := self._made(measurement, bill.stages[index], release.asked, user)):
                bill.known[index] = made.known
                bill.derived[index] = made.purchases
                bill.purchases += made.purchases
            attempt = None
            if index in bill.known:
                bill.instances[index] = bill.known[index].instance
            else:
                attempt = self._paid_attempt(key, measurement.price, user)
                bill.instances[index] = attempt.instance if attempt else self._sampler.salt()
            if measurement.is_search and not measurement.price.loss:
                if stored is None:
                    raise OperationalError("a stored contribution bound has expired", hint="Ask again.")
                continue
            if index not in bill.derived:
                replay = stored is not None or attempt is not None
                bill.purchases.append(Purchase(key, measurement.price, replay, attempt))
            if index not in bill.known:
                bill.prices[index] = measurement.price
                if attempt is not None:
                    bill.retries[index] = attempt
        return bill

    def _paid_attempt(self, key: bytes, price: Price, user: str | None) -> PaidAttempt | None:
        """What was paid for and never given. Who has not paid for it need not wait for it, and may buy it anew."""
        if user is None or not price.loss:
            return None
        found = self.ledger.paid_attempt(key, price)
        return found if found is None or not found.wait or self.ledger.has_paid(user, key) else None

    def _made(
        self, measurement: Measurement, stages: EarlierAnswers, asked: QuerySettings, user: str
    ) -> Derived | None:
        """The answer made of earlier ones: free, or no dearer and no further off than a new one would be."""
        made = self._reuse.find(measurement, stages, asked)
        if made is None:
            return None
        owed = self._owed(user, made.purchases)
        if owed != Price() and not (owed.is_no_dearer(measurement.price) and made.is_no_wider):
            return None
        return made

    def _owed(self, user: str, purchases: Iterable[Purchase]) -> Price:
        """What the user would pay for earlier answers of others."""
        return sum((p.price for p in set(purchases) if not self.ledger.has_paid(user, p.key)), Price())

    def _find_older(self, release: Release, bill: _Bill, user: str) -> None:
        """What the user has paid for before that new answers may be joined with."""
        for index, measurement in enumerate(release.measurements):
            if index not in bill.known:
                older = self._reuse.older(measurement, bill.stages[index], user)
                if older is not None:
                    bill.older[index] = older

    def _charge(self, user: str, bill: _Bill, sql: str, cancellation: Cancellation | None) -> Receipt:
        if not bill.purchases:
            return Receipt(Price(), None)
        try:
            return self.ledger.charge(user, bill.purchases, sql=kept_text(sql), cancellation=cancellation)
        except BudgetExhausted as error:
            cost = sum((purchase.price for purchase in bill.purchases), Price())
            error.detail = f"The query costs {price_text(cost, self.accountant)}; left is {self.left(user)}."
            error.hint = "Ask for less with SET dpsql.epsilon, repeat an earlier query for free, or ask the owner."
            raise

    # --- after it is paid ---

    def _measure(
        self,
        release: Release,
        measurement: Measurement,
        bill: _Bill,
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
        """The value of an earlier stage as parameters; total for whatever it may be."""
        rows = self._finish(release, stage.rest, known, cancellation)
        values = [None if isinstance(row[0], float) and not math.isfinite(row[0]) else row[0] for row in rows]
        if stage.kind == "in":
            listed = [value for value in values if value is not None]
            return {f"s{number}": listed, f"s{number}_null": None in values, f"s{number}_empty": not values}
        if len(values) > 1:
            raise TooManyRows("more than one row returned by a subquery used as an expression")
        return {f"s{number}": values[0] if values else None}

    def _finish(
        self, release: Release, rest: Rest, known: Mapping[int, StoredAnswer], cancellation: Cancellation | None
    ) -> Rows:
        """The rest of the query, over noisy and public tables."""
        if (rows := self._computed(release, rest, known)) is not None:
            return rows
        return self._run_rest(release, rest, known, cancellation)

    def _run_rest(
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

    def _computed(self, release: Release, rest: Rest, known: Mapping[int, StoredAnswer]) -> Rows | None:
        """The same in Python, where that is quicker and all that is read is one noisy table."""
        way = rest.in_python
        if way is None:
            return None
        rows = way.rows(list(_columns_of(release.measurements[way.measurement], known[way.measurement].table)))
        if rows:
            require_size(len(rows), len(rows[0]), self._limits.max_result_cells)
        return rows

    def _finished(self, release: Release, bill: _Bill, known: Mapping[int, StoredAnswer], asker: _Asker) -> Rows:
        """The rows of the answer; those of a small one are remembered, and given again where nothing was bought.

        Claim: remembered rows are those that the rest of the query would give again.
        Because: it reads the noisy tables that the key names, each by what was asked and by an identity of its own, and
        public tables, which are read once; nothing in it knows the time or draws a random number.
        Needs: SQL that was generated from a plan, which has neither.
        """
        used = [(index, bill.keys.get(index), noisy.instance) for index, noisy in sorted(known.items())]
        key = (release.rest.sql, (release.confidence, *used))
        found = None if bill.missing else self._answers.get(key)
        if found is None:
            found = self._computed(release, release.rest, known)
            if found is None:
                with self._working(asker):
                    found = self._run_rest(release, release.rest, known, asker.cancellation)
            if _is_small(found):
                self._answers.put(key, found)
        return found

    def _load(self, name: str, source: tuple[str, ...], columns: Sequence[tuple[str, object]]) -> None:
        with self._lock:
            if name in self._loaded:
                return
            data = self._engine.read_public(source, [column for column, _ in columns], MAX_PUBLIC_ROWS)
            if data and len(data[0]) > MAX_PUBLIC_ROWS:
                raise NotSupported(f"a public table has more than {MAX_PUBLIC_ROWS:,} rows")
            self._post.load(name, columns, data)  # type: ignore[arg-type]
            self._loaded.add(name)


def _noisy_columns(release: Release) -> int:
    return max(sum(output.noisy for output in release.outputs), 1)


def _noisy_numbers(release: Release, rows: Mapping[int, int]) -> int:
    """How many noisy numbers an answer may show: in each noisy column, one for every row of the noisy tables."""
    cells = [
        len(measurement.cells) if measurement.cells is not None else rows.get(index, 1)
        for index, measurement in enumerate(release.measurements)
        if not measurement.is_search
    ]
    return max(sum(cells), 1) * _noisy_columns(release)


def _columns_of(measurement: Measurement, table: NoisyTable) -> Iterator[list[Value] | Integers]:
    """Keys, noisy sums and their errors: what the rest of a query may read of a noisy table."""
    # Behind the declared cells stands the remainder, which nobody sees.
    rows = len(table) if measurement.cells is None else min(len(table), len(measurement.cells))
    yield from columns_of(table.keys[:rows]) or [[] for _ in measurement.keys]
    yield from (column[:rows] for column in table.sums)
    yield from cast(list[list[Value]], measurement.error_columns(table.sums, rows))


def _as_tables(read: Mapping[int, Sequence[list[Value] | Integers]]) -> dict[str, dict[str, Array]] | None:
    """Noisy tables as arrays, as far as they are read; None where a column cannot be one."""
    tables: dict[str, dict[str, Array]] = {}
    for index, columns in read.items():
        for i, column in enumerate(columns):
            array = array_of(column) if isinstance(column, list) else column
            if array is None:
                return None
            tables.setdefault(f"n{index}", {})[f"x{i}"] = array
    return tables or None


def _bytes_of(release: Release) -> int:
    """About as much memory as a release takes."""
    rests = [release.rest, *(stage.rest for stage in release.stages)]
    texts = [text for rest in rests for text in (rest.sql, rest.of_tables or "")]
    return sum(map(_bytes_in, release.measurements)) + _OF_TEXT * sum(map(len, texts))


def _bytes_in(measurement: Measurement) -> int:
    cells = len(measurement.cells or ()) + len(measurement.remainder)
    return _OF_CELL * cells + _OF_TEXT * sum(len(branch.query.sql) for branch in measurement.branches)


def _is_small(rows: Rows) -> bool:
    """Small enough that nobody can fill the memory with what is remembered."""
    if len(rows) > SMALL_ROWS:
        return False
    return sum(len(value) for value in chain.from_iterable(rows) if isinstance(value, str)) <= SMALL_TEXT


def this_minute() -> datetime:
    """What the clock of a query shows."""
    return datetime.now(UTC).replace(second=0, microsecond=0, tzinfo=None)


def _check_parameters(parameters: Sequence[Value]) -> None:
    for number, value in enumerate(parameters, 1):
        if value is not None and type(value) not in (bool, int, float, Decimal, str, date, datetime):
            raise BadSetting(f"parameter ${number} has a type that is not supported")
        if isinstance(value, datetime) and value.tzinfo is not UTC and value.tzinfo is not None:
            raise BadSetting(f"parameter ${number} has a time zone other than UTC", hint="Pass it in UTC.")
        if isinstance(value, Decimal) and not value.is_finite():
            raise BadSetting(f"parameter ${number} is not a finite number")


@dataclass(frozen=True, slots=True)
class _Attempt:
    index: int  # of the measurement in the release
    unanswered: Unanswered  # what it is if it fails


class _Bill:
    def __init__(self) -> None:
        self.purchases: list[Purchase] = []
        self.keys: dict[int, bytes] = {}
        self.stages: dict[int, EarlierAnswers] = {}  # what each was asked with
        self.derived: dict[int, tuple[Purchase, ...]] = {}  # what those are made of that are made of earlier answers
        self.older: dict[int, Older] = {}  # what those that are missing are joined with
        self.instances: dict[int, str] = {}
        self.known: dict[int, StoredAnswer] = {}
        self.prices: dict[int, Price] = {}  # of what is missing
        self.retries: dict[int, PaidAttempt] = {}  # what was paid for before and is run again
        self.noised: set[int] = set()  # whose noise was drawn

    def attempts(self, receipt: Receipt) -> Iterator[_Attempt]:
        """What is run by this payment, or by an earlier one."""
        for index, price in self.prices.items():
            retry = self.retries.get(index)
            charge, runs = (receipt.number, 1) if retry is None else (retry.charge, retry.runs + 1)
            if charge is not None:
                yield _Attempt(index, Unanswered(self.keys[index], price, charge, runs, self.instances[index]))

    @property
    def sources(self) -> list[Purchase]:
        """The earlier answers that others are made of."""
        return list(chain.from_iterable(self.derived.values()))

    @property
    def missing(self) -> list[bytes]:
        """The keys of what is not stored."""
        return [key for index, key in self.keys.items() if index not in self.known]


def _as_known(release: Release, known: Mapping[int, StoredAnswer], bill: _Bill, owed: Price) -> Release:
    """The release with the margins of what is known already; what is made of earlier answers costs what is owed."""
    told = {index: tuple(map(math.ceil, noisy.steps)) for index, noisy in known.items() if noisy.steps is not None}
    changed = as_told(release, told, bill.derived.keys())
    return replace(changed, price=changed.price + owed) if bill.derived else changed
