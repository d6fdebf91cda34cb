"""Placeholders: values stay out of the text, mistakes are told apart, and positions find their way back."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.driver.placeholders import Parameters, bind
from dpsql.errors import BadSetting, Error, NotSupportedError, ProgrammingError, UnknownParameter


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "parameters", "numbered", "values"),
    [
        ("a > %(x)s AND b < %(y)s", {"y": 2, "x": 1}, "a > $1 AND b < $2", (1, 2)),
        ("a > %(x)s AND b < %(x)s", {"x": 1, "unused": object()}, "a > $1 AND b < $1", (1,)),
        ("a IN (%s,%s)", [1, "b"], "a IN ( $1 , $2 )", (1, "b")),
        ("a > %(a name, with $1)s", {"a name, with $1": 1}, "a > $1", (1,)),
        ("x %% 2 = %s", (0,), "x % 2 = $1", (0,)),
        ("a LIKE '%%b' AND c = %s", ("d",), "a LIKE '%b' AND c = $1", ("d",)),
        ("a = 'it''s' -- 100% %(x)s\n AND b = %s", (1,), "a = 'it''s' -- 100% %(x)s AND b = $1", (1,)),
        ("a /* %s 5% */ = %s", (1,), "a /* %s 5% */ = $1", (1,)),
        ('"a%%b" = %s', (1,), '"a%b" = $1', (1,)),
        ("no placeholder", {}, "no placeholder", ()),
        ("no placeholder", (), "no placeholder", ()),
        ("a$1 = '$1' AND b = %s", (1,), "a$1 = '$1' AND b = $1", (1,)),
    ],
)
def test_placeholders_become_numbers(
    text: str, parameters: Parameters, numbered: str, values: tuple[object, ...]
) -> None:
    bound = bind(text, parameters)
    assert squeezed(bound.text) == numbered
    assert bound.values == values


def test_without_parameters_the_text_stays() -> None:
    text = "SELECT 5 % 2, '100%', %(x)s, %s, $1"
    assert bind(text, None).text == text


def test_a_placeholder_does_not_grow_together_with_its_neighbours() -> None:
    assert bind("a%s5", (1,)).text.split() == ["a", "$1", "5"]


@pytest.mark.parametrize(
    ("text", "parameters", "kind", "message", "position"),
    [
        ("a = %(x)s", {"y": 1}, UnknownParameter, 'there is no parameter "x"', 5),
        ("a = %s", {"y": 1}, ProgrammingError, "without names need a sequence", 5),
        ("a = %(x)s", [1], ProgrammingError, "need a mapping", 5),
        ("a = %s", [], ProgrammingError, "1 placeholders, but 0 parameters", None),
        ("a = %s", [1, 2], ProgrammingError, "1 placeholders, but 2 parameters", None),
        ("a = %s", "x", ProgrammingError, "a mapping or a sequence", None),
        ("a = %s", 5, ProgrammingError, "a mapping or a sequence", None),
        ("a = '%s'", ["x"], ProgrammingError, "inside quotes", 6),
        ("a = 'it''s %(x)s'", {"x": 1}, ProgrammingError, "inside quotes", 12),
        ('"%s" = 1', ["x"], ProgrammingError, "inside quotes", 2),
        ("a % 2", {}, ProgrammingError, "not part of a placeholder", 3),
        ("a LIKE 'x%'", {}, ProgrammingError, "not part of a placeholder", 10),
        ("a = %d", [1], ProgrammingError, "not part of a placeholder", 5),
        ("a = $1", [1], UnknownParameter, "there is no parameter \\$1", 5),
    ],
)
def test_mistakes_are_told_apart(
    text: str, parameters: Parameters, kind: type[Error], message: str, position: int | None
) -> None:
    with pytest.raises(kind, match=message) as caught:
        bind(text, parameters)
    assert caught.value.position == position


class Shade(StrEnum):
    DARK = "dark"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("given_value", "value"),
    [
        (None, None),
        (True, True),
        (-5, -5),
        (2**70, 2**70),
        (1.5, 1.5),
        (Decimal("1.50"), Decimal("1.50")),
        ("it's %s", "it's %s"),
        (date(2020, 2, 29), date(2020, 2, 29)),
        (datetime(2020, 2, 29, 1, 2, 3, 4), datetime(2020, 2, 29, 1, 2, 3, 4)),
        (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)),
        (pd.Timestamp("2020-07-01 01:30", tz="Europe/Berlin"), datetime(2020, 6, 30, 23, 30, tzinfo=UTC)),
        (Shade.DARK, "dark"),
        (Level.HIGH, 3),
        (np.int32(7), 7),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.str_("x"), "x"),
        (np.datetime64("2020-02-29"), date(2020, 2, 29)),
        (np.datetime64("2020-02-29T01:02:03", "us"), datetime(2020, 2, 29, 1, 2, 3)),
        (pd.Timestamp("2020-02-29 01:02:03"), datetime(2020, 2, 29, 1, 2, 3)),
    ],
)
def test_values_arrive_as_plain_python(given_value: object, value: object) -> None:
    (bound,) = bind("%s", [given_value]).values
    assert bound == value
    assert type(bound) is type(value)


@pytest.mark.parametrize(
    ("given_value", "kind", "hint"),
    [
        ([1, 2], NotSupportedError, "for each value"),
        ((), NotSupportedError, "for each value"),
        ({"a"}, NotSupportedError, "for each value"),
        (np.array([1, 2]), NotSupportedError, "for each value"),
        (b"x", NotSupportedError, "Pass None"),
        (time(1, 2), NotSupportedError, "Pass None"),
        (1j, NotSupportedError, "Pass None"),
        (object(), NotSupportedError, "Pass None"),
        (pd.NaT, NotSupportedError, "Pass None"),
        (np.datetime64("2020-02-29T01:02:03", "ns"), NotSupportedError, "Pass None"),
        (np.timedelta64(5, "ns"), NotSupportedError, "Pass None"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), BadSetting, None),
        (float("nan"), BadSetting, None),
        (float("-inf"), BadSetting, None),
        (np.float64("nan"), BadSetting, None),
        (Decimal("NaN"), BadSetting, None),
        (Decimal("sNaN"), BadSetting, None),
        (Decimal("Infinity"), BadSetting, None),
        (Decimal("1e999999"), BadSetting, None),
        (10**5000, BadSetting, None),
        ("a\0b", BadSetting, None),
        ("\udcff", BadSetting, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(given_value: object, kind: type[Error], hint: str | None) -> None:
    with pytest.raises(kind, match='parameter "x"') as caught:
        bind("a = %(x)s", {"x": given_value})
    assert caught.value.position == 5
    assert caught.value.hint is None if hint is None else hint in (caught.value.hint or "")


PIECES = ["%(a long name)s", "%(b)s", "%%", "'it''s %%'", '"q%%"', "-- 5% %s\n", "/* %(x)s */", "age", " ", "é", "+"]


@given(st.lists(st.sampled_from(PIECES)))
def test_positions_point_into_the_original(pieces: list[str]) -> None:
    text = "".join(pieces)
    bound = bind(text, {"a long name": 1, "b": 2})
    places = [bound.position_in_original(i + 1) - 1 for i in range(len(bound.text))]
    assert places == sorted(places)
    for character, place in zip(bound.text, places, strict=True):
        # Every character is found again; those of a number point at the beginning of its placeholder.
        assert text[place] == character or text.startswith(("%(a long name)s", "%(b)s"), place)
