"""Dates and times in the text of rows, as PostgreSQL 16 reads them with DateStyle ISO, MDY; NULL for other text.

A few layouts of a whole text are recognised by regular expressions, of the part that engines share. What they find is
computed with as integers, so that no engine's reader, version or setting has a say. Each step reads only what the step
before it gives, which is NULL where no layout matched: no row can raise an error, and each text is written once.

Where this reads a value, it is that of `plan.moments.read_moment`, which reads constants. NULL is also what PostgreSQL
reads but no layout has:

- words of the clock (now, today): what a row holds may not depend on when it is read; infinity, and years before 1 or
  after 9999, which dpsql does not know;
- names of zones (Europe/Berlin, UTC+3, am-05) and abbreviations whose offset depends on the year: their data is too
  long for an expression;
- BC; AD but behind a blank at the end; allballs; fractions of Julian days; epoch with anything beside it;
- parts in an order that nobody writes: the month behind day and year, a zone before the date, a time without colons
  before the year;
- parts written together where a blank belongs: letters or a plus behind 3-Jan-2021, a minus behind a date;
- numbers with more zeros in front than a part has; separators that differ, are doubled, or stand at an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from dpsql.lowering.dialect import EVERYWHERE, in_calendar, literal
from dpsql.plan.abbreviations import ABBREVIATIONS
from dpsql.plan.moments import MONTHS
from dpsql.plan.scalars import Op
from dpsql.types import DATE, TIMESTAMP, Type


class Zoned(Enum):
    """Whether Z stands behind the time of a text."""

    NO = "no"
    PERHAPS = "perhaps"
    YES = "yes"


@dataclass(frozen=True, slots=True)
class TextForms:
    """How an engine writes what engines write differently."""

    # Steps of named values, each made of those of the step before, which are fields of `dt`, and a result.
    steps: Callable[[Sequence[Mapping[str, str]], str], str]
    once: Callable[[str, int, Callable[[str], str]], str]
    # A text of a common layout, and no other zone than Z; NULL for others, which all layouts are tried for.
    plain: Callable[[str, Type, Zoned], str]
    bytewise: str  # the text {0} without a collation of its own
    matches: str  # whether the text {0} has the form {1}
    add_seconds: str  # to the timestamp {0}, a double {1}
    round_even: str


LONGEST = 128  # characters; PostgreSQL reads as many, blanks not counted

# --- patterns ---

_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t|tember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAY = (
    "(?:(?:sun(?:day)?|mon(?:day)?|tue(?:s|sday)?|wed(?:s|nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?) +)?"
)
_SMALL, _LONG = "[0-9]{1,2}", "[0-9]{1,4}"
# Of several pieces, so that a weekday or a time may stand before them.
_SPACED = "|".join(
    (
        "[0-9]{6,8}",
        "(?:jd?|julian) *[0-9]{1,7}",
        "[0-9]{3,4} +[0-9]{3}",  # the day of the year
        f"{_LONG} +{_SMALL} +{_LONG}",
        f"{_MONTH} *{_LONG} +{_LONG}",
        f"{_LONG} *{_MONTH} *{_LONG}",
    )
)
# In one piece.
_JOINED = "|".join(("[0-9]{3,4}[-/.][0-9]{3}", *(f"{_LONG}{mark}{_SMALL}{mark}{_LONG}" for mark in ("-", "/", "[.]"))))
# In one piece that would go on with a letter or a plus behind it.
_NAMED = "|".join(
    (*(f"{_LONG}{mark}{_MONTH}{mark}{_LONG}" for mark in ("-", "/", "[.]")), f"{_MONTH}[-/.]{_LONG}[-/.]{_LONG}")
)
_CLOCK = f"{_SMALL}:{_SMALL}(?::{_SMALL})?(?:[.][0-9]{{0,20}})?"
_COMPACT = "[0-9]{4}(?:[0-9]{2})?(?:[.][0-9]{1,20})?"
_AHEAD = f"(?:{_LONG}|{_SMALL}:{_SMALL}(?::{_SMALL})?)"
_HALF = "[ap]m"
_BEHIND_HALF = f"{_HALF}(?: *[+]{_AHEAD}| +-{_AHEAD}| +[a-z]+)?"
_BEHIND_CLOCK = f" *{_BEHIND_HALF}| *[-+]{_AHEAD}| *[a-z]+|"
# Minus and a colon behind a time without colons are a date and a time to PostgreSQL.
_BEHIND_COMPACT = f" *{_BEHIND_HALF}| *[+]{_AHEAD}| +-{_AHEAD}|-{_LONG}| *[a-z]+|"
_BEHIND_DATE = f" *{_BEHIND_HALF}| *[+]{_AHEAD}| +-{_AHEAD}| *[a-z]+|"
_BEHIND_NAMED = f" +{_BEHIND_HALF}| +[-+]{_AHEAD}| +[a-z]+|"
_TO_TIME = " *t *| +(?:at +)?"
_TO_TIME_OF_NAMED = " +(?:at +)?"

_PLAIN = f"(?:{_WEEKDAY}(?:on +)?(?:{_SPACED})|(?:on +)?(?:{_JOINED}))"
# A time with colons has been taken out, and left @. What is behind that is am or pm, and a zone.
_USUAL = (
    f"^(?:{_PLAIN}(?:(?:{_TO_TIME})@(?:{_BEHIND_CLOCK}))?"
    f"|(?:on +)?(?:{_NAMED})(?:{_TO_TIME_OF_NAMED}@(?:{_BEHIND_CLOCK}))?)$"
)
# The date, a time without colons, and what is behind. PostgreSQL captures slowly: the usual layout does without.
_UNUSUAL = (
    (f"^({_PLAIN})(?:(?:{_TO_TIME})({_COMPACT})({_BEHIND_COMPACT})|({_BEHIND_DATE}))$", r"\1|\2|\3\4"),
    (
        f"^(?:on +)?({_NAMED})(?:{_TO_TIME_OF_NAMED}({_COMPACT})({_BEHIND_COMPACT})|({_BEHIND_NAMED}))$",
        r"\1|\2|\3\4",
    ),
    # As ctime writes it, the year last; a zone on either side of it.
    (
        f"^{_WEEKDAY}(?:on +)?({_MONTH} *{_LONG}|{_LONG} *{_MONTH}) +@({_BEHIND_CLOCK}) +({_LONG})({_BEHIND_DATE})$",
        r"\1 \3||\2 \4",
    ),
    (f"^@((?: *{_HALF})?) +{_WEEKDAY}(?:on +)?({_SPACED})( *[+]{_AHEAD}| +-{_AHEAD}| *[a-z]+|)$", r"\2||\1 \3"),
)
# Which characters a piece takes does not depend on how an engine searches: where one begins and ends, the text tells.

_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTERS = _UPPER.lower()
_DIGITS = "0123456789"
_SKIPPED = "\t\n\v\f\r" + "!\"#$%&'()*,;<=>?@[\\]^_`{|}~"  # blanks, and what PostgreSQL takes no notice of
_ZONES = " " + "".join(f"{name}:{ahead} " for name, ahead in ABBREVIATIONS.items())
_BEFORE_JULIAN = 1_721_425  # the Julian day before the year 1 begins


@dataclass(frozen=True, slots=True)
class DatesInText:
    """Claim: each form is defined for every text, and the same on every engine.

    Because: casts to integers see digits that a pattern has matched, at most eight of them; days are guarded by the
    total form of `make_date`; sums stay within the calendar of engines, and what is beyond dpsql's is dropped.
    Needs: `TextForms` that mean the same; regular expressions of the part that RE2 and PostgreSQL share.
    """

    forms: TextForms

    def date(self, text: str) -> str:
        return self._read(text, "CASE WHEN dt.micros + dt.ahead IS NOT NULL THEN dt.day END", DATE)

    def timestamp(self, text: str) -> str:
        """What clocks show. A zone must be one, and has no say."""
        return self._read(text, self._at("dt.micros + 0 * dt.ahead"), TIMESTAMP)

    def local(self, text: str) -> str:
        """What clocks show; NULL where the text names a zone."""
        return self._read(text, self._at("CASE WHEN dt.zone = '' THEN dt.micros END"), TIMESTAMP, Zoned.NO)

    def instant(self, text: str, local: str) -> str:
        """The moment of UTC; where the text names no zone, the moment that is handed in."""
        plain = self.forms.plain
        micros = "CASE WHEN dt.zone <> '' THEN dt.micros - dt.ahead * CAST(1000000 AS BIGINT) END"
        # Of another text than in `local`: what two expressions share, engines compute for all rows.
        other = f"CASE WHEN {plain(text, TIMESTAMP, Zoned.NO)} IS NULL THEN {text} END"
        computed = self.forms.once(other, 2, lambda text: self._computed(text, self._at(micros), TIMESTAMP))
        return f"COALESCE({plain(text, TIMESTAMP, Zoned.YES)}, {local}, {computed})"

    def _at(self, micros: str) -> str:
        seconds = f"(({micros}) / CAST(1000000 AS DOUBLE PRECISION))"
        return self.forms.add_seconds.format("CAST(dt.day AS TIMESTAMP)", seconds)

    def _read(self, text: str, result: str, type_: Type, zoned: Zoned = Zoned.PERHAPS) -> str:
        """Common layouts are nearly all there is in most columns, and quicker."""

        def either(text: str) -> str:
            return f"COALESCE({self.forms.plain(text, type_, zoned)}, {self._computed(text, result, type_)})"

        return self.forms.once(text, 8, either)

    def _computed(self, text: str, result: str, type_: Type) -> str:
        steps = (*self._pieces(text), *self._numbers(), {"moment": result})
        return self.forms.steps(steps, f"CASE WHEN {in_calendar('dt.moment', type_)} THEN dt.moment END")

    def _pieces(self, text: str) -> Sequence[Mapping[str, str]]:
        """The date, the time, and what stands behind both."""
        matches = self.forms.matches.format
        clean = (
            f"trim(translate(CASE WHEN length({text}) <= {LONGEST} THEN {self.forms.bytewise.format(text)} END,"
            f" {literal(_UPPER + _SKIPPED)}, {literal(_LETTERS + ' ' * len(_SKIPPED))}), ' ')"
        )
        # A colon behind a sign is a zone's.
        timed = "strpos(dt.clean, ':') > 0 AND right(dt.head, 1) NOT IN ('+', '-')"
        pieces = "dt.whole"
        for pattern, order in _UNUSUAL:
            pieces = f"regexp_replace({pieces}, '{pattern}', '{order}')"
        pieces = (
            f"CASE WHEN {matches('dt.whole', _USUAL)}"
            f" THEN split_part(dt.whole, '@', 1) || '||' || split_part(dt.whole, '@', 2) ELSE {pieces} END"
        )
        readable = f"strpos(dt.pieces, '|') > 0 AND (dt.time = '' OR {matches('dt.time', f'^{_CLOCK}$')})"
        return (
            {"clean": clean},
            {"clean": "CASE WHEN dt.clean = 'epoch' THEN '19700101 z' WHEN right(dt.clean, 3) = ' ad'"
                      " THEN rtrim(left(dt.clean, length(dt.clean) - 3), ' ') ELSE dt.clean END"},
            {"clean": "dt.clean", "head": f"rtrim(split_part(dt.clean, ':', 1), '{_DIGITS}')"},
            {"clean": "dt.clean", "head": "dt.head",
             "rest": f"CASE WHEN {timed} THEN substring(dt.clean, length(dt.head) + 1) END"},
            {"clean": "dt.clean", "head": "dt.head", "rest": "dt.rest", "behind": f"ltrim(dt.rest, '{_DIGITS}:.')"},
            {"time": "COALESCE(left(dt.rest, length(dt.rest) - length(dt.behind)), '')",
             "whole": "CASE WHEN dt.rest IS NOT NULL THEN dt.head || '@' || dt.behind ELSE dt.clean END"},
            {"time": "dt.time", "pieces": pieces},
            {"date": f"CASE WHEN {readable} THEN split_part(dt.pieces, '|', 1) END",
             "time": "CASE WHEN dt.time = '' THEN split_part(dt.pieces, '|', 2) ELSE dt.time END",
             "behind": "trim(split_part(dt.pieces, '|', 3), ' ')"},
        )  # fmt: skip

    def _numbers(self) -> Sequence[Mapping[str, str]]:
        """The day, microseconds since it began, and seconds ahead of UTC; NULL where there are none such."""
        year, month, day, more = (f"CAST(split_part(dt.parts, '|', {place}) AS INTEGER)" for place in (1, 2, 3, 4))
        century = f"CASE WHEN length(split_part(dt.parts, '|', 1)) > 2 THEN 0 WHEN {year} < 70 THEN 2000 ELSE 1900 END"
        hour, minute, second = (_digits(f"split_part(dt.clock, ':', {place})") for place in (1, 2, 3))
        fraction = (
            "CAST(CASE WHEN dt.date <> '' THEN '0.' || split_part(dt.time, '.', 2) || '0' END AS DOUBLE PRECISION)"
        )
        micro = f"CAST({self.forms.round_even.format(f'{fraction} * 1000000')} AS INTEGER)"
        kept = {"zone": "dt.zone"}
        return (
            {"date": "dt.date", "time": "dt.time", "behind": "dt.behind", "clock": _CLOCK_OF, "zone": _ZONE_OF,
             "half": f"CASE WHEN {_HAS_HALF} THEN left(dt.behind, 2) ELSE '' END",
             "numbers": "ltrim(regexp_replace(dt.date, '[^0-9]+', ' ', 'g'), ' ')",
             "word": "translate(dt.date, '0123456789-/. ', '')"},
            kept | {"time": "dt.time", "half": "dt.half", "hour": hour, "minute": minute, "second": second,
                    "micro": micro,
                    "parts": _year_month_day("dt.numbers", "dt.word"), "distance": _OFFSET_OF},
            kept | {"year": f"{year} + {century}", "month": month, "date": day, "more": more,
                    "micros": _MICROS, "ahead": _AHEAD_OF},
            kept | {"micros": "dt.micros", "ahead": "dt.ahead",
                    "day": f"{EVERYWHERE[Op.MAKE_DATE].format('dt.year', 'dt.month', 'dt.date')} + dt.more"},
        )  # fmt: skip


def _digits(text: str) -> str:
    """Digits as an integer; nothing is zero. NULL where nothing was read."""
    return f"CAST(CASE WHEN dt.date <> '' THEN '0' || {text} END AS INTEGER)"


# Hours, minutes and seconds with colons between them; minutes and seconds, where there is a fraction and one colon.
_CLOCK_OF = (
    "CASE WHEN dt.time = '' THEN '0:0:0' WHEN strpos(dt.time, ':') = 0"
    " THEN left(dt.time, 2) || ':' || substring(dt.time, 3, 2) || ':' || substring(split_part(dt.time, '.', 1), 5, 2)"
    " WHEN strpos(dt.time, '.') > 0 AND split_part(dt.time, ':', 3) = '' THEN '0:' || split_part(dt.time, '.', 1)"
    " ELSE split_part(dt.time, '.', 1) END"
)
# am or pm, and a zone behind it or alone.
_HAS_HALF = "left(dt.behind, 2) IN ('am', 'pm') AND substring(dt.behind, 3, 1) IN ('', ' ', '+')"
_ZONE_OF = f"CASE WHEN {_HAS_HALF} THEN ltrim(substring(dt.behind, 3), ' ') ELSE dt.behind END"
# Without colons, PostgreSQL looks at no range.
_MICROS = (
    "CASE WHEN dt.half <> '' AND dt.hour > 12 OR strpos(dt.time, ':') > 0 AND (dt.minute > 59 OR dt.second > 60"
    " OR dt.hour > 24 OR dt.hour = 24 AND dt.minute + dt.second + dt.micro > 0) THEN NULL"
    " ELSE CAST(dt.hour * 3600 + dt.minute * 60 + dt.second"
    " + CASE WHEN dt.half = 'pm' THEN 43200 ELSE 0 END - CASE WHEN dt.half <> '' AND dt.hour = 12 THEN 43200 ELSE 0 END"
    " AS BIGINT) * 1000000 + dt.micro END"
)
# Behind a sign: hours, minutes and seconds with colons. Two zones, on both sides of the year, are none.
_OFFSET_OF = (
    "CASE WHEN left(dt.zone, 1) NOT IN ('+', '-') THEN '' WHEN strpos(dt.zone, ' ') > 0 THEN NULL"
    " WHEN strpos(dt.zone, ':') = 0 AND length(dt.zone) > 3"
    " THEN substring(dt.zone, 2, length(dt.zone) - 3) || ':' || right(dt.zone, 2) ELSE substring(dt.zone, 2) END"
)


def _year_month_day(numbers: str, word: str) -> str:
    """Year, month and day as they are written, and days to add."""
    first, second, third = (f"split_part({numbers}, ' ', {place})" for place in (1, 2, 3))
    starts = " ".join(f"WHEN strpos({word}, '{name[:3]}') > 0 THEN '{place}'" for place, name in enumerate(MONTHS, 1))
    month = f"(CASE {starts} END)"
    days = f"CAST(NULLIF({second}, '') AS INTEGER)"
    return (
        f"(CASE WHEN strpos({word}, 'j') > 0 AND (strpos({word}, 'julian') > 0 OR {month} IS NULL)"
        f" THEN '0001|1|1|' || CAST(CAST({first} AS INTEGER) - {_BEFORE_JULIAN + 1} AS VARCHAR)"
        f" WHEN {month} IS NOT NULL AND length({first}) > 2 THEN {first} || '|' || {month} || '|' || {second} || '|0'"
        f" WHEN {month} IS NOT NULL THEN {second} || '|' || {month} || '|' || {first} || '|0'"
        f" WHEN {second} = '' THEN left({first}, length({first}) - 4) || '|' || left(right({first}, 4), 2) || '|'"
        f" || right({first}, 2) || '|0'"
        f" WHEN {third} = '' THEN {first} || '|1|1|' || (CASE WHEN {days} BETWEEN 1 AND 366 THEN {days} - 1 END)"
        f" WHEN length({first}) > 2 THEN {first} || '|' || {second} || '|' || {third} || '|0'"
        f" ELSE {third} || '|' || {first} || '|' || {second} || '|0' END)"
    )


def _ahead_of() -> str:
    """How far ahead of UTC the zone is; none is at UTC. NULL where no zone has the name, or none is so far away."""
    hour, minute, second = (f"CAST('0' || split_part(dt.distance, ':', {place}) AS INTEGER)" for place in (1, 2, 3))
    named = f"split_part(split_part('{_ZONES}', ' ' || dt.zone || ':', 2), ' ', 1)"
    return (
        f"CASE WHEN dt.zone = '' THEN 0 WHEN dt.distance = '' THEN CAST(NULLIF({named}, '') AS INTEGER)"
        f" WHEN {hour} <= 15 AND {minute} <= 59 AND {second} <= 59 THEN"
        f" CASE WHEN left(dt.zone, 1) = '-' THEN -1 ELSE 1 END * ({hour} * 3600 + {minute} * 60 + {second}) END"
    )


_AHEAD_OF = _ahead_of()
