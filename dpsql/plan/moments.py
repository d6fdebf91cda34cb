"""Dates and timestamps in constants, as PostgreSQL 16 reads them (DateStyle ISO, MDY).

A text is split into fields: numbers, dates with separators, times of day, words, offsets from UTC. The meaning of a
field depends on the fields before it; a part that is set twice is refused. A number of three or more digits is a year
at the start of a date; otherwise months come before days, and days before years.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import NoReturn

from dpsql.plan.zones import Zone, fixed_zone, zone_of_value


@dataclass(frozen=True, slots=True)
class Moment:
    """The contents of a text: a day, the time of day, and the zone, if there is one."""

    day: date
    into: timedelta
    zone: Zone | None

    @property
    def at(self) -> datetime:
        """The local time. Raises OverflowError beyond the calendar."""
        return datetime.combine(self.day, time()) + self.into


class Unreadable(ValueError):
    """The text is not a valid moment. `why` is the kind of error, `word` the offending part."""

    def __init__(self, why: str, word: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.word = word


SYNTAX = "syntax"
FIELD = "field"  # a field is out of range
DISTANCE = "distance"  # the offset from UTC is too large
ZONE = "zone"  # there is no zone of this name
CLOCK = "clock"  # a word for the current time, where there is none
INFINITE = "infinite"
CALENDAR = "calendar"  # a moment within PostgreSQL's calendar, but not dpsql's

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTHS = {name[:3]: number for number, name in enumerate(MONTHS, 1)} | {
    name: number for number, name in enumerate(MONTHS, 1)
}
_MONTHS["sept"] = 9
DAYS = (
    *(
        "sunday",
        "sun",
        "monday",
        "mon",
        "tuesday",
        "tue",
        "tues",
        "wednesday",
        "wed",
        "weds",
        "thursday",
        "thu",
        "thur",
    ),
    *("thurs", "friday", "fri", "saturday", "sat"),
)
_CLOCK = {"today": 0, "tomorrow": 1, "yesterday": -1}
_OTHER = frozenset(
    {"ad", "bc", "am", "pm", "at", "on", "t", "j", "jd", "julian", "now", "allballs", "epoch", "infinity", "dst"}
    | {"dow", "doy", "isodow", "isoyear"}
)
_WORDS = _OTHER | set(_MONTHS) | set(DAYS) | set(_CLOCK)

_BLANK = " \t\n\v\f\r"
_FIELDS = re.compile(
    rf"""(?P<time>\d+:[\d:.]*)
    |(?P<date>\d+(?:(?P<mark>[-/])(?:\d+(?:(?P=mark)(?:\d|(?P=mark))*)?|(?![0-9])(?:[a-z0-9]|(?P=mark))*)
        |\.(?:\d+\.[\d.]*|(?![0-9])[a-z0-9.]*)))
    |(?P<number>\d+(?:\.\d+)?|\.\d*)
    |(?P<word>[a-z]+)
    |(?P<sign>[+-][{_BLANK}]*(?P<after>\d[\d:.-]*|[a-z]+))
    |(?P<skipped>[{_BLANK}]+|[!-*,/:-@\[-`{{-~])""",
    re.ASCII | re.VERBOSE,
)
_TAIL = re.compile(r"[-+/_.:a-z0-9]+", re.ASCII)
_LONGEST = 128  # characters that PostgreSQL reads, with one more for each field
_MOST_FIELDS = 25


def _fields(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at, room = 0, _LONGEST
    lowered = "".join(character.lower() if character.isascii() else character for character in text)
    while at < len(lowered):
        match = _FIELDS.match(lowered, at)
        if match is None:
            raise Unreadable(SYNTAX)
        kind, part = str(match.lastgroup), match[0]
        if kind in ("mark", "after"):
            kind = "date" if kind == "mark" else "sign"
        at = match.end()
        if kind == "skipped":
            continue
        if kind == "sign":
            part = part[0] + match["after"]
            kind = "distance" if part[1].isdigit() else "word"
        elif kind == "word" and at < len(lowered) and _is_compound(part, lowered[at]):
            tail = _TAIL.match(lowered, at)
            assert tail is not None
            kind, part, at = "date", part + tail[0], tail.end()
        room -= len(part) + 1
        if len(found) >= _MOST_FIELDS or room < 0:
            raise Unreadable(SYNTAX)
        found.append((kind, part))
    return found


def _is_compound(word: str, following: str) -> bool:
    """Whether a date or the name of a zone continues after a word."""
    return following in "-/." or ((following == "+" or following.isdigit()) and word not in _WORDS)


@dataclass(slots=True)
class _Reading:
    now: Callable[[], datetime] | None
    known: set[str] = field(default_factory=set)  # of year, month, day, time, zone …
    year: int = 0
    month: int = 0
    day: int = 0
    day_of_year: int = 0
    seconds: int = 0
    micros: int = 0
    hour: int = 0
    zone: Zone | None = None
    short_year: bool = False
    named_month: bool = False
    julian: bool = False
    before_christ: bool = False
    half: str = ""  # am or pm
    label: str = ""  # what the next number is: julian or t

    # --- fields ---

    def says(self, *parts: str) -> None:
        if self.known.intersection(parts):
            raise Unreadable(SYNTAX)
        self.known.update(parts)

    @property
    def dated(self) -> set[str]:
        return self.known & {"year", "month", "day"}

    def number(self, text: str) -> None:
        if self.label:
            return self._labelled(text)
        whole, point, _ = text.partition(".")
        if point and not self.dated:
            return self.date(text)
        if (point and len(whole) > 2) or (len(text) >= 6 and not (self.dated and "time" in self.known)):
            return self._compact(text)
        return self._single(text)

    def _labelled(self, text: str) -> None:
        label, self.label = self.label, ""
        whole, point, places = text.partition(".")
        if label == "t":
            if not whole:
                raise Unreadable(SYNTAX)
            return self._compact_time(text)
        self._of_julian(_small(whole))
        if point:
            self.says("time")
            micros = int(float("." + (places or "0")) * 86_400_000_000)
            self.seconds, self.micros = divmod(micros, 10**6)
            self.hour = self.seconds // 3600
        return None

    def _of_julian(self, number: int) -> None:
        self.says("year", "month", "day")
        self.julian = True
        self._set(number - 1_721_425)  # the day before year 1

    def _set(self, ordinal: int) -> None:
        try:
            found = date.fromordinal(ordinal)
        except (ValueError, OverflowError):
            raise Unreadable(CALENDAR) from None
        self.year, self.month, self.day = found.year, found.month, found.day

    def _compact(self, text: str) -> None:
        """yyyymmdd, yymmdd or a time without colons."""
        whole, point, _ = text.partition(".")
        if not point and len(self.dated) < 3 and len(whole) >= 6:
            self.says("year", "month", "day")
            self.year, self.month, self.day = _small(whole[:-4]), int(whole[-4:-2]), int(whole[-2:])
            self.short_year = self.short_year or len(whole) == 6
            return
        self._compact_time(text)

    def _compact_time(self, text: str) -> None:
        whole, point, places = text.partition(".")
        if len(whole) not in (4, 6):
            raise Unreadable(SYNTAX)
        self.says("time")
        # PostgreSQL checks no range here: 0195 is 02:35.
        hour, minute, second = int(whole[:2]), int(whole[2:4]), int(whole[4:] or 0)
        self._clock(hour, minute, second, _micros(places) if point else 0)

    def _clock(self, hour: int, minute: int, second: int, micros: int) -> None:
        self.hour, self.micros = hour, micros
        self.seconds = hour * 3600 + minute * 60 + second

    def _single(self, text: str) -> None:
        """One number, whose meaning follows from the fields before it."""
        whole, point, places = text.partition(".")
        if not whole:
            raise Unreadable(SYNTAX)
        value = _small(whole)
        if point and len(whole) > 2:
            return self._compact_time(text)
        if point:
            self.micros = _micros(places)  # of the second, even after a year
        known = self.dated
        if len(text) == 3 and known == {"year"} and 1 <= value <= 366:
            self.says("doy", "month", "day")
            self.day_of_year = value
            return None
        long = len(text) >= 3
        if not known or (known == {"month"} and self.named_month):
            part = "year" if long else "day" if known else "month"
        elif known == {"year"} or known == {"day"}:
            part = "month"
        elif known == {"month"}:
            part = "day"
        elif known == {"year", "month"}:
            part = "day"
            if self.named_month and long and self.short_year:
                # The first number was the day.
                self.says("day")
                self.day, self.year, self.short_year = self.year, value, False
                return None
        elif known == {"month", "day"}:
            part = "year"
        elif len(known) == 3:
            return self._compact_time(text)
        else:
            raise Unreadable(SYNTAX)
        self.says(part)
        setattr(self, part, value)
        if part == "year":
            self.short_year = len(text) <= 2
        return None

    def date(self, text: str) -> None:
        """A date with separators: first named months, then numbers in their order."""
        parts, rest = [], text
        while rest:
            rest = rest.lstrip("-/._:+")
            match = re.match(r"\d+|[a-z]+", rest, re.ASCII)
            if match is None:
                raise Unreadable(SYNTAX)
            parts.append(match[0])
            rest = rest[match.end() + 1 :]  # any separator
        for part in parts:
            if part.isalpha():
                if part not in _MONTHS:
                    raise Unreadable(SYNTAX)
                self.says("month")
                self.month, self.named_month = _MONTHS[part], True
        for part in parts:
            if not part.isalpha():
                self._single(part)
        if self.known - {"doy", "zone"} != {"year", "month", "day"}:
            raise Unreadable(SYNTAX)

    def compound(self, text: str) -> None:
        """A date, the name of a zone, or a time without colons and its offset from UTC."""
        if self.label == "t" or {"month", "day"} <= self.known:
            if not (text[0].isdigit() or self.label):
                self.zone = zone_of_value(text)
                if self.zone is None:
                    raise Unreadable(ZONE, text)
                self.says("zone")
                return
            digits, sign, distance = text.partition("-")
            if "time" in self.known or not sign:
                raise Unreadable(SYNTAX)
            self.label = ""
            self.distance(sign + distance)
            self._compact(digits)
        elif self.label:
            digits = re.match(r"\d*", text, re.ASCII)[0]  # type: ignore[index]
            self.label = ""
            self._of_julian(_small(digits))
            self.says("time")
            self.distance(text[len(digits) :])
        else:
            self.date(text)

    def time_of_day(self, text: str) -> None:
        if self.label not in ("", "t"):
            raise Unreadable(SYNTAX)
        self.label = ""
        found = re.fullmatch(r"(\d+):(\d*)(?::(\d*))?(\.\d*)?", text, re.ASCII)
        if found is None:
            raise Unreadable(SYNTAX)
        hour, minute, second = _small(found[1]), _small(found[2] or "0"), _small(found[3] or "0")
        micros = _micros(found[4][1:]) if found[4] else 0
        if found[3] is None and found[4]:
            hour, minute, second = 0, hour, minute
        if minute > 59 or second > 60 or hour > 24 or (hour == 24 and (minute or second or micros)):
            raise Unreadable(FIELD)
        self.says("time")
        self._clock(hour, minute, second, micros)

    def distance(self, text: str) -> None:
        """The offset from UTC."""
        found = re.fullmatch(r"([+-])(\d*)(?::(\d*)(?::(\d*))?)?(.*)", text, re.ASCII)
        if found is None:
            raise Unreadable(SYNTAX)
        sign, first, second, third, rest = found.groups()
        hours, minutes, seconds = int(first or 0), int(second or 0), int(third or 0)
        if second is None and not rest and len(text) > 3:
            hours, minutes = divmod(hours, 100)
        if hours > 15 or minutes > 59 or seconds > 59:
            raise Unreadable(DISTANCE)
        if rest:
            raise Unreadable(SYNTAX)
        self.says("zone")
        ahead = hours * 3600 + minutes * 60 + seconds
        self.zone = fixed_zone(-ahead if sign == "-" else ahead)

    def word(self, text: str, following: str) -> None:
        if text in ("at", "on"):
            return
        if text in _MONTHS:
            if "month" in self.known and "day" not in self.known and not self.named_month and 1 <= self.month <= 31:
                # The number before it is the day.
                self.says("day")
                self.day = self.month
            else:
                self.says("month")
            self.month, self.named_month = _MONTHS[text], True
        elif text in DAYS:
            self.says("dow")
        elif text in ("am", "pm"):
            self.says("half")
            self.half = text
        elif text in ("ad", "bc"):
            self.says("era")
            self.before_christ = text == "bc"
        elif text in ("j", "jd", "julian"):
            self.label = "julian"
        elif text == "t":
            if len(self.dated) < 3 or following not in ("number", "time", "date"):
                raise Unreadable(SYNTAX)
            self.label = "t"
        elif text == "allballs":
            self.says("time", "zone")
            self.zone = fixed_zone(0)
        elif text in _CLOCK or text == "now":
            self._clock_word(text)
        else:
            self._zone_word(text)

    def _clock_word(self, text: str) -> None:
        if self.now is None:
            raise Unreadable(CLOCK, text)
        self.says("year", "month", "day", *(("time", "zone") if text == "now" else ()))
        now = self.now()
        self._set(now.toordinal() + _CLOCK.get(text, 0))
        if text == "now":
            self._clock(now.hour, now.minute, now.second, now.microsecond)

    def _zone_word(self, text: str) -> None:
        if text in _WORDS or text.startswith(("+", "-")):
            raise Unreadable(SYNTAX)
        self.says("zone")
        self.zone = zone_of_value(text)
        if self.zone is None:
            raise Unreadable(SYNTAX)

    # --- the result ---

    def moment(self) -> Moment:
        if self.label or ("year" in self.known and not self._year_is_valid()):
            raise Unreadable(SYNTAX if self.label else FIELD)
        year = self.year
        if "year" in self.known and self.short_year and not self.julian and year < 100 and not self.before_christ:
            year += 2000 if year < 70 else 1900
        if "doy" in self.known:
            self._check_year(year)
            self._set(date(year, 1, 1).toordinal() + self.day_of_year - 1)
            year = self.year
        if ("month" in self.known and not 1 <= self.month <= 12) or ("day" in self.known and not 1 <= self.day <= 31):
            raise Unreadable(FIELD)
        complete = len(self.dated) == 3
        if complete and self.day > _days_of(year if not self.before_christ else 1 - year, self.month):
            raise Unreadable(FIELD)
        if self.half:
            if self.hour > 12:
                raise Unreadable(FIELD)
            self.seconds += (12 * 3600 if self.half == "pm" else 0) - (12 * 3600 if self.hour == 12 else 0)
        if not complete:
            raise Unreadable(SYNTAX)
        if self.before_christ and not self.julian:
            raise Unreadable(CALENDAR)
        self._check_year(year)
        into = timedelta(seconds=self.seconds, microseconds=self.micros)
        return Moment(date(year, self.month, self.day), into, self.zone)

    def _year_is_valid(self) -> bool:
        return self.julian or self.year > 0 or (self.short_year and not self.before_christ)

    def _check_year(self, year: int) -> None:
        if not 1 <= year <= 9999:
            raise Unreadable(CALENDAR)


def read_moment(text: str, now: Callable[[], datetime] | None = None) -> Moment:
    """The moment in a text. `now` is the local time of the session, for words like today."""
    fields = _fields(text)
    words = [part for kind, part in fields if kind == "word"]
    if len(fields) == 1 and words:
        if words[0].lstrip("+-") == "infinity":
            raise Unreadable(INFINITE)
        if words[0] == "epoch":
            return Moment(date(1970, 1, 1), timedelta(), fixed_zone(0))
    reading = _Reading(now)
    for (kind, part), following in zip(fields, [*(kind for kind, _ in fields[1:]), ""], strict=True):
        match kind:
            case "number":
                reading.number(part)
            case "date":
                reading.compound(part)
            case "time":
                reading.time_of_day(part)
            case "distance":
                reading.distance(part)
            case _:
                reading.word(part, following)
    return reading.moment()


def _small(digits: str) -> int:
    value = int(digits) if digits else _syntax()
    if value >= 2**31:
        raise Unreadable(FIELD)
    return value


def _syntax() -> NoReturn:
    raise Unreadable(SYNTAX)


def _micros(places: str) -> int:
    return round(float("0." + (places or "0")) * 10**6)


def _days_of(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and leap else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
