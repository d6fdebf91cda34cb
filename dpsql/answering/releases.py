"""The release of a query: compiled, remembered, and settled with the contribution bounds that were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal

from dpsql.answering.answer_store import StoredAnswer, decode
from dpsql.answering.compiling import Compiler
from dpsql.answering.compiling.work import Choice
from dpsql.answering.lru import WeightedLru
from dpsql.answering.purchases import Purchases
from dpsql.effort import Cancellation
from dpsql.engines.runtime import log_engine_error
from dpsql.errors import BadSetting, Error, InternalError, TooManyFiles, is_for_files
from dpsql.ledger import Ledger
from dpsql.plan.zones import Zone
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.rules.aggregates import StatisticKind
from dpsql.release import BoundMode, Measurement, QuerySettings, Release, Source
from dpsql.release.identity import key_of_answer
from dpsql.sql.clock import Clock
from dpsql.types import Value

_ROOM = 100_000_000  # bytes, about, of compiled queries
_OF_CELL, _OF_TEXT = 65, 20  # bytes of a cell, and of what was compiled for each character of generated SQL
# A clip, or a centre, is searched for with one part of so many of the usual price, or more. A lone sum gives a fifth of
# its price for its clip, and a twentieth for its centre.
_POOREST_SEARCH = {StatisticKind.CLIP: 40, StatisticKind.CENTRE: 160}


@dataclass(frozen=True, slots=True)
class Asker:
    """Who waits for what is done."""

    user: str
    cancellation: Cancellation | None


class Releases:
    """Compiles queries, and remembers what was compiled. Safe for many threads."""

    def __init__(self, compiler: Compiler, accountant: Accountant, ledger: Ledger, purchases: Purchases) -> None:
        self._compiler = compiler
        self._accountant = accountant
        self._ledger = ledger
        self._purchases = purchases
        self._releases: WeightedLru[tuple[object, ...], Release] = WeightedLru(
            lambda _, release: _bytes_of(release), _ROOM
        )

    def release(
        self,
        sql: str,
        parameters: Sequence[Value],
        settings: QuerySettings,
        asker: Asker,
        *,
        fresh: bool,
        zone: Zone,
    ) -> Release:
        """The release of a query. Where it has loose clips, those that were found before decide with the ledger.

        What is stored already is preferred, so that the same question has the same answer; then clips that are found
        already, for they leave the whole price to the sums. A query that has little to give to a search does not make
        one: all later ones, of everybody, would have to live with what it finds.
        """
        clock = Clock(this_minute(), zone)

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
        stored = [] if fresh else [form for form in forms if not self._purchases.bill(form, None, fresh=False).missing]
        return self.settled(stored[0] if stored else forms[0], asker)

    def _found(self, release: Release) -> dict[int, StoredAnswer]:
        """The clips and centres that were chosen before, for whoever asked."""
        found: dict[int, StoredAnswer] = {}
        for index in release.searches:
            search = release.measurements[index]
            if all(earlier in found for _, earlier in search.clips):
                clips = [(index, found[earlier].instance) for index, earlier in search.clips]
                stored = self._ledger.lookup(key_of_answer(search.identity, (), clips))
                if stored is not None:
                    found[index] = decode(stored)
        return found

    def settled(self, release: Release, asker: Asker, known: Mapping[int, StoredAnswer] | None = None) -> Release:
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

    def _require_least_price(self, release: Release) -> None:
        """The owner may want no answers that cost next to nothing: each is kept, and none of them is of use."""
        least = self._accountant.policy.min_query_epsilon
        if least is None or not release.price.loss or self._accountant.epsilon_of(release.price.loss) >= least:
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
        usual = self._accountant.policy.query_epsilon
        if settings.epsilon is not None and settings.epsilon * 2 < usual:
            return True
        parts = [(search.price.loss, _POOREST_SEARCH[search.statistics[0].kind]) for search in searches]
        return any(loss * least < self._accountant.price_of(usual) for loss, least in parts)

    def _compiled(self, source: Source, asker: Asker, chosen: Choice = (), *, paid: bool = False) -> Release:
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


def _bytes_of(release: Release) -> int:
    """About as much memory as a release takes."""
    rests = [release.rest, *(stage.rest for stage in release.stages)]
    texts = [text for rest in rests for text in (rest.sql, rest.of_tables or "")]
    return sum(map(_bytes_in, release.measurements)) + _OF_TEXT * sum(map(len, texts))


def _bytes_in(measurement: Measurement) -> int:
    cells = 0 if measurement.cells is None else len(measurement.every_cell)
    return _OF_CELL * cells + _OF_TEXT * sum(len(branch.query.sql) for branch in measurement.branches)


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
