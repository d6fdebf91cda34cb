"""One analyst's session: user and settings. `explain` and `describe` are free; only `execute` is charged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.tidy import tidied
from dpsql.answering.times import in_zone
from dpsql.effort import Cancellation
from dpsql.errors import BadSetting, BudgetExhausted, Error
from dpsql.plan.zones import UTC_ZONE, Zone, zone_of_setting
from dpsql.privacy.confidence import USUAL
from dpsql.release import Output, QuerySettings, Release
from dpsql.release.explain import explain
from dpsql.settings import setting_named
from dpsql.sql.parse import is_explain
from dpsql.tables import ResultTable
from dpsql.types import TEXT, Value

_SET = re.compile(
    r"\s*SET\s+(?:SESSION\s+)?dpsql\.(\w+)\s*(?:=|\bTO\b)\s*('[^']*'|[^\s';]*)\s*;?\s*", re.IGNORECASE | re.ASCII
)
_SHOW = re.compile(r"\s*SHOW\s+dpsql\.(\w+)\s*;?\s*", re.IGNORECASE | re.ASCII)
_RESET = re.compile(r"\s*RESET\s+dpsql\.(\w+)\s*;?\s*", re.IGNORECASE | re.ASCII)
# As in PostgreSQL: SET TimeZone = x, SET TIME ZONE x, RESET TimeZone, SHOW TimeZone.
_TIME_ZONE = r"(?:TimeZone|TIME\s+ZONE)"
_SET_ZONE = re.compile(
    r"\s*SET\s+(?:SESSION\s+)?(?:TimeZone\s*(?:=|\bTO\b)|TIME\s+ZONE\b)\s*(?:('[^']*'|\"[^\"]*\")|([^\s';]+))\s*;?\s*",
    re.IGNORECASE | re.ASCII,
)
_RESET_ZONE = re.compile(rf"\s*RESET\s+{_TIME_ZONE}\s*;?\s*", re.IGNORECASE | re.ASCII)
_SHOW_ZONE = re.compile(rf"\s*SHOW\s+{_TIME_ZONE}\s*;?\s*", re.IGNORECASE | re.ASCII)


@dataclass(slots=True)
class SessionSettings:
    """The values of `dpsql.settings.SETTINGS` in one session, and its time zone."""

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    margin: Fraction | None = None
    fresh: bool = False
    tidy: bool = False
    pure: bool = False
    confidence: Fraction | None = None
    simultaneous: bool = False
    zone: Zone = UTC_ZONE  # the time zone in which dates and times are read and shown

    def set_zone(self, text: str) -> None:
        found = zone_of_setting(text)
        if found is None:
            raise BadSetting(
                f'invalid value for parameter "TimeZone": "{text}"',
                hint="Use a name of the IANA time zone database, as in SET TimeZone = 'Europe/Berlin'.",
            )
        self.zone = found

    def set(self, name: str, text: str) -> None:
        setattr(self, name, setting_named(name).read(text))

    def reset(self, name: str) -> None:
        setattr(self, name, setting_named(name).unset)

    def show(self, name: str) -> str:
        return setting_named(name).shown(getattr(self, name))


@dataclass(slots=True)
class Session:
    """One user's queries of one dataset. Not thread-safe; the dataset is."""

    dataset: Dataset
    user: str
    settings: SessionSettings = field(default_factory=SessionSettings)

    def __post_init__(self) -> None:
        self.dataset.ledger.remaining(self.user)  # raises UnknownUser

    def release(self, sql: str, parameters: Sequence[Value] = (), cancellation: Cancellation | None = None) -> Release:
        """What a query would do. Free: no rows are read, nothing is charged."""
        wanted = QuerySettings(self.settings.epsilon, self.settings.delta, self.settings.margin, self.settings.pure)
        return self.dataset.compile(
            sql,
            parameters,
            wanted,
            fresh=self.settings.fresh,
            user=self.user,
            cancellation=cancellation,
            zone=self.settings.zone,
        )

    def describe(
        self, sql: str, parameters: Sequence[Value] = (), cancellation: Cancellation | None = None
    ) -> tuple[Output, ...]:
        return self.release(sql, parameters, cancellation).outputs

    def explain(
        self, sql: str, parameters: Sequence[Value] = (), cancellation: Cancellation | None = None
    ) -> list[str]:
        release = self.release(sql, parameters, cancellation)
        warnings = self.dataset.warnings(release, self.user, fresh=self.settings.fresh)
        if not self.settings.fresh:
            release = self.dataset.preview(release, self.user)
        release = self.dataset.with_confidence(
            release, self.settings.confidence or USUAL, simultaneous=self.settings.simultaneous
        )
        return explain(release, self.dataset.accountant, self.left(), warnings)

    def left(self) -> str:
        """What the user can still spend, as text."""
        return self.dataset.left(self.user)

    def execute(
        self, sql: str, parameters: Sequence[Value] = (), cancellation: Cancellation | None = None
    ) -> Answer | ResultTable | None:
        """The answer to a query, the text of EXPLAIN or SHOW, or None for SET."""
        if (found := _SET.fullmatch(sql)) is not None:
            if found[2].upper() == "DEFAULT":
                self.settings.reset(found[1].lower())
            else:
                self.settings.set(found[1].lower(), found[2].strip("'"))
            return None
        if (found := _RESET.fullmatch(sql)) is not None:
            self.settings.reset(found[1].lower())
            return None
        if (found := _SET_ZONE.fullmatch(sql)) is not None:
            text = found[1] or found[2]
            self.settings.set_zone("UTC" if text.upper() in ("DEFAULT", "LOCAL") else text.strip("'\""))
            return None
        if _RESET_ZONE.fullmatch(sql) is not None:
            self.settings.zone = UTC_ZONE
            return None
        if _SHOW_ZONE.fullmatch(sql) is not None:
            return _text_table("TimeZone", [self.settings.zone.name])
        if (found := _SHOW.fullmatch(sql)) is not None:
            return _text_table(f"dpsql.{found[1].lower()}", [self.settings.show(found[1].lower())])
        if is_explain(sql):
            return _text_table("QUERY PLAN", self.explain(sql, parameters, cancellation))
        with self._recorded_if(Error, sql):
            release = self.release(sql, parameters, cancellation)
        with self._recorded_if(BudgetExhausted, sql):
            answer = self.dataset.answer(
                release,
                user=self.user,
                sql=sql,
                fresh=self.settings.fresh,
                cancellation=cancellation,
                level=self.settings.confidence or USUAL,
                simultaneous=self.settings.simultaneous,
            )
        answer = in_zone(answer, self.settings.zone)
        return tidied(answer) if self.settings.tidy else answer

    @contextmanager
    def _recorded_if(self, refusal: type[Error], sql: str) -> Iterator[None]:
        """Record a refusal for the owner, if possible: a failing ledger must not hide the refusal itself."""
        try:
            yield
        except refusal as error:
            with suppress(Exception):
                self.dataset.ledger.refuse(self.user, sql, error.sqlstate, error.message)
            raise


def _text_table(name: str, lines: Sequence[str]) -> ResultTable:
    return ResultTable((name,), (TEXT,), [(line,) for line in lines])
