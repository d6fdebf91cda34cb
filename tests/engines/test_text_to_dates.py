"""Dates in constants: every text is read to PostgreSQL's value, or refused as PostgreSQL refuses it."""

from __future__ import annotations

import random
import re
from datetime import datetime

import duckdb
import pytest

from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.plan.moments import CALENDAR, DAYS, DISTANCE, FIELD, SYNTAX, ZONE, Unreadable, read_moment
from dpsql.plan.zones import UTC_ZONE
from dpsql.types import BIGINT, DATE, TEXT, TIMESTAMP, Type
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


# What a row may hold; most of it is no date that both engines read.
ROWS = (
    "20210103", " 20210103 ", "20210103 10:20:30", "20211303", "20210230", "20240229", "00000101", "99991231",
    "1/3/2021", "2021-01-03T1:2:3.5", "2021-01-03 1:2", "2021-01-03 10:20:30.", "2021-01-03 10:20:30+02",
    "01/03/2021 23:59",
    "13/01/2021", "02/29/2021", "2021-01-03", "2021-1-3", "20210103\n", "20210103 \\1",
    "١٢/٣١/٢٠٢٠",
    "", " ", "202101031", "0/0/0000", "1//2021", "20210103 99:99", "9" * 400, "1e2", "0x1F", "1_000", " 12 ", "+7",
)  # fmt: skip


@pytest.mark.parametrize("type_", [DATE, TIMESTAMP, BIGINT], ids=lambda type_: type_.kind.value)
def test_text_of_rows_is_read_alike_and_never_fails(type_: Type, server: Server) -> None:
    with server.connect() as connection:
        form = POSTGRES.cast("t", TEXT, type_)
        theirs = connection.execute(f"SELECT {form} FROM unnest(%s::text[]) AS t", [list(ROWS)]).fetchall()
    ours = duckdb.execute(f"SELECT {DUCKDB.cast('t', TEXT, type_)} FROM (SELECT unnest($1) AS t)", [ROWS]).fetchall()
    assert list(zip(ROWS, ours, strict=True)) == list(zip(ROWS, theirs, strict=True))
    assert sum(value is not None for (value,) in ours) >= 2
