"""Text to dates: constants are read to PostgreSQL's value, or refused as PostgreSQL refuses them; rows may be NULL.

PostgreSQL's own casts are the judge of both; what is NULL though PostgreSQL reads it is listed here, form by form.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb
import psycopg
import pytest

from dpsql.lowering.dialect import Dialect
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.lowering.scalars import ScalarWriter
from dpsql.plan.moments import CALENDAR, DAYS, DISTANCE, FIELD, MONTHS, SYNTAX, ZONE, Unreadable, read_moment
from dpsql.plan.scalars import Call, Field, Op, Ref
from dpsql.plan.zones import UTC_ZONE
from dpsql.types import BIGINT, DATE, TEXT, TIMESTAMP, TIMESTAMPTZ, Type, integer
from grammar_tests.servers import Server

STATES = {SYNTAX: "22007", FIELD: "22008", DISTANCE: "22009", ZONE: "22023"}
# PostgreSQL takes letters and a distance for a zone (x-8, pm-05:30); dpsql refuses names of less than three letters.
_ODD_ZONE = re.compile(r"[a-z][-+.:0-9/_a-z]*\d", re.IGNORECASE)


class Texts:
    """Texts that look like dates, and some that do not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pick = self._random.choice
        self._below = self._random.randrange

    def number(self) -> str:
        return self._pick(
            (
                str(self._below(1, 13)),
                f"{self._below(36):02}",
                self._pick(("1999", "2021", "2024", "99", "2000", "1", "9999", "12345")),
                f"{self._below(1990, 2031)}{self._below(1, 14):02}{self._below(1, 32):02}",
                f"{self._below(100):02}{self._below(1, 14):02}{self._below(1, 32):02}",
                f"{self._below(401):03}",
            )
        )

    def date(self) -> str:
        if self._below(5) == 0:
            return self._pick(
                (self.number(), f"J24592{self._below(100):02}", f"{self._below(1990, 2031)}.{self._below(370):03}")
            )
        parts = [self.number(), self._pick((self.number(), self._pick(("Jan", "feb", "March", "SEPT")))), self.number()]
        self._random.shuffle(parts)
        return self._pick("-/. ,").join(parts)

    def time(self) -> str:
        hour, minute, second = self._below(26), self._below(62), self._below(62)
        places = self._below(10 ** self._below(1, 9))
        return self._pick(
            (
                f"{hour}:{minute:02}", f"{hour:02}:{minute:02}:{second:02}",
                f"{hour:02}:{minute:02}:{second:02}.{places}",
                f"{hour:02}{minute:02}{second:02}", f"{hour:02}{minute:02}", "24:00", "23:59:59.9999999",
            )
        )  # fmt: skip

    def zone(self) -> str:
        return self._pick(("+02", "-05:30", "+0530", "z", " UTC", "+15:59:59", "+16", " PST", " Europe/Berlin"))

    def text(self) -> str:
        if self._below(4) == 0:
            words = ("jan", "MAR", "Tuesday", "am", "PM", "t", "j", "julian", "at", "bc", "allballs", "x", "May")
            kinds = (self.number, self.time, self.zone, self.date, lambda: self._pick(words))
            return "".join(self._pick(kinds)() + self._pick(("", " ", "-", "/", ".", ",", "T")) for _ in range(4))
        made = self.date()
        made += self._pick(("", self._pick((" ", "T", "t", "  ")) + self.time()))
        made += self._pick(("", "", "", " am", "pm")) + self._pick(("", "", self.zone()))
        made += self._pick(("", "", "", "", " bc", " AD"))
        return self._pick(("", "", "", self._pick(DAYS) + " ")) + made


def _ours(text: str) -> tuple[str, str, str]:
    """As a date, a timestamp and an instant."""
    try:
        read = read_moment(text)
        instant = (read.zone or UTC_ZONE).to_utc(read.at)
    except OverflowError:
        return CALENDAR, CALENDAR, CALENDAR
    except Unreadable as error:
        state = STATES.get(error.why, error.why)
        return state, state, state
    return str(read.day), str(read.at), CALENDAR if instant is None else str(instant)


