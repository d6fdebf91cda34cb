"""Every expression is defined for every value of its type: nothing a row holds makes the engine raise an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from dpsql.errors import Error, InternalError, MissingDeclaration, NotSupported
from dpsql.plan.scalars import Call, Op, walk
from dpsql.policy.model import ColumnPolicy
from dpsql.privacy.bounds import interval
from tests.property.expressions import computed, selections
from tests.property.flavours import FLAVOURS, OWNERS, bounded
from tests.property.generate import thorough
from tests.property.test_domains import check_domains
from tests.property.test_intervals import check_intervals
from tests.property.world import (
    COLUMNS,
    TABLE,
    Case,
    Declared,
    Row,
    check_neighbours,
    database,
    parameters_of,
    release_of,
    vectors,
)

UNDECLARED = Declared(tuple(ColumnPolicy(name) for name in COLUMNS))


def extremes(owner_type: str = "INTEGER") -> tuple[Row, ...]:
    """Every literal of every flavour, in as few rows as that takes."""
    cells = {
        name: [*dict.fromkeys(cell for flavour in flavours for cell in (*flavour.inside, *flavour.outside)), "NULL"]
        for name, flavours in FLAVOURS.items()
    }
    owners = OWNERS[owner_type]
    count = max(map(len, cells.values()))
    return tuple(
        {"who": owners[i % len(owners)], **{name: options[i % len(options)] for name, options in cells.items()}}
        for i in range(count)
    )


def test_generated_expressions_run_on_extreme_rows() -> None:
    tally: Counter[str] = Counter()
    seen: set[Op] = set()

    @thorough(1_000)
    @given(case=selections(inside=False))
    def holds(case: Case) -> None:
        tally["asked"] += 1
        try:
            found = list(computed(case))
        except InternalError:
            raise
        except Error:
            return
        tally["run"] += 1
        seen.update(part.op for one in found for part in walk(one.scalar) if isinstance(part, Call))

    holds()
    assert tally["run"] > 0.8 * tally["asked"], tally
    assert len(seen) > 0.9 * len(Op), f"never generated: {set(Op) - seen}"


# --- every operation by itself ---

SAMPLES: dict[Op, str] = {
    Op.AND: "flag AND n > 0",
    Op.OR: "flag OR n > 0",
    Op.NOT: "NOT flag",
    Op.EQ: "x = f",
    Op.NE: "wide <> amount",
    Op.LT: "s < 'b'",
    Op.LE: "day <= DATE '2020-01-01'",
    Op.GT: "moment > day",
    Op.GE: "big >= x",
    Op.IS_NULL: "s IS NULL",
    Op.IS_TRUE: "flag IS TRUE",
    Op.IS_FALSE: "flag IS FALSE",
    Op.DISTINCT_FROM: "x IS DISTINCT FROM n",
    Op.LIKE: "s LIKE '%\\%_'",
    Op.ILIKE: "s ILIKE 'a!%' ESCAPE '!'",
    Op.IN: "wide IN (1, 2.5, NULL)",
    Op.ADD: "big + big",
    Op.SUB: "wide - amount",
    Op.MUL: "x * x",
    Op.DIV: "big / n",
    Op.MOD: "big % n",
    Op.NEG: "- big",
    Op.ABS: "ABS(big)",
    Op.SIGN: "SIGN(x)",
    Op.ROUND: "ROUND(wide, -1)",
    Op.FLOOR: "FLOOR(wide)",
    Op.CEIL: "CEIL(x)",
    Op.TRUNC: "TRUNC(wide, 2)",
    Op.SQRT: "SQRT(x)",
    Op.LN: "LN(x)",
    Op.LOG10: "LOG(f)",
    Op.EXP: "EXP(x)",
    Op.POWER: "POWER(x, f)",
    Op.CBRT: "CBRT(x)",
    Op.SIN: "SIN(x)",
    Op.COS: "COS(f)",
    Op.TAN: "TAN(n)",
    Op.ASIN: "ASIN(x)",
    Op.ACOS: "ACOS(f)",
    Op.ATAN: "ATAN(x)",
    Op.ATAN2: "ATAN2(x, f)",
    Op.LEAST: "LEAST(x, n, 3)",
    Op.GREATEST: "GREATEST(wide, big)",
    Op.COALESCE: "COALESCE(x, wide)",
    Op.NULLIF: "NULLIF(wide, big)",
    Op.WIDTH_BUCKET: "WIDTH_BUCKET(x, 0, 10, 5)",
    Op.CAST: "CAST(s AS bigint)",
    Op.LENGTH: "LENGTH(s)",
    Op.LOWER: "LOWER(s)",
    Op.UPPER: "UPPER(s)",
    Op.TRIM: "TRIM(s)",
    Op.LTRIM: "LTRIM(s, 'ax ')",
    Op.RTRIM: "TRIM(TRAILING 'x' FROM s)",
    Op.POSITION: "POSITION('a' IN s)",
    Op.STARTS_WITH: "STARTS_WITH(s, 'C')",
    Op.REPLACE: "REPLACE(s, 'A', 'bcd')",
    Op.SPLIT_PART: "SPLIT_PART(s, 'A', 2)",
    Op.CONCAT: "s || s",
    Op.LEFT: "LEFT(s, 1)",
    Op.SUBSTRING: "SUBSTRING(s FROM 2 FOR 3)",
    Op.RIGHT: "RIGHT(s, 1)",
    Op.EXTRACT: "EXTRACT(second FROM moment)",
    Op.DATE_TRUNC: "date_trunc('decade', day)",
    Op.TO_ZONE: "moment::timestamptz AT TIME ZONE 'America/New_York'",
    Op.FROM_ZONE: "moment AT TIME ZONE 'Europe/Berlin'",
    Op.ZONED_TRUNC: "date_trunc('hour', moment::timestamptz, 'Australia/Lord_Howe')",
    Op.DATE_BIN: "date_bin('17 days', moment, DATE '2001-01-01')",
    Op.MAKE_DATE: "make_date(n, small, big::int)",
    Op.TO_CHAR: "to_char(moment, 'YYYY-MM-DD HH24:MI:SS')",
    Op.ADD_DAYS: "day + n",
    Op.ADD_MONTHS: "moment + interval '1000 years'",
    Op.ADD_SECONDS: "moment - interval '36 hours'",
    Op.DAYS_BETWEEN: "day - DATE '2020-01-01'",
    Op.MONTHS_BETWEEN: "EXTRACT(YEAR FROM AGE(moment, day))",
    Op.SECONDS_BETWEEN: "EXTRACT(epoch FROM (moment - day))",
}


@pytest.mark.parametrize("op", Op)
def test_every_operation_has_bounds_and_a_total_form(op: Op) -> None:
    case = Case(f"SELECT {SAMPLES[op]} AS e FROM {TABLE}", UNDECLARED, extremes())
    (found,) = computed(case)
    assert any(isinstance(part, Call) and part.op is op for part in walk(found.scalar))
    interval(found.scalar, found.facts)
    if op is not Op.MUL:  # products of doubles overflow; the bounding step takes that for NULL
        assert all(math.isfinite(value) for value in found.values if isinstance(value, float))


# Where rules for bounds and keys turn a corner.
CORNERS = (
    "amount / wide", "n / amount", "big / -7", "wide / x", "-7 / n", "n % -3", "(n - 50) % 7", "ABS(n - 50)",
    "wide * f", "(wide - 5) * (f + 3)", "- x", "ROUND(wide, 1)", "ROUND(n, -1)", "TRUNC(wide)", "FLOOR(f)", "CEIL(f)",
    "ROUND(f)", "LN(amount)", "LN(n)", "LOG(n)", "SQRT(wide)", "SQRT(f)", "LEAST(n, small, 8)", "LEAST(n, NULL, 8)",
    "LEAST(n, 8)", "GREATEST(n, small)", "GREATEST(wide, 3)", "GREATEST(day, DATE '2020-06-01')", "LEAST(moment, day)",
    "COALESCE(n, -7)", "COALESCE(LENGTH(s), 100)", "LENGTH(COALESCE(s, 'abcdef'))", "NULLIF(n, 50)", "s IS NULL",
    "CASE WHEN n > 50 THEN small ELSE -n END", "CASE WHEN flag THEN n END", "CASE WHEN x < 0.5 THEN 0.5 ELSE x END",
    "CAST(amount AS int)", "CAST(x AS int)", "CAST(x AS numeric(3, 1))", "CAST(wide AS numeric(10, 1))",
    "CAST(flag AS int)", "CAST(moment AS date)", "CAST(day AS timestamp)", "EXTRACT(year FROM moment)",
    "EXTRACT(week FROM day)", "EXTRACT(isoyear FROM day)", "EXTRACT(epoch FROM moment)", "EXTRACT(decade FROM day)",
    "EXTRACT(century FROM day)", "EXTRACT(dow FROM day)", "date_trunc('week', day)", "date_trunc('month', moment)",
    "date_trunc('quarter', moment)", "date_trunc('year', day)", "day + small", "day - n", "day + 3000000",
    "moment - interval '1 month'", "day + interval '1 month'", "moment + interval '1000 years'",
    "day - DATE '2020-06-01'", "EXTRACT(epoch FROM (moment - TIMESTAMP '2020-06-01'))",
    "EXTRACT(day FROM (moment - day))", "FLOOR(n / 10)", "FLOOR(amount / 10)", "WIDTH_BUCKET(amount, 10, 50, 4)",
    "UPPER(s)", "LOWER(s)", "LEFT(s, 1)", "s || 'x'", "n > 50", "flag AND n > 50", "n IN (1, NULL)", "s LIKE 'C%'",
    "DATE '9999-12-31'", "TIMESTAMP '9999-12-31 23:59:59.999999'", "POWER(n, 2)", "f ^ 3", "POWER(f, -2)",
    "POWER(n, 0.5)", "(n - 50) ^ 2", "(n - 50) ^ 3", "2 ^ n", "POWER(0, f)", "x ^ x", "EXP(f)", "EXP(-n)",
    "EXP(amount)", "LOG(2, n)", "LOG(1, n)", "LOG(amount, n)", "CBRT(wide)", "CBRT(n - 50)", "DEGREES(f)",
    "RADIANS(n)", "PI() * f", "ASIN(SIN(f))", "ACOS(COS(n))", "amount % 0.7", "wide % amount", "n % 2.5",
    "MOD(amount, 3)", "DIV(n, 7)", "DIV(amount, 0.7)", "LEFT(s, -1)", "RIGHT(s, -1)", "SUBSTRING(s FROM 0 FOR 2)",
    "SUBSTRING(s FROM -3)", "BTRIM(s, 'xC')", "LTRIM(s)", "RTRIM(s)", "REPLACE(s, 'x', '')", "REPLACE(s, '', 'y')",
    "SPLIT_PART(s, 'A', 1)", "SPLIT_PART(s, ' ', 2)", "STRPOS(s, '')", "CONCAT(s, n, NULL, day)",
    "CONCAT_WS('-', s, n, moment)", "CONCAT_WS(', ', NULL, s)", "s ^@ 'C'", "CAST(moment AS text)",
    "CAST(amount AS text)", "CAST(wide AS text)", "n BETWEEN SYMMETRIC 60 AND 20",
    "date_bin('15 minutes', moment, TIMESTAMP '2020-06-01 00:07:00')",
    "date_bin(INTERVAL '400 days', moment, TIMESTAMP '2030-01-01')", "date_bin('1 second', day, DATE '1000-01-01')",
    "date_trunc('hour', moment) + INTERVAL '5 minutes' * FLOOR(EXTRACT(MINUTE FROM moment) / 5)",
    "date_trunc('hour', moment) + INTERVAL '7 minutes' * FLOOR(EXTRACT(MINUTE FROM moment) / 7)",
    "date_trunc('week', moment + INTERVAL '1 day') + INTERVAL '-1 day'", "moment + n * INTERVAL '1 day'",
    "moment - INTERVAL '1 hour' * x", "day + INTERVAL '1 day' * 3 - INTERVAL '2 months'",
    "day - 2 * INTERVAL '1 month'", "make_date(2020, small, 29)", "make_date(n + 2000, 2, 29)",
    "make_date(EXTRACT(YEAR FROM day)::int, 1, 1)", "EXTRACT(YEAR FROM AGE(DATE '2024-02-29', day))",
    "EXTRACT(MONTH FROM AGE(moment, DATE '2020-03-31'))", "EXTRACT(YEAR FROM AGE(moment, day))",
    "EXTRACT(HOUR FROM (moment - day))", "EXTRACT(MINUTE FROM (moment - TIMESTAMP '2020-06-01 12:34:56'))",
    "to_char(day, 'YYYY')", "to_char(moment, 'IYYY IW')", "to_char(day, 'Dy DD Mon YYYY')",
    "to_char(moment, 'FMMonth, FMDay DDD')", "to_char(moment, 'HH24')", "DATE(moment)",
)  # fmt: skip


@pytest.mark.parametrize("expression", [*SAMPLES.values(), *CORNERS])
def test_bounds_and_keys_hold_around_corners(expression: str) -> None:
    """Each column in its first flavour, and within it."""
    declared = Declared(tuple(flavours[0].declared for flavours in FLAVOURS.values()))
    inside = {name: (*flavours[0].inside, "NULL") for name, flavours in FLAVOURS.items()}
    # Each column walks through its cells at its own pace, so that they meet in many ways.
    paces = [(name, cells, pace) for pace, (name, cells) in enumerate(inside.items(), 1)]
    rows = tuple({"who": "1", **{name: cells[i * pace % len(cells)] for name, cells, pace in paces}} for i in range(20))
    case = Case(f"SELECT {expression} AS e FROM {TABLE}", declared, rows)
    check_domains(case)
    (found,) = computed(case)
    if found.scalar.type.is_numeric or found.scalar.type.is_temporal:
        check_intervals(case)


# --- zero has no sign ---

SIGNED = ("0", "'-0.0'")
ZEROS = (
    "ATAN2(x, -1)", "ATAN2(x, f)", "ATAN2(1, x)", "ATAN2(-x, -n)", "1 / x", "x / f", "1 / (x * -1)", "POWER(x, -1)",
    "POWER(x, -3)", "LN(x)", "SIGN(x)", "CAST(x AS numeric(5, 2))", "CAST(x AS int)", "ROUND(CAST(x AS numeric), 2)",
    "x IS DISTINCT FROM f", "x < f", "NULLIF(x, f)", "WIDTH_BUCKET(x, 0, 10, 5)", "x IN (0, 1)", "day + CAST(x AS int)",
)  # fmt: skip


def zeros(owner_type: str = "INTEGER") -> tuple[Row, ...]:
    """Four rows at a time that differ in the signs of their zeros alone."""
    cells = {name: [*flavours[0].inside, "NULL"] for name, flavours in FLAVOURS.items()}
    others = ({name: options[i % len(options)] for name, options in cells.items()} for i in range(4))
    owner = {"who": OWNERS[owner_type][0]}
    return tuple(owner | other | {"x": x, "f": f} for other in others for x in SIGNED for f in SIGNED)


def check_zeros(values: Sequence[object]) -> None:
    for start in range(0, len(values), 4):
        first, *others = values[start : start + 4]
        assert others == [first] * 3


@pytest.mark.parametrize("expression", [*SAMPLES.values(), *CORNERS, *ZEROS])
def test_no_expression_tells_the_sign_of_a_zero(expression: str) -> None:
    """Both are equal, so that which of them is the smallest, or stands for a group, is chance, and follows others."""
    (found,) = computed(Case(f"SELECT {expression} AS e FROM {TABLE}", UNDECLARED, zeros()))
    check_zeros(found.values)


def test_no_generated_expression_tells_the_sign_of_a_zero() -> None:
    tally: Counter[str] = Counter()

    @thorough(500)
    @given(case=selections(inside=False))
    def holds(case: Case) -> None:
        tally["asked"] += 1
        try:
            rows = zeros(case.declared.owner_type)
            found = list(computed(replace(case, rows=rows, declared=replace(case.declared, unique=False))))
        except InternalError:
            raise
        except Error:
            return
        tally["run"] += 1
        for one in found:
            check_zeros(one.values)

    holds()
    assert tally["run"] > 0.8 * tally["asked"], tally


@pytest.mark.parametrize("order", [SIGNED, SIGNED[::-1]])
@pytest.mark.parametrize(
    "one_each",
    [
        "SELECT who, MIN(x) AS m FROM t GROUP BY who",
        "SELECT who, x AS m FROM t GROUP BY who, x",
        "SELECT DISTINCT who, x AS m FROM t",
        "SELECT DISTINCT ON (who) who, x AS m FROM t ORDER BY who, n",
        "SELECT who, FIRST_VALUE(x) OVER (PARTITION BY who ORDER BY n) AS m FROM t",
    ],
)
def test_which_zero_comes_first_is_not_seen(one_each: str, order: tuple[str, str]) -> None:
    rows = tuple({"who": "1", "n": "1", "x": zero} for zero in order)
    case = Case(f"SELECT COUNT(*) FROM ({one_each}) AS q WHERE ATAN2(m, -1) < 0", UNDECLARED, rows)
    release = release_of(case)
    database().fill(case.declared, case.rows)
    for measurement in release.measurements:
        for counts in vectors(measurement, parameters_of(release, ())):
            assert not any(counts.values())


# --- what once raised an error, or not one of ours ---

DAY = FLAVOURS["day"][0].declared

FOUND = [
    # The remainder of the smallest number by -1 overflows in the processor.
    ("SELECT COUNT(*) FROM t WHERE big % (-1) = 0", UNDECLARED),
    # Dates made by the query itself must stay in the calendar, or what follows them is not total.
    (f"SELECT COUNT(*) FROM t WHERE EXTRACT(year FROM day{' + 3000000' * 4}) > 1", UNDECLARED),
    ("SELECT COUNT(*) FROM t WHERE moment + interval '1000 years' + interval '1000 years' > day", UNDECLARED),
    ("SELECT COUNT(*) FROM t WHERE EXTRACT(year FROM CAST(s AS date)) > 1", UNDECLARED),
    ("SELECT COUNT(*) FROM t WHERE CAST(s AS date) + 5 > CAST(s AS date)", UNDECLARED),
    ("SELECT COUNT(*) FROM t WHERE CAST(s AS timestamp) + interval '5 days' > day", UNDECLARED),
    ("SELECT COUNT(*) FROM t WHERE (CAST(s AS date) - DATE '0001-01-01') * 9999999999 > 5", UNDECLARED),
    ("SELECT day + 3000000, COUNT(*) FROM t GROUP BY 1", Declared((DAY,))),
    ("SELECT day - 800000, COUNT(*) FROM t GROUP BY 1", Declared((DAY,))),
    ("SELECT date_trunc('month', day + 3000000), COUNT(*) FROM t GROUP BY 1", Declared((DAY,))),
    # A number in scientific notation is no decimal to every engine.
    ("SELECT COUNT(*) FROM t WHERE x > 1e-10", UNDECLARED),
    # The unit is clamped wherever it is a column, also where it was a key before.
    (
        "SELECT SUM(who * 9999999999) FROM (SELECT who, COUNT(*) AS c FROM t GROUP BY who) AS q",
        Declared((bounded("who", 0, 9),)),
    ),
]


@pytest.mark.parametrize("cell", ["NULL", "TRUE", "FALSE"])
def test_what_fails_on_statistics_does_not_fail_without(cell: str) -> None:
    """An optimizer that rewrites by the smallest and largest value of a column may fail: another is asked then."""
    sql = "SELECT COUNT(*) FROM t WHERE CASE WHEN flag IS TRUE THEN 'x' END >= 'a'"
    check_neighbours(Case(sql, UNDECLARED, ({"who": "1", "flag": cell}, {"who": "2", "flag": "NULL"})))


@pytest.mark.parametrize(("sql", "declared"), FOUND, ids=range(len(FOUND)))
def test_once_found(sql: str, declared: Declared) -> None:
    check_neighbours(Case(sql, declared, extremes()))


@pytest.mark.parametrize("call", ["SUM(wide)", "AVG(wide)"])
@pytest.mark.parametrize("rest", ["OVER (PARTITION BY who) AS c FROM t", "AS c FROM t GROUP BY who"])
def test_sums_of_one_unit_that_could_overflow_are_refused(call: str, rest: str) -> None:
    """128 bits do not hold two of the largest decimals: the engine would fail for who has them."""
    sql = f"SELECT COUNT(*) FROM (SELECT who, {call} {rest}) AS q WHERE c > 0"
    with pytest.raises(NotSupported):
        check_neighbours(Case(sql, UNDECLARED, extremes()))


def test_bounds_beyond_all_doubles_are_refused() -> None:
    sql = "SELECT CORR(x * CAST(1e300 AS double precision), x * CAST(1e300 AS double precision)) FROM t"
    with pytest.raises(MissingDeclaration):
        check_neighbours(Case(sql, Declared((bounded("x", 0, 10),)), extremes()))
