"""Time zones: the offset from UTC at each moment, as in PostgreSQL.

Engines have zone data of different versions, so dpsql always uses the package `tzdata`: the offsets are written into
the SQL, and Python computes with the same ones. Moments are whole seconds since 1970.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import isleap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from struct import calcsize, unpack_from

from dpsql.plan.abbreviations import ABBREVIATIONS

DAY = 86_400
CYCLE = 40  # years, which include every kind of year: leap or not, beginning on any day of the week
EPOCH = datetime(1970, 1, 1)
FIRST, LAST = (round((end - EPOCH).total_seconds()) for end in (datetime.min, datetime.max.replace(microsecond=0)))


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function: the seconds to add to a moment, and the moments at which they change."""

    first: int
    changes: tuple[tuple[int, int], ...] = ()  # from when, and how many seconds
    # Moments from this year on are looked up in a year of the same kind, among the 40 before it.
    repeats: int | None = None
    inside: tuple[int, int] | None = None  # where the result stays within the calendar, if not everywhere

    def at(self, second: int) -> int:
        if self.repeats is not None and second >= _new_year(self.repeats):
            year = (EPOCH + timedelta(seconds=second)).year
            second += _new_year(years_alike(self.repeats)[kind_of_year(year)]) - _new_year(year)
        place = bisect_right(self.changes, second, key=lambda change: change[0])
        return self.changes[place - 1][1] if place else self.first

    def between(self, low: datetime, high: datetime) -> Steps:
        """The steps between two moments, and where the result would leave the calendar."""
        first, last = second_of(low), second_of(high)
        repeats = self.repeats if self.repeats is not None and last >= _new_year(self.repeats) else None
        since, until = first, last
        if repeats is not None:
            since, until = min(first, _new_year(repeats - CYCLE)), _new_year(repeats)
        start = now = self.at(since)
        shown: list[tuple[int, int]] = []
        for at, seconds in self.changes:
            if since < at <= until and seconds != now:
                shown.append((at, seconds))
                now = seconds
        least, most = FIRST - min(self.at(first), 0), LAST - max(self.at(last), 0)
        inside = (least, most) if first < least or last > most else None
        return Steps(start, tuple(shown), repeats if shown else None, inside)

    def modulo(self, size: int) -> Steps:
        """The steps modulo a number of seconds."""
        changes, last = [], self.first % size
        for start, seconds in self.changes:
            if seconds % size != last:
                last = seconds % size
                changes.append((start, last))
        return Steps(self.first % size, tuple(changes), self.repeats if changes else None, self.inside)


def kind_of_year(year: int) -> int:
    """The day of the week it begins with, plus seven for a leap year: years of one kind have the same calendar."""
    return date(year, 1, 1).isoweekday() % 7 + (7 if isleap(year) else 0)


@lru_cache(maxsize=1000)
def years_alike(end: int) -> dict[int, int]:
    """A year of each kind, of the 40 before this one."""
    return {kind_of_year(year): year for year in range(end - CYCLE, end)}


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """A time zone under the name that `known_zone` finds it by."""

    name: str
    leaving: Steps  # from UTC to local time
    arriving: Steps  # from local time to UTC

    def __reduce__(self) -> tuple[Callable[[str], Zone], tuple[str]]:
        """Pickle it by name: other processes have the same data."""
        return known_zone, (self.name,)

    @property
    def is_utc(self) -> bool:
        return not self.leaving.first and not self.leaving.changes

    @property
    def skips_days(self) -> bool:
        """Whether a calendar day is skipped in this zone."""
        offsets = [self.leaving.first, *(ahead for _, ahead in self.leaving.changes)]
        return any(new - old >= DAY for old, new in pairwise(offsets))

    def to_local(self, moment: datetime) -> datetime | None:
        """The local time at a moment in UTC; None beyond the calendar."""
        return _moved(moment, self.leaving.at(second_of(moment)))

    def to_utc(self, local: datetime) -> datetime | None:
        """The moment of a local time. For skipped and repeated times, standard time, as in PostgreSQL."""
        return _moved(local, self.arriving.at(second_of(local)))