_READ = """CREATE OR REPLACE FUNCTION pg_temp.seen(t text, kind text, OUT made text) LANGUAGE plpgsql AS $$ BEGIN
EXECUTE format('SELECT CAST(CAST(%L AS %s) AS timestamp)::text', t, kind) INTO made;
EXCEPTION WHEN OTHERS THEN made := SQLSTATE; END $$"""


def _is_same(ours: str, theirs: str) -> bool:
    if ours == CALENDAR:
        return theirs == "22008" or theirs.endswith("BC") or len(theirs.partition("-")[0]) > 4
    if re.fullmatch("[0-9A-Z]{5}", ours) or re.fullmatch("[0-9A-Z]{5}", theirs):
        return ours == theirs
    return datetime.fromisoformat(ours) == datetime.fromisoformat(theirs)


def test_texts_are_read_as_postgresql_reads_them(server: Server) -> None:
    made = Texts(7)
    texts = [made.text() for _ in range(4_000)]
    with server.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET DateStyle = 'ISO, MDY'")
        connection.execute(_READ)
        kinds = ", ".join(f"pg_temp.seen(t, '{kind}')" for kind in ("date", "timestamp", "timestamptz"))
        rows = connection.execute(f"SELECT t, {kinds} FROM unnest(%s::text[]) AS t", [texts]).fetchall()
    readable = otherwise = 0
    for text, *theirs in rows:
        ours = _ours(text)
        if all(map(_is_same, ours, theirs)):
            readable += "-" in ours[0]
            continue
        # Of several things that are wrong, the other may be named.
        otherwise += 1
        assert ours[0] in STATES.values(), (text, theirs, ours)
        assert set(theirs) <= set(STATES.values()) or _ODD_ZONE.search(text), (text, theirs, ours)
    assert readable > 300 and otherwise < len(rows) / 50, (readable, otherwise)


