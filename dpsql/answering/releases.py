"""The release of a query: compiled, cached, and completed with the chosen contribution bounds."""

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

_ROOM = 100_000_000  # approximate bytes of the cache of compiled queries
_OF_CELL, _OF_TEXT = 65, 20  # approximate bytes per cell, and per character of generated SQL
# A bound search gets at least one part in so many of the usual price. A single sum spends a fifth of its price on its
# clip, and a twentieth on its centre.
_POOREST_SEARCH = {StatisticKind.CLIP: 40, StatisticKind.CENTRE: 160}


@dataclass(frozen=True, slots=True)
class Asker:
    """On whose behalf the work is done."""

    user: str
    cancellation: Cancellation | None


class Releases:
    """Compiles queries, and caches their releases. Safe for many threads."""

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
        """The release of a query. Where its bounds are loose, earlier bound searches and the ledger decide its form.

        Stored answers come first, so that the same query has the same answer; then existing clips, which leave the
        whole price to the sums. A query with a low price makes no bound search: all later queries, of all users, would
        have to use its result.
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
        """The clips and centres that earlier queries of any user have chosen."""
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
        """The release with the clips chosen so far; these are released values, which any user may see."""
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
        """Refuse a price below the policy's minimum: answers at almost no cost fill the ledger and are useless."""
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
        """Whether a query pays less than half of the usual price, or divides its price among too many sums."""
        usual = self._accountant.policy.query_epsilon
        if settings.epsilon is not None and settings.epsilon * 2 < usual:
            return True
        parts = [(search.price.loss, _POOREST_SEARCH[search.statistics[0].kind]) for search in searches]
        return any(loss * least < self._accountant.price_of(usual) for loss, least in parts)

    def _compiled(self, source: Source, asker: Asker, chosen: Choice = (), *, paid: bool = False) -> Release:
        """Compile with a cache keyed by the text; by the minute too if it reads the clock, and by the time zone if it
        depends on it.
        """
        _check_parameters(source.parameters)
        # As text: equal decimals of different scale, and zeros of different sign, are different constants.
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
            # An internal error. It depends on the query only, as no data was read; still, show no details.
            raise InternalError(
                f"the query could not be compiled (log id {log_engine_error(error)})",
                hint="The owner finds the cause in the log under this id.",
            ) from None
        release = replace(compiled.release, source=source)
        depends = (*((now,) if compiled.reads_clock else ()), *((zone,) if compiled.reads_zone else ()))
        self._releases.put((*key, *depends), release)
        return release


def _bytes_of(release: Release) -> int:
    """The approximate memory of a release."""
    rests = [release.rest, *(stage.rest for stage in release.stages)]
    texts = [text for rest in rests for text in (rest.sql, rest.of_tables or "")]
    return sum(map(_bytes_in, release.measurements)) + _OF_TEXT * sum(map(len, texts))


def _bytes_in(measurement: Measurement) -> int:
    cells = 0 if measurement.cells is None else len(measurement.every_cell)
    return _OF_CELL * cells + _OF_TEXT * sum(len(branch.query.sql) for branch in measurement.branches)


def this_minute() -> datetime:
    """The time that a query sees, in whole minutes."""
    return datetime.now(UTC).replace(second=0, microsecond=0, tzinfo=None)


def _check_parameters(parameters: Sequence[Value]) -> None:
    for number, value in enumerate(parameters, 1):
        if value is not None and type(value) not in (bool, int, float, Decimal, str, date, datetime):
            raise BadSetting(f"parameter ${number} has a type that is not supported")
        if isinstance(value, datetime) and value.tzinfo is not UTC and value.tzinfo is not None:
            raise BadSetting(f"parameter ${number} has a time zone other than UTC", hint="Pass it in UTC.")
        if isinstance(value, Decimal) and not value.is_finite():
            raise BadSetting(f"parameter ${number} is not a finite number")