def zone_of_setting(text: str) -> Zone | None:
    """A zone as SET TimeZone names it: a bare number is an offset in hours."""
    if re.fullmatch(r"[+-]?\d{1,3}(\.\d+)?", text.strip(), re.ASCII):
        ahead = round(float(text) * 3600)
        return _fixed(ahead) if abs(ahead) < _FARTHEST else None
    return _zone(text)


def zone_of_value(name: str) -> Zone | None:
    """A zone as AT TIME ZONE and timestamps name it: an abbreviation takes precedence over a zone of the same name."""
    ahead = ABBREVIATIONS.get(name.lower())
    return _zone(name) if ahead is None else _fixed(ahead)


def fixed_zone(ahead: int) -> Zone:
    """The zone with a fixed offset from UTC, in seconds."""
    return _fixed(ahead)


@lru_cache(maxsize=1000)
def known_zone(name: str) -> Zone:
    """The zone of a valid name."""
    ahead = _posix(name) if name.startswith("<") else None
    return _loaded(name) if ahead is None else _fixed(ahead)


def _zone(name: str) -> Zone | None:
    """A zone of the IANA database, in any case, or a POSIX offset like <+03>-3."""
    if (written := _names().get(name.lower())) is not None:
        return known_zone(written)
    ahead = _posix(name)
    return None if ahead is None else _fixed(ahead)


_FARTHEST = 168 * 3600  # seconds; PostgreSQL accepts less than a week


def _fixed(ahead: int) -> Zone:
    if not ahead:
        return UTC_ZONE
    east, west = ("-", "+") if ahead < 0 else ("+", "-")
    distance = offset_digits(ahead)
    return Zone(f"<{east}{distance}>{west}{distance}", Steps(ahead), Steps(-ahead))


def offset_digits(ahead: int) -> str:
    """An offset from UTC without its sign, as PostgreSQL writes it."""
    hours, rest = divmod(abs(ahead), 3600)
    return f"{hours:02}" + (f":{rest // 60:02}" if rest else "") + (f":{rest % 60:02}" if rest % 60 else "")


# An offset in POSIX notation: west of Greenwich is positive. An arbitrary name may precede it.
_POSIX = re.compile(r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+:-]+>)?([+-]?)(\d{1,3})(?::(\d\d))?(?::(\d\d))?", re.ASCII)


def _posix(text: str) -> int | None:
    found = _POSIX.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    west = hours * 3600 + minutes * 60 + seconds
    if west >= _FARTHEST or minutes > 59 or seconds > 59:
        return None
    return west if found[1] == "-" else -west


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    return {name.lower(): name for name in listed}


UTC_ZONE = Zone("UTC", Steps(0), Steps(0))


# --- moments ---


def moment_at(second: int) -> datetime:
    return EPOCH + timedelta(seconds=second)


def second_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(seconds=1)


def _moved(moment: datetime, seconds: int) -> datetime | None:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _new_year(year: int) -> int:
    return (date(year, 1, 1).toordinal() - EPOCH.toordinal()) * DAY


def _arriving(first: int, changes: Sequence[tuple[int, int]], repeats: int | None) -> Steps:
    """PostgreSQL's DetermineTimeZoneOffset, for all local times at once.

    It looks for the first change after the day before the local time, read as UTC, and uses the offset after the change
    from the new local time on: in a repeated hour the second offset, in a skipped hour the offset before.
    """
    found, before = [], FIRST - 2 * DAY
    for start, ahead in changes:
        found.append((min(max(start + ahead, before + DAY), start + DAY), -ahead))
        before = start
    return Steps(-first, tuple(found), repeats)


# --- the files of tzdata ---