class Layouts:
    """Texts of the layouts that are read from rows as well, and every now and then a number that is out of range."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pick = self._random.choice
        self._below = self._random.randrange

    def _number(self, end: int) -> str:
        value = self._below(end)
        return self._pick((str(value), f"{value:02}"))

    def _year(self) -> str:
        return self._pick((f"{self._below(10_000):04}", str(self._below(1990, 2031)), f"{self._below(100):02}", "021"))

    def _month(self) -> str:
        return self._pick((*MONTHS, *(name[:3] for name in MONTHS), "SEPT", "Jan", "July"))

    def _spaced(self) -> str:
        """A date of several pieces, or of digits alone."""
        day, month, number, year = self._number(33), self._month(), self._number(14), self._year()
        gap = self._pick((" ", ", ", "  ", "_", "\t"))
        return self._pick(
            (
                f"{year[:2]}{self._below(14):02}{self._below(33):02}", f"{self._below(10**8):08}",
                f"{2021}{self._below(14):02}{self._below(33):02}", f"{year:0>3}{gap}{self._below(368):03}",
                self._pick(("J", "jd ", "julian")) + str(self._below(1_721_000, 5_380_000)),
                f"{number}{gap}{day}{gap}{year}", f"{year}{gap}{number}{gap}{day}",
                f"{month}{gap}{day}{gap}{year}", f"{month}{day},{year}", f"{day}{gap}{month}{gap}{year}",
                f"{day}{month}{year}", f"{year:0>3}{gap}{month}{gap}{day}",
            )
        )  # fmt: skip

    def _joined(self) -> str:
        mark, year, day, month = self._pick("-/."), self._year(), self._number(33), self._number(14)
        of_year = f"{year:0>3}{mark}{self._below(368):03}"
        return self._pick((mark.join((month, day, year)), mark.join((f"{year:0>3}", month, day)), of_year))

    def _named(self) -> str:
        mark, parts = self._pick("-/."), [self._number(33), self._month(), self._year()]
        return mark.join(self._pick((parts, parts[::-1], [parts[1], parts[0], parts[2]])))

    def _clock(self) -> str:
        hour, minute, second = self._number(26), self._number(62), self._number(62)
        places = self._pick((f"{self._below(10 ** self._below(1, 10))}", "9999996", "0000005", "5"))
        return self._pick(
            (
                f"{hour}:{minute}", f"{hour}:{minute}:{second}", f"{hour}:{minute}:{second}.{places}",
                f"{minute}:{second}.{places}", "24:00", f"12:{minute}:{second}.",
            )
        )  # fmt: skip

    def _compact(self) -> str:
        second = self._pick(("", f"{self._below(75):02}", f"{self._below(75):02}.{self._below(1_000)}"))
        return f"{self._below(26):02}{self._below(99):02}{second}"

    def _zone(self) -> str:
        """Behind a blank, if need be."""
        return self._pick(
            (
                "", "", " Z", " UTC", " pst", " CEST", " xyz", " +02", " -5", " +0530", " -08:00", " +5:30", " -530",
                " +15:59:59", " +16", " -0860", " -03:00:61",
            )
        )  # fmt: skip

    def text(self) -> str:
        day, half = self._pick(("", "", "Sun ", "Tuesday, ", "WEDS ", "on ")), self._pick(("", "", " am", " PM", "pm"))
        date = self._pick((day + self._spaced(), self._spaced(), self._joined()))
        zone, era = self._zone(), self._pick(("", "", "", "", " AD", "!"))
        to_time = self._pick((" ", "T", " t ", " at ", ", ", " @ "))
        form = self._below(7)
        if form == 0:
            return date + zone + era
        if form == 1:
            return self._named() + self._pick(("", f" {self._clock()}{half}", f" {self._compact()}{half}")) + zone + era
        if form == 2:
            return date + to_time + self._compact() + half + zone + era
        if form == 3:
            return f"{self._clock()}{half} {day}{self._spaced()}{zone}{era}"
        if form == 4:
            begins = self._pick((f"{self._month()} {self._number(33)}", f"{self._number(33)} {self._month()}"))
            return f"{day}{begins} {self._clock()}{half}{zone} {self._year()}{era}"
        behind = zone.strip() if not half and not zone[1:2].isalpha() else zone
        return date + to_time + self._clock() + half + behind + era


# PostgreSQL reads each of these, and text of rows that looks so is NULL. The docstring of the module names the forms.
UNREAD = (
    "now", "today", "yesterday", "tomorrow", "infinity", "-infinity", "0044-03-15 BC", "12345-01-01",
    "2021-01-03 10:00 Europe/Berlin", "2021-01-03 10:00 UTC+3", "2021-01-03 10:00 am-05", "2021-01-03 10:00 MSK",
    "AD Jan 3 2021", "2021-01-03AD", "J2459218 BC", "2021-01-03 allballs", "J2459218.5", "Sunday epoch",
    "2021 3 Jan", "Z 2021-01-03", "Jan 3 102030.5 2021", "+02 Jan 3 2021", "2021-01-03 10:00 PST pm",
    "10:00Z Jan 3 2021",
    "2/Feb/2021+02", "3.Jan.2021Z", "J2459218-05", "1/3/2021-05", "2021.003-05",
    "02021-01-03", "1-003-2021", "00020210103", "2021-01-0003 at 0:000000001", "Jan 3 2021 at",
    "1 3/2021", "Jan 3-2021", "2021--01--03", "2021-01-03-", "2021-01-03 10:", "2021-01-03 10:00 + 02",
)  # fmt: skip

# What else a row may hold.
ROWS = (
    "20210103", " 20210103 ", "20210103 10:20:30", "20211303", "20210230", "20240229", "00000101", "99991231",
    "1/3/2021", "2021-01-03T1:2:3.5", "2021-01-03 1:2", "2021-01-03 10:20:30.", "2021-01-03 10:20:30+02",
    "01/03/2021 23:59", "9999-12-31 24:00", "9999-12-31 23:59:59.9999999", "0001-01-01 00:00+05", "9999-12-31 23:00-05",
    "13/01/2021", "02/29/2021", "2021-01-03", "2021-1-3", "20210103\n", "20210103 \\1", "epoch", "EPOCH ", "2021.366",
    "١٢/٣١/٢٠٢٠", "\N{KELVIN SIGN}an 3 2021", "Jan 3 10:20:30 PST 2021 PST", "Jan 3 10:20 -05 2021 +02:00:00",
    "", " ", "202101031", "0/0/0000", "1//2021", "20210103 99:99", "9" * 400, "1e2", "Sun", "Jan", "|||", "@", "10:20",
    " " * 100 + "20210103" + " " * 100, "J0", "J9999999", "J99999999999", "1 1 1 1 1 1", "'", "a|b|c", "+02", "::", "T",
    None,
)  # fmt: skip

_PG_VALUES = """SELECT CASE WHEN day BETWEEN '0001-01-01' AND '9999-12-31' THEN day END,
CASE WHEN local >= '0001-01-01' AND local < '10000-01-01' THEN local END,
CASE WHEN instant >= '0001-01-01' AND instant < '10000-01-01' THEN instant END FROM (
SELECT CASE WHEN pg_input_is_valid(t, 'date') THEN CAST(t AS date) END AS day,
CASE WHEN pg_input_is_valid(t, 'timestamp') THEN CAST(t AS timestamp) END AS local,
CASE WHEN pg_input_is_valid(t, 'timestamptz') THEN CAST(t AS timestamptz) AT TIME ZONE 'UTC' END AS instant
FROM unnest(CAST($1 AS text[])) WITH ORDINALITY AS u(t, n) ORDER BY n OFFSET 0) AS s"""

Values = list[tuple[Any, ...]]


def _select(dialect: Dialect, zone: str) -> str:
    """What rows t are read as: a date, a timestamp, and an instant in UTC."""

    def unasked(*_: object) -> Any:
        raise AssertionError

    writer = ScalarWriter(dialect, lambda _: "t", unasked, unasked, set(), short=False)
    text = Ref(Field(0, "t", TEXT))
    kinds = ((DATE, ""), (TIMESTAMP, ""), (TIMESTAMPTZ, zone))
    return "SELECT " + ", ".join(writer.scalar(Call(Op.CAST, (text,), type_, option)) for type_, option in kinds)


def _of_duckdb(texts: Sequence[str | None], zone: str) -> Values:
    return duckdb.execute(f"{_select(DUCKDB, zone)} FROM (SELECT unnest($1) AS t)", [texts]).fetchall()


def _of_postgres(server: Server, texts: Sequence[str | None], zone: str) -> tuple[Values, Values]:
    """What our SQL reads, under settings of another kind, and what PostgreSQL does."""
    with server.connect() as connection, psycopg.RawCursor(connection) as cursor:
        cursor.execute("SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'; SET TimeZone = 'Asia/Tokyo'")
        rows = "unnest(CAST($1 AS text[])) WITH ORDINALITY AS u(t, n) ORDER BY n"
        ours = cursor.execute(f"{_select(POSTGRES, zone)} FROM {rows}", [list(texts)]).fetchall()
        cursor.execute(f"SET DateStyle = 'ISO, MDY'; SET TimeZone = '{zone}'")
        return ours, cursor.execute(_PG_VALUES, [list(texts)]).fetchall()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_text_of_rows_is_read_as_postgresql_reads_it(zone: str, server: Server) -> None:
    made = Layouts(len(zone))
    texts = [made.text() for _ in range(4_000)]
    ours, theirs = _of_postgres(server, texts, zone)
    for text, by_duckdb, by_postgres, read in zip(texts, _of_duckdb(texts, zone), ours, theirs, strict=True):
        assert by_duckdb == by_postgres == read, text
    assert sum(day is not None for day, *_ in theirs) > 1_000


def test_text_of_rows_is_never_read_as_another_value(server: Server) -> None:
    made = Texts(11)
    texts = [*(made.text() for _ in range(4_000)), *ROWS, *UNREAD]
    zone = "Europe/Berlin"
    written, values = _of_postgres(server, texts, zone)
    for text, by_duckdb, by_postgres, read in zip(texts, _of_duckdb(texts, zone), written, values, strict=True):
        assert by_duckdb == by_postgres, text
        assert all(ours in (None, theirs) for ours, theirs in zip(by_duckdb, read, strict=True)), text


def test_forms_that_are_not_read_from_rows(server: Server) -> None:
    with server.connect() as connection:
        valid = "SELECT t FROM unnest(%s::text[]) AS t WHERE NOT pg_input_is_valid(t, 'timestamptz')"
        assert connection.execute(valid, [list(UNREAD)]).fetchall() == []
    assert set(_of_duckdb(UNREAD, "UTC")) == {(None, None, None)}


class Integers:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self) -> str:
        pick = self._random.choice
        digits = pick(("01", "01234567", "0123456789", "0123456789abcdefABCDEF", "01_", "0123456789_", "12e.-"))
        body = "".join(pick(digits) for _ in range(pick((1, 2, 3, 5, 9, 10, 16, 17, 19, 21, 22, 63, 64))))
        sign, base = pick(("", "", "-", "+", "- ")), pick(("", "", "0x", "0X", "0o", "0O", "0b", "0B", "0", "x"))
        return pick(("", "", " ", "\t\n")) + sign + base + body + pick(("", "", " ", "\v", " 1"))


@pytest.mark.parametrize("type_", [BIGINT, integer(10), integer(5)], ids=lambda type_: str(type_.precision))
def test_integers_in_rows_are_read_as_postgresql_reads_them(type_: Type, server: Server) -> None:
    made = Integers(3)
    ends = (
        f"{sign}{base}{end:{form}}"
        for end in (2**63 - 1, 2**64, 2**31, 2**15)
        for sign in ("-", "")
        for base, form in _BASES
    )
    texts = [*(made.text() for _ in range(4_000)), *ends, *filter(None, ROWS), "0x", "0b", "0x0", "0x_1", "1__0", "0o8"]
    name = {19: "bigint", 10: "integer", 5: "smallint"}[type_.precision]
    rows = "FROM unnest(CAST($1 AS text[])) WITH ORDINALITY AS u(t, n) ORDER BY n"
    with server.connect() as connection, psycopg.RawCursor(connection) as cursor:
        ours = cursor.execute(f"SELECT {POSTGRES.cast('t', TEXT, type_)} {rows}", [texts]).fetchall()
        valid = f"CASE WHEN pg_input_is_valid(t, '{name}') THEN CAST(t AS {name}) END"
        theirs = cursor.execute(f"SELECT {valid} {rows}", [texts]).fetchall()
    cast = DUCKDB.cast("t", TEXT, type_)
    by_duckdb = duckdb.execute(f"SELECT {cast} FROM (SELECT unnest($1) AS t)", [texts]).fetchall()
    for text, *read in zip(texts, by_duckdb, ours, theirs, strict=True):
        assert read[0] == read[1] == read[2], text
    assert sum(value is not None for (value,) in theirs) > 300
    # The one that 63 bits do not hold.
    assert duckdb.execute(f"SELECT {cast} FROM (SELECT '-0x8000000000000000' AS t)").fetchall() == [(None,)]


_BASES = (("", "d"), ("0x", "x"), ("0o", "o"), ("0b", "b"))
