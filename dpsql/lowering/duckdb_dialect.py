"""DuckDB's forms: TRY_CAST gives NULL for what does not fit; doubles overflow to infinity, which later steps drop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from dpsql.lowering.dates_in_text import LONGEST, DatesInText, TextForms, Zoned
from dpsql.lowering.dialect import EVERYWHERE, Dialect, Grid, in_steps
from dpsql.lowering.integers_in_text import LONGEST_NUMBER, SHAPE, integer_in_text
from dpsql.plan.constants import as_strftime
from dpsql.plan.scalars import Op
from dpsql.plan.zones import Steps, moment_at
from dpsql.types import MAX_DIGITS, Kind, Type

_TYPES = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "BIGINT",
    Kind.DECIMAL: "DECIMAL",
    Kind.DOUBLE: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMP",  # in UTC
    Kind.INTERVAL: "DOUBLE",  # seconds: intervals are only compared
}
_LARGEST = "1.7976931348623157e308"
# Of texts whose layout is plain; which days there are TRY_CAST knows.
_YEAR = "[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9]"
_ISO_DATE = f"({_YEAR})-[0-9]{{1,2}}-[0-9]{{1,2}}"
_OTHER_DATE = f"(?:({_YEAR})([0-9]{{2}})([0-9]{{2}})|([0-9]{{1,2}})/([0-9]{{1,2}})/({_YEAR}))"  # 20210103, 1/3/2021
_AS_ISO = r"\1\6-\2\4-\3\5"
_CLOCK = r"[ T]([01]?[0-9]|2[0-3]):[0-5]?[0-9](:[0-5]?[0-9](\.[0-9]{0,6})?)?"
_BEHIND = {Zoned.NO: f"({_CLOCK})?", Zoned.PERHAPS: f"({_CLOCK}[Zz]?)?", Zoned.YES: f"{_CLOCK}[Zz]"}
_NARROW = ((5, "SMALLINT"), (10, "INTEGER"))  # integer types with the digits they hold


def _try_cast(text: str, target: Type) -> str:
    digits = f"({target.precision},{target.scale})" if target.kind is Kind.DECIMAL else ""
    return f"TRY_CAST({text} AS {_TYPES[target.kind]}{digits})"


def _cast(text: str, source: Type, target: Type) -> str:
    if target.kind is Kind.INTEGER:
        return _to_integer(text, source, target)
    if source.is_moment and target.is_moment:
        return text
    if source.kind is Kind.DECIMAL and target.kind is Kind.TEXT:
        # With as many places as its type has, and a digit before the point, which DuckDB leaves out where none fits.
        whole = source.precision > source.scale or source.precision == MAX_DIGITS
        text = _try_cast(text, source if whole else replace(source, precision=source.precision + 1))
    if target.is_temporal and source.kind is Kind.TEXT:
        return DATES.date(text) if target.kind is Kind.DATE else DATES.timestamp(text)
    return _try_cast(text, target)


def _to_integer(text: str, source: Type, target: Type) -> str:
    """A cast to an integer type: NULL for what does not fit, so that no more digits come out than the type says."""
    if source.numeric:
        text = f"round({text})"
    if source.kind is Kind.TEXT:
        return _once(text, 4, lambda text: _integer_in_text(text, target))
    fits = source.kind in (Kind.INTEGER, Kind.DECIMAL) and source.precision - source.scale < target.precision
    return _try_cast(text, target) if fits or source.kind is Kind.BOOLEAN else _narrowed(text, target)


def _narrowed(text: str, target: Type) -> str:
    narrow = next((name for digits, name in _NARROW if target.precision <= digits), None)
    return _try_cast(text if narrow is None else f"TRY_CAST({text} AS {narrow})", target)


def _integer_in_text(text: str, target: Type) -> str:
    """DuckDB reads 1e2 as well, which is none."""
    short = f"length({text}) <= {LONGEST_NUMBER}"
    plain = f"CASE WHEN {short} AND regexp_full_match({text}, ' *[-+]?[0-9]+ *') THEN {text} END"
    other = integer_in_text(
        f"CASE WHEN {short} AND regexp_matches({text}, '{SHAPE}') THEN {text} END",
        "TRY_CAST('0' || {0} AS BIGINT)",
        "TRY_CAST({0} AS BIGINT)",
        _steps,
        _narrowed("dt.number", target),
    )
    return f"COALESCE({_narrowed(plain, target)}, {other})"


def _trunc_places(text: str, places: int) -> str:
    power = f"CAST('1e{places}' AS DOUBLE)"
    return f"(trunc({text} * {power}) / {power})"


def _date_bin(text: str, first: datetime, width: int) -> str:
    start = (first - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return f"make_timestamp({start} + (epoch_us({text}) - {start}) // {width} * {width})"


# --- time zones ---

_SHORT = 5_000  # characters: a lambda takes longer to compute than a text that is repeated


def _offset(text: str, steps: Steps) -> str:
    """By binary search. DuckDB follows only those branches that some row of a block takes."""

    def searched(first: int, low: int, high: int) -> str:
        if low == high:
            return str(first)
        middle = (low + high) // 2
        at, seconds = steps.changes[middle]
        below, above = searched(first, low, middle), searched(seconds, middle + 1, high)
        return f"CASE WHEN {text} < TIMESTAMP '{moment_at(at)}' THEN {below} ELSE {above} END"

    return searched(steps.first, 0, len(steps.changes))


def _once(text: str, times: int, body: Callable[[str], str]) -> str:
    if len(text) * times <= _SHORT:
        return body(text)
    name = next(name for depth in itertools.count() if (name := f"v{depth}") not in text)
    return f"list_transform([{text}], lambda {name}: {body(name)})[1]"


# --- dates in text ---


def _plain(text: str, target: Type, zoned: Zoned) -> str:
    """Both layouts give the same text, a date as ISO writes it: what is no day is left to the reader of all layouts."""
    read = f"trim({text}, ' ')"
    short = f"length({text}) <= {LONGEST} AND regexp_full_match({read}, "
    as_iso = f"regexp_replace({read}, '^{_OTHER_DATE}', '{_AS_ISO}')"
    made = (
        f"CASE WHEN {short}'{_ISO_DATE}{_BEHIND[zoned]}') THEN {read}"
        f" WHEN {short}'{_OTHER_DATE}{_BEHIND[zoned]}') THEN {as_iso} END"
    )
    return _try_cast(made if zoned is Zoned.NO else f"rtrim({made}, 'Zz')", target)


def _steps(steps: Sequence[Mapping[str, str]], result: str) -> str:
    """Lambdas one after the other: one inside another takes much longer."""
    first, *others = ("{" + ", ".join(f"{name}: {text}" for name, text in step.items()) + "}" for step in steps)
    made = f"[{first}]"
    for step in others:
        made = f"list_transform({made}, lambda dt: {step})"
    return f"list_transform({made}, lambda dt: {result})[1]"


DATES = DatesInText(
    TextForms(
        steps=_steps,
        once=_once,
        plain=_plain,
        bytewise="{0}",
        matches="regexp_matches({0}, '{1}')",
        add_seconds="({0} + to_microseconds(CAST({1} * 1000000 AS BIGINT)))",
        round_even="round_even({0}, 0)",
    )
)


def _width_bucket(text: str, low: float, high: float, count: str, exact: bool) -> str:
    start, end, width = (f"CAST('{number}' AS DOUBLE)" for number in (low, high, high - low))
    place = f"({text} - {start}) * {count} / {width}" if exact else f"({text} - {start}) / {width} * {count}"
    return (
        f"(CASE WHEN {text} IS NULL THEN NULL WHEN {text} < {start} THEN 0 WHEN {text} >= {end} THEN {count} + 1"
        f" ELSE LEAST(TRY_CAST(floor({place}) AS BIGINT) + 1, {count}) END)"
    )


def _square(text: str, type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        narrow = f"TRY_CAST({text} AS DECIMAL(9,{type_.scale}))"
    else:
        narrow = f"CAST(TRY_CAST({text} AS INTEGER) AS BIGINT)"
    return f"{narrow} * {narrow}"


def _on_grid(name: str, _: Type, grid: Grid) -> str:
    below, above = (f"CAST('{float(bound)}' AS DOUBLE)" for bound in (grid.below, grid.above))
    value = f"CAST({name} AS DOUBLE)"
    return (
        f"CASE WHEN {value} >= {above} AND {value} <= {_LARGEST} THEN {grid.high}"
        f" WHEN {value} <= {below} AND {value} >= -{_LARGEST} THEN {grid.low}"
        f" WHEN {value} > {below} AND {value} < {above}"
        f" THEN TRY_CAST(round({in_steps(value, grid.step)}) AS BIGINT) END"
    )


DUCKDB = Dialect(
    name="duckdb",
    types=_TYPES,
    decimal_digits=True,
    wide_type="HUGEINT",
    binary='{0} COLLATE "C"',
    text="{0}",
    templates=EVERYWHERE
    | {
        Op.NEG: "(-{0})",
        Op.LOG10: "log10(CASE WHEN {0} > 0 THEN {0} END)",
        Op.LENGTH: "length({0})",
        Op.LOWER: "lower({0})",
        Op.UPPER: "upper({0})",
        Op.TRIM: "trim({0}, {1})",
        Op.LEFT: "left({0}, {1})",
        Op.RIGHT: "right({0}, {1})",
        Op.SUBSTRING: "substring({0}, {1}, {2})",
        Op.POSITION: "strpos({0}, {1})",
        Op.SPLIT_PART: "split_part({0}, {1}, {2})",
        # The number of days is guarded in the argument: a sum outside the calendar would raise.
        Op.ADD_DAYS: (
            "({0} + CAST(CASE WHEN {1} >= DATE '0001-01-01' - {0} AND {1} <= DATE '9999-12-31' - {0} THEN {1} END"
            " AS INTEGER))"
        ),
        Op.ADD_MONTHS: "({0} + to_months(CAST({1} AS INTEGER)))",
        Op.ADD_SECONDS: "({0} + to_microseconds(CAST({1} * 1000000 AS BIGINT)))",
        Op.DAYS_BETWEEN: "({0} - {1})",
        Op.SECONDS_BETWEEN: "(CAST(epoch_us({0}) - epoch_us({1}) AS DOUBLE) / 1000000)",
    },
    whole_quotient="({0} // NULLIF({1}, 0))",
    wide_quotient="({0} // NULLIF({1}, 0))",
    like="({0} LIKE {1}{escape})",
    ilike="({0} ILIKE {1}{escape})",
    like_escape=False,
    round_even="round_even({0}, 0)",
    # Some temporal types reach further than others.
    moment="TRY_CAST({0} AS {type})",
    extract="CAST(extract('{part}' FROM {0}) AS {type})",
    extract_seconds="CAST(extract('microseconds' FROM {0}) / 1000000 AS {type})",
    extract_epoch="epoch({0})",
    date_trunc="CAST(date_trunc('{part}', {0}) AS TIMESTAMP)",
    date_bin=_date_bin,
    offset=_offset,
    once=_once,
    to_char=lambda text, format_: f"strftime({text}, '{as_strftime(format_)}')",
    in_list="list_contains({1}, {0})",
    array="CAST({0} AS {type}[])",
    flag="{0}",
    salt="{0}",
    chosen_by="md5({0})",
    not_owned_by="owner NOT IN (SELECT owner FROM ({0}) AS s)",
    count_distinct=True,
    after_scan="CASE WHEN {0} THEN TRUE ELSE FALSE END",
    skips_blocks=True,
    counts_apart=True,
    square=_square,
    largest_double=_LARGEST,
    column=lambda name, _: name,
    cast=_cast,
    local_in_text=DATES.local,
    instant_in_text=DATES.instant,
    fit=_try_cast,
    stage_value=_try_cast,
    round_away=lambda text, places: f"round({text}, {places})",
    trunc_places=_trunc_places,
    width_bucket=_width_bucket,
    on_grid=_on_grid,
    window_arguments=lambda _, args: args,
    # Sums come back wider than their type; what PostgreSQL would refuse as out of range is NULL.
    window_result=lambda call, text: _try_cast(text, call.type) if call.function == "sum" else text,
)