def _loaded(name: str) -> Zone:
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    times, kinds, offsets, footer = _read(data)
    changes = [(at, offsets[kind]) for at, kind in zip(times, kinds, strict=True)]
    repeats = None
    if "," in footer:
        last = datetime.fromtimestamp(times[-1], UTC).year if times else 1969
        start = times[-1] if times else FIRST
        # The year of the last change may not follow the rule yet; later years do.
        repeats = last + CYCLE + 1
        for year in range(last, repeats):
            changes += [change for change in sorted(_of_year(footer, year)) if change[0] > start]
    elif footer and times:
        changes.append((times[-1] + 1, _ahead(_RULE.match(footer)[2])))  # type: ignore[index]
    first, changes = offsets[0], _compact(offsets[0], changes)
    return Zone(name, Steps(first, tuple(changes), repeats), _arriving(first, changes, repeats))


def _compact(first: int, changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    offsets = [first, *(ahead for _, ahead in changes)]
    return [change for change, (old, new) in zip(changes, pairwise(offsets), strict=True) if old != new]


_HEADER = ">4s1s15x6l"


def _read(data: bytes) -> tuple[tuple[int, ...], tuple[int, ...], list[int], str]:
    """A TZif file (RFC 9636): times of changes and the new kinds; offsets of kinds; the rule for later years."""
    _, _, *first = unpack_from(_HEADER, data, 0)
    size = calcsize(_HEADER)
    start = size + _length(first, 4)
    _, version, *counts = unpack_from(_HEADER, data, start)
    if version < b"2":
        raise ValueError("tzdata holds a file of version 1")
    *_, times, kinds, _ = counts
    at = start + size
    moments = unpack_from(f">{times}q", data, at)
    of_kind = unpack_from(f">{times}B", data, at + 8 * times)
    records = at + 9 * times
    offsets = [unpack_from(">l", data, records + 6 * number)[0] for number in range(kinds)]
    footer = data[start + size + _length(counts, 8) :].decode("ascii").strip("\n")
    return moments, of_kind, offsets, footer


def _length(counts: list[int], width: int) -> int:
    universal, standard, leaps, times, kinds, characters = counts
    return times * (width + 1) + kinds * 6 + characters + leaps * (width + 4) + standard + universal


_NAME = r"(?:[A-Za-z]+|<[^>]+>)"
_RULE = re.compile(rf"({_NAME})([-+:0-9]+)(?:({_NAME})([-+:0-9]*),([^,]+),([^,]+))?", re.ASCII)


def _ahead(west: str) -> int:
    return -_clock(west)


def _clock(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = ([int(part) for part in text.lstrip("+-").split(":")] + [0, 0])[:3]
    return sign * (hours * 3600 + minutes * 60 + seconds)


def _of_year(rule: str, year: int) -> list[tuple[int, int]]:
    """Both changes of a year: the moment, and the new offset."""
    found = _RULE.fullmatch(rule)
    assert found is not None, rule
    _, west, _, summer, begins, ends = found.groups()
    standard = _ahead(west)
    ahead = _ahead(summer) if summer else standard + 3600
    return [(_day_of(begins, year) - standard, ahead), (_day_of(ends, year) - ahead, standard)]


def _day_of(rule: str, year: int) -> int:
    """The local moment of a rule like M3.5.0/2."""
    day, _, time = rule.partition("/")
    clock = _clock(time) if time else 7200
    if day.startswith("M"):
        month, week, weekday = map(int, day[1:].split("."))
        first = date(year, month, 1)
        at = first + timedelta(days=(weekday - first.isoweekday()) % 7 + 7 * (week - 1))
        while at.month != month:
            at -= timedelta(days=7)
        number = at.toordinal()
    elif day.startswith("J"):
        # The 29th of February is not counted.
        number = date(year, 1, 1).toordinal() + int(day[1:]) - 1
        number += int(day[1:]) > 59 and isleap(year)
    else:
        number = date(year, 1, 1).toordinal() + int(day)
    return (number - EPOCH.toordinal()) * DAY + clock
