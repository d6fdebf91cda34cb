"""PostgreSQL's forms. It has no TRY_CAST and raises on overflow, so that every guard is written out.

A guard is a CASE in the argument of what it guards. PostgreSQL evaluates a branch before its condition only if the
branch holds constants alone, which tells nothing of a row; the text has no functions of SQL that it could inline.

Doubles behave as they do in other engines: what would overflow gives infinity, what would underflow zero, and the step
before the sums drops what is not finite. numeric has neither: the scan makes its NaN and infinity NULL.

Measured on PostgreSQL 18 with EXPLAIN ANALYZE, two million rows of 400,000 people:

- Two levels of GROUP BY, by hash, take 0.65 s; the clip by a window over the owner adds 0.6 s. Together they are faster
  than the plain COUNT(DISTINCT person) by key, which sorts and takes 2.0 s. So different values are counted over
  SELECT DISTINCT as well: 0.5 s against 2.8 s.
- Sums of bigint (128 bits inside, numeric outside) and of integer take the same time, and bigint cannot overflow.
- A norm in bigint saves 6 % of the clip, and would need a proof of its own that it fits: it is numeric.
- A numeric column is clamped, scaled and cast in numeric (0.6 s): its conversion to double goes through text (1.4 s).
- The guard of a product of doubles costs 75 ns a row.
- Choosing keys by md5 costs as little as choosing by the key itself; sha256 takes 0.9 s more.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from decimal import Context, Decimal, localcontext
from fractions import Fraction

from dpsql.errors import InternalError, NotSupported
from dpsql.lowering.dates_in_text import DatesInText, TextForms, Zoned
from dpsql.lowering.dialect import EVERYWHERE, Dialect, Grid, in_steps
from dpsql.lowering.integers_in_text import LONGEST_NUMBER, SHAPE, integer_in_text
from dpsql.plan.scalars import Call, Case, Const, Op, Scalar, Windowed
from dpsql.plan.zones import Steps, moment_at
from dpsql.types import Kind, Type

_TYPES = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "bigint",
    Kind.DECIMAL: "numeric",
    Kind.DOUBLE: "double precision",
    Kind.TEXT: "text",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamp",  # in UTC
    Kind.INTERVAL: "double precision",  # seconds: intervals are only compared
}

# A little within the range of doubles, so that rounding cannot leave it.
_LARGEST, _SMALLEST = 1.797e308, 2.3e-308
_HUGE, _TINY = f"CAST('{_LARGEST}' AS double precision)", f"CAST('{_SMALLEST}' AS double precision)"
_INFINITY, _INFINITY_BELOW = "CAST('infinity' AS double precision)", "CAST('-infinity' AS double precision)"
_ABSORBED = 1e291  # less than half of what the largest double is apart from the next: added to it, nothing changes
_MOST_PLACES = 280
_NARROW = ((5, 2**15), (10, 2**31), (19, 2**63))  # digits of PostgreSQL's integer types, and where they end

# What text may look like to be read. `C` makes the classes plain ASCII.
_INTEGER = "^ *[-+]?[0-9]+ *$"
_NUMBER = r"^ *[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})? *$"
# Days that exist, of the years 1 to 9999.
_YEAR = "(?!0000)[0-9]{4}"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = (
    f"({_YEAR}-(0?[13578]|1[02])-(0?[1-9]|[12][0-9]|3[01])|{_YEAR}-(0?[469]|11)-(0?[1-9]|[12][0-9]|30)"
    f"|{_YEAR}-0?2-(0?[1-9]|1[0-9]|2[0-8])|(?!0000){_LEAP}-0?2-29)"
)
_CLOCK = r"[ T]([01]?[0-9]|2[0-3]):[0-5]?[0-9](:[0-5]?[0-9](\.[0-9]{0,6})?)?"
_BEHIND = {Zoned.NO: f"({_CLOCK})?", Zoned.PERHAPS: f"({_CLOCK}[Zz]?)?", Zoned.YES: f"{_CLOCK}[Zz]"}


# --- doubles ---


def _constant(value: float) -> str:
    return f"CAST('{value!r}' AS double precision)"


def _signed_infinity(text: str) -> str:
    return f"WHEN {text} < 0 THEN {_INFINITY_BELOW} WHEN {text} >= 0 THEN {_INFINITY} END"


def _scaled(text: str, by: float) -> str:
    """The product of a double and a constant that is neither zero nor infinite.

    Claim: defined for every double.
    Because: the argument is at most LARGEST / |by|, or infinite; if |by| < 1 it is at least SMALLEST / |by|, or zero,
    and else nothing underflows.
    Needs: 1e-290 <= |by| <= 1e290, or the limits themselves would overflow; others take the general form.
    """
    if not 1e-290 <= abs(by) <= 1e290:
        return _product(text, _constant(by))
    return f"({_within(text, _LARGEST / abs(by), _SMALLEST / abs(by), overflows=abs(by) >= 1)} * {_constant(by)})"


def _divided(text: str, by: float) -> str:
    """The quotient of a double and a constant, like `_scaled`."""
    if not 1e-290 <= abs(by) <= 1e290:
        return _quotient(text, _constant(by))
    return f"({_within(text, _LARGEST * abs(by), _SMALLEST * abs(by), overflows=abs(by) <= 1)} / {_constant(by)})"


def _within(text: str, most: float, least: float, *, overflows: bool) -> str:
    if overflows:
        return f"CASE WHEN abs({text}) <= {_constant(most)} THEN {text} {_signed_infinity(text)}"
    small = _constant(least)
    return f"CASE WHEN abs({text}) >= {small} THEN {text} WHEN abs({text}) < {small} THEN 0 END"


def _product(left: str, right: str) -> str:
    """Claim: defined for all doubles.

    Because: a finite right factor only stays where |left| <= LARGEST / max(|right|, 1), so that nothing overflows, and
    where |right| >= 1 or |left| >= SMALLEST / |right|, so that nothing underflows. Neither limit does so itself, in
    whatever order they are computed: the divisors lie between SMALLEST and LARGEST, on the right side of 1. A product
    with infinity raises nothing.
    """
    return (
        f"({left} * CASE WHEN {right} IS NULL THEN NULL"
        f" WHEN abs({left}) > {_HUGE} / LEAST(GREATEST(abs({right}), 1), {_HUGE})"
        f" THEN CASE WHEN {right} < 0 THEN {_INFINITY_BELOW} ELSE {_INFINITY} END"
        f" WHEN abs({right}) < 1 AND abs({left}) < {_TINY} / LEAST(GREATEST(abs({right}), {_TINY}), 1) THEN 0"
        f" ELSE {right} END)"
    )


def _quotient(left: str, right: str) -> str:
    """Claim: defined for all doubles; NULL for a divisor of zero. Because: as in `_product`, turned round."""
    return (
        f"(CASE WHEN abs({left}) > {_HUGE} * LEAST(abs({right}), 1)"
        f" THEN CASE WHEN {left} < 0 THEN {_INFINITY_BELOW} ELSE {_INFINITY} END"
        f" WHEN abs({right}) > 1 AND abs({left}) < {_TINY} * GREATEST(abs({right}), 1) THEN 0 ELSE {left} END"
        f" / NULLIF({right}, 0))"
    )


def _sum(left: str, sign: str, right: str) -> str:
    """Claim: defined for all doubles.

    Because: where |left| + |right| might overflow, the signs are such that they do not add up, or infinity is added.
    """
    apart = "<>" if sign == "+" else "="
    return (
        f"({left} {sign} CASE WHEN abs({left}) <= {_HUGE} - abs({right}) OR ({left} < 0) {apart} ({right} < 0)"
        f" THEN {right} {_signed_infinity(right)})"
    )


def _double(node: Call, args: Sequence[str]) -> str:
    left, right = args
    known = [_finite_constant(arg) for arg in node.args]
    if combined(node.op, magnitude(node.args[0]), magnitude(node.args[1])).safe:
        return f"({left} {node.op.value} {f'NULLIF({right}, 0)' if node.op is Op.DIV else right})"
    match node.op:
        case Op.ADD | Op.SUB if any(value is not None and abs(value) < _ABSORBED for value in known):
            return f"({left} {node.op.value} {right})"
        case Op.ADD | Op.SUB:
            return _sum(left, node.op.value, right)
        case Op.MUL if known[1]:
            return _scaled(left, known[1])
        case Op.MUL if known[0]:
            return _scaled(right, known[0])
        case Op.MUL:
            return _product(left, right)
        case Op.DIV if known[1]:
            return _divided(left, known[1])
        case Op.DIV:
            return _quotient(left, right)
        case _:
            raise InternalError(f"no double form of {node.op.value}")


def _width_bucket(text: str, low: float, high: float, count: str, exact: bool) -> str:
    """Claim: defined for all doubles. Because: the value is brought between the bounds before anything else."""
    start, end, width = _constant(low), _constant(high), high - low
    if width > 1e290:
        raise NotSupported("the bounds of width_bucket are too far apart", hint="Choose bounds within 1e290.")
    inside = f"(LEAST(GREATEST({text}, {start}), {end}) - {start})"
    place = _divided(f"({inside} * {count})", width) if exact else f"{_divided(inside, width)} * {count}"
    return (
        f"(CASE WHEN {text} IS NULL THEN NULL WHEN {text} < {start} THEN 0 WHEN {text} >= {end} THEN {count} + 1"
        f" ELSE LEAST(CAST(floor({place}) AS bigint) + 1, {count}) END)"
    )


def _finite_constant(node: object) -> float | None:
    if isinstance(node, Const) and isinstance(node.value, float) and math.isfinite(node.value):
        return node.value
    return None


def _round_whole(text: str) -> str:
    """A double to the next whole number, halves away from zero. From 2**52 on there are only whole numbers."""
    half = f"CASE WHEN {text} < 0 THEN -0.5 ELSE 0.5 END"
    return f"(CASE WHEN abs({text}) < 4503599627370496 THEN trunc({text} + {half}) ELSE {text} END)"


def _round_away(text: str, places: int) -> str:
    if places == 0:
        return _round_whole(text)
    power = float(10 ** min(abs(places), _MOST_PLACES))
    if places < 0:
        return _scaled(_round_whole(_divided(text, power)), power)
    # So large a number has no places behind the point.
    rounded = _divided(_round_whole(_scaled(text, power)), power)
    return f"(CASE WHEN abs({text}) < 4503599627370496 THEN {rounded} ELSE {text} END)"


def _trunc_places(text: str, places: int) -> str:
    power = float(10 ** min(abs(places), _MOST_PLACES))
    if places < 0:
        return _scaled(f"trunc({_divided(text, power)})", power)
    return _divided(f"trunc({_scaled(text, power)})", power)


# --- casts ---


def _to_double(text: str) -> str:
    """A numeric as a double; NULL for NaN, infinity and what is too large, zero for what is too small."""
    size = f"abs({text})"
    return (
        f"CAST(CASE WHEN {size} >= 1e-300 AND {size} <= 1.797e308 THEN {text} WHEN {size} < 1e-300 THEN 0 END"
        " AS double precision)"
    )


def _fit(text: str, target: Type) -> str:
    """A numeric that is whole, or has the target's scale, as the target; NULL if it has more digits."""
    match target.kind:
        case Kind.INTEGER:
            end = _end(target)
            return f"CAST(CASE WHEN {text} >= -{end} AND {text} <= {end - 1} THEN {text} END AS bigint)"
        case Kind.DECIMAL:
            end = 10 ** (target.precision - target.scale)
            return f"(CASE WHEN {text} > -{end} AND {text} < {end} THEN {text} END)"
        case _:
            raise InternalError(f"a sum cannot be of type {target.kind.value}")


def _end(target: Type) -> int:
    return next(end for digits, end in _NARROW if target.precision <= digits)


def _matching(text: str, pattern: str) -> str:
    """The text if it has this form, else NULL."""
    return f"""(CASE WHEN length({text}) <= {LONGEST_NUMBER} AND {text} COLLATE "C" ~ '{pattern}' THEN {text} END)"""


def _cast(text: str, source: Type, target: Type) -> str:
    match source.kind, target.kind:
        case Kind.TEXT, Kind.INTEGER:
            return _once(text, 7, lambda text: _integer_in_text(text, target))
        case Kind.TEXT, Kind.DATE:
            return DATES.date(text)
        case Kind.TEXT, Kind.TIMESTAMP:
            return DATES.timestamp(text)
        case Kind.TEXT, _:
            return _from_text(text, target)
        case Kind.DECIMAL, Kind.TEXT:
            return f'(CAST(round({text}, {source.scale}) AS text) COLLATE "C")'
        case _, Kind.TEXT:
            return f'(CAST({text} AS text) COLLATE "C")'
        case Kind.BOOLEAN, Kind.INTEGER:
            return f"CAST(CAST({text} AS integer) AS bigint)"
        case _, Kind.INTEGER:
            return _to_integer(text, source, target)
        case Kind.INTEGER | Kind.DECIMAL | Kind.DOUBLE, Kind.DECIMAL:
            return _to_decimal(text, source, target)
        case Kind.INTEGER | Kind.DECIMAL, Kind.DOUBLE:
            return f"CAST({text} AS double precision)"  # 38 digits are far within its range
        case _ if source.is_moment and target.is_moment:
            return text
        case _ if source.is_temporal and target.is_temporal:
            return f"CAST({text} AS {_TYPES[target.kind]})"
        case same, kind if same is kind:
            return text
        case _:
            raise InternalError(f"no cast from {source} to {target}")


def _to_integer(text: str, source: Type, target: Type) -> str:
    if source.kind in (Kind.INTEGER, Kind.DECIMAL) and source.precision - source.scale < target.precision:
        return f"CAST({text} AS bigint)"
    if source.kind is Kind.DOUBLE:
        rounded, end = _round_whole(text) if source.numeric else f"round({text})", _end(target)
        # 2**63 is a double, 2**63 - 1 is not.
        return f"CAST(CASE WHEN {rounded} >= -{end} AND {rounded} < {end} THEN {rounded} END AS bigint)"
    return _fit(f"round(CAST({text} AS numeric))", target)


def _to_decimal(text: str, source: Type, target: Type) -> str:
    end = 10 ** (target.precision - target.scale)
    if source.kind is Kind.DOUBLE:
        text = f"CASE WHEN abs({text}) <= {_constant(float(end))} THEN {text} END"
    rounded = f"round(CAST({text} AS numeric), {target.scale})"
    fits = source.kind is not Kind.DOUBLE and source.precision - source.scale < target.precision - target.scale
    return rounded if fits else _fit(rounded, target)


def _from_text(text: str, target: Type) -> str:
    """What nearly all text of a type looks like, and what PostgreSQL itself writes."""
    match target.kind:
        case Kind.TEXT:
            return text
        case Kind.BOOLEAN:
            return f"(CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END)"
        case Kind.INTEGER:
            return _fit(f"CAST({_matching(text, _INTEGER)} AS numeric)", target)
        case Kind.DECIMAL:
            return _fit(f"round(CAST({_matching(text, _NUMBER)} AS numeric), {target.scale})", target)
        case Kind.DOUBLE | Kind.INTERVAL:
            return _to_double(f"CAST({_matching(text, _NUMBER)} AS numeric)")
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _plain(text, target, Zoned.NO)
        case _:
            raise InternalError(f"text is not read as {target.kind.value}")


def _integer_in_text(text: str, target: Type) -> str:
    digits = "lpad(substring({0}, 2), CASE left({0}, 1) WHEN 'x' THEN 16 ELSE 64 END, '0')"
    bits = f"CAST(CAST(CAST(left({{0}}, 1) || {digits} AS bit(64)) AS bigint) AS numeric)"
    readable = _matching(text, SHAPE)
    other = integer_in_text(readable, bits, "CAST({0} AS numeric)", _steps, _fit("dt.number", target))
    return f"COALESCE({_from_text(text, target)}, {other})"


def _column(name: str, type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        return f"NULLIF({name}, 'NaN')"
    return _to_double(name) if type_.numeric else name


def _stage_value(parameter: str, type_: Type) -> str:
    """Parameters arrive as text, whatever they are, so that reading them is total too."""
    return _from_text(f"CAST({parameter} AS text)", type_)


# --- the grid ---


def _on_grid(name: str, type_: Type, grid: Grid) -> str:
    """Claim: NULL, or a whole number in [low, high].

    Because: the value is clamped to its bounds before it is scaled and rounded, which cannot leave the grid's bounds,
    for these were rounded outward; a value at a bound that lies between two steps becomes the grid's bound.
    Needs: magnitudes on the grid below 2**48.
    """
    exact = type_.kind is Kind.DECIMAL
    value = name if exact else f"CAST({name} AS double precision)"
    below, above = (_bound(bound, exact=exact) for bound in (grid.below, grid.above))
    inside = f"LEAST(GREATEST({value}, {below}), {above})"
    if grid.step.numerator != 1 and not exact:
        # The quotient of a tiny number would underflow.
        inside = f"(CASE WHEN abs({inside}) >= {_constant(1e-290)} THEN {inside} ELSE 0 END)"
    steps = in_steps(inside, grid.step)
    # A numeric is rounded by its cast, halves away from zero; a double must be told.
    half = "0.5" if grid.low >= 0 else f"CASE WHEN {value} < 0 THEN -0.5 ELSE 0.5 END"
    whole = f"CAST({steps} AS bigint)" if exact else f"CAST(trunc({steps} + {half}) AS bigint)"
    number = (
        f"{name} IS NOT NULL" if type_.kind is not Kind.DOUBLE else f"abs({name}) <= {_constant(sys.float_info.max)}"
    )
    if grid.below == grid.low * grid.step and grid.above == grid.high * grid.step:
        return f"CASE WHEN {number} THEN {whole} END"
    return (
        f"CASE WHEN {value} >= {above} AND {number} THEN {grid.high} WHEN {value} <= {below} AND {number}"
        f" THEN {grid.low} WHEN {number} THEN {whole} END"
    )


def _bound(bound: Fraction, *, exact: bool) -> str:
    if not exact:
        return _constant(float(bound))
    with localcontext(Context(prec=100)):
        return f"CAST('{Decimal(bound.numerator) / Decimal(bound.denominator):f}' AS numeric)"


# --- time ---


def _date_bin(text: str, first: datetime, width: int) -> str:
    """In whole microseconds: PostgreSQL 13 has no date_bin, and doubles do not hold so many.

    Claim: defined for every moment not before the first. Because: no product exceeds 64 bits, and no sum the moment.
    """
    day = 86_400_000_000
    into_day = (first - datetime.combine(first, time())) // timedelta(microseconds=1)
    parts = (("hour", 3_600_000_000), ("minute", 60_000_000), ("microseconds", 1))
    clock = " + ".join(f"CAST(extract({part} FROM {text}) AS bigint) * {size}" for part, size in parts)
    since = f"(CAST(CAST({text} AS date) - DATE '{first.date()}' AS bigint) * {day} + {clock} - {into_day})"
    start = f"({since} - {since} % {width})"
    return (
        f"(TIMESTAMP '{first.isoformat(sep=' ')}' + make_interval(days => CAST({start} / {day} AS integer),"
        f" secs => CAST({start} % {day} AS double precision) / 1000000))"
    )


def _offset(text: str, steps: Steps) -> str:
    """By binary search in an array of moments."""
    moments = ",".join(f'"{moment_at(at)}"' for at, _ in steps.changes)
    seconds = ",".join(map(str, (steps.first, *(seconds for _, seconds in steps.changes))))
    return f"(CAST('{{{seconds}}}' AS integer[]))[1 + width_bucket({text}, CAST('{{{moments}}}' AS timestamp[]))]"


_SHORT = 20_000  # characters: a subquery takes longer to compute than a text that is repeated


def _once(text: str, times: int, body: Callable[[str], str]) -> str:
    if len(text) * times <= _SHORT:
        return body(text)
    name = next(name for depth in itertools.count() if (name := f"v{depth}") not in text)
    # OFFSET 0, or PostgreSQL would copy the text to wherever it is used.
    return f"(SELECT {body(name)} FROM (SELECT {text} AS {name} OFFSET 0) AS {name}_)"


# --- dates in text ---


def _steps(steps: Sequence[Mapping[str, str]], result: str) -> str:
    made = ""
    for step in steps:
        values = ", ".join(f"{text} AS {name}" for name, text in step.items())
        made = f"(SELECT {values}{f' FROM {made} AS dt' if made else ''} OFFSET 0)"
    return f"(SELECT {result} FROM {made} AS dt)"


def _plain(text: str, target: Type, zoned: Zoned) -> str:
    """As PostgreSQL reads it: to dates and times without zones, Z says nothing."""
    return f"CAST({_matching(text, f'^ *{_DAY}{_BEHIND[zoned]} *$')} AS {_TYPES[target.kind]})"


DATES = DatesInText(
    TextForms(
        steps=_steps,
        once=_once,
        plain=_plain,
        bytewise='({0} COLLATE "C")',
        matches="{0} ~ '{1}'",
        add_seconds="({0} + make_interval(secs => {1}))",
        round_even="round({0})",
    )
)


# --- window functions ---

# Which argument is a number of rows: an integer of 32 bits to PostgreSQL.
_ROWS = {"lag": 1, "lead": 1, "nth_value": 1, "ntile": 0}


def _window_arguments(call: Windowed, args: list[str]) -> list[str]:
    """Claim: no sum overflows. Because: a double beyond 1e140 is left out, and squares of the others, which an average
    keeps too, stay far within the range for all rows that there can be."""
    changed = list(args)
    place = _ROWS.get(call.function)
    if place is not None and place < len(args):
        changed[place] = f"CAST({args[place]} AS integer)"
    if call.function in ("sum", "avg") and call.args[0].type.kind is Kind.DOUBLE:
        changed[0] = f"CASE WHEN abs({args[0]}) <= {_constant(1e140)} THEN {args[0]} END"
    return changed


def _window_result(call: Windowed, text: str) -> str:
    if call.function == "sum" and call.type.kind is not Kind.DOUBLE:
        return _fit(text, call.type)
    return f"CAST({text} AS {_TYPES[call.type.kind]})" if call.type.is_numeric else text


POSTGRES = Dialect(
    name="postgres",
    types=_TYPES,
    decimal_digits=False,
    wide_type="numeric",
    binary='({0} COLLATE "C")',
    text="CAST({0} AS text)",
    templates=EVERYWHERE
    | {
        Op.NEG: "(- {0})",
        Op.LOG10: "log(CASE WHEN {0} > 0 THEN {0} END)",
        Op.LENGTH: "CAST(length({0}) AS bigint)",
        # Case is the database's: the collation C knows only that of ASCII.
        Op.LOWER: '(lower({0} COLLATE "default") COLLATE "C")',
        Op.UPPER: '(upper({0} COLLATE "default") COLLATE "C")',
        Op.TRIM: "btrim({0}, {1})",
        Op.LEFT: "left({0}, CAST({1} AS integer))",
        Op.RIGHT: "right({0}, CAST({1} AS integer))",
        Op.SUBSTRING: "substring({0}, CAST({1} AS integer), CAST({2} AS integer))",
        Op.POSITION: "CAST(strpos({0}, {1}) AS bigint)",
        Op.SPLIT_PART: "split_part({0}, {1}, CAST({2} AS integer))",
        # The number of days is guarded in the argument: a sum outside the calendar would raise.
        Op.ADD_DAYS: (
            "({0} + CAST(CASE WHEN {1} >= DATE '0001-01-01' - {0} AND {1} <= DATE '9999-12-31' - {0} THEN {1} END"
            " AS integer))"
        ),
        Op.ADD_MONTHS: "({0} + make_interval(months => CAST({1} AS integer)))",
        Op.ADD_SECONDS: "({0} + make_interval(secs => CAST({1} AS double precision)))",
        Op.DAYS_BETWEEN: "CAST({0} - {1} AS bigint)",
        Op.SECONDS_BETWEEN: "CAST(extract(epoch FROM {0} - {1}) AS double precision)",
    },
    whole_quotient="({0} / NULLIF({1}, 0))",
    wide_quotient="div({0}, NULLIF({1}, 0))",
    like="({0} LIKE {1}{escape})",
    ilike='({0} COLLATE "default" ILIKE {1}{escape})',
    like_escape=True,
    round_even="round({0})",
    # Every other temporal type that may be declared converts to it, the infinite moments included.
    moment="CAST({0} AS {type})",
    extract="CAST(extract({part} FROM {0}) AS {type})",
    extract_seconds="round(CAST(extract(second FROM {0}) AS numeric), 6)",
    extract_epoch="CAST(extract(epoch FROM {0}) AS double precision)",
    date_trunc="date_trunc('{part}', {0})",
    date_bin=_date_bin,
    offset=_offset,
    once=_once,
    to_char=lambda text, format_: f"""(to_char({text}, '{format_}') COLLATE "C")""",
    in_list="({0} = ANY ({1}))",
    array="CAST({0} AS {type}[])",
    flag="CAST({0} AS boolean)",
    salt="CAST({0} AS text)",
    # In the collation C, PostgreSQL compares the first eight bytes as one number: faster than uuid and sha256.
    chosen_by='(md5({0}) COLLATE "C")',
    # NOT IN would look through the whole list for each row where it does not fit into memory.
    not_owned_by="NOT EXISTS (SELECT FROM ({0}) AS s WHERE s.owner = t.owner)",
    count_distinct=False,
    largest_double="CAST('1.7976931348623157e308' AS double precision)",
    column=_column,
    cast=_cast,
    local_in_text=DATES.local,
    instant_in_text=DATES.instant,
    fit=_fit,
    stage_value=_stage_value,
    round_away=_round_away,
    trunc_places=_trunc_places,
    width_bucket=_width_bucket,
    on_grid=_on_grid,
    window_arguments=_window_arguments,
    window_result=_window_result,
    fence=" OFFSET 0",
    double=_double,
)


# ------------------------------------------------------------
# How large and how small a double can be, from the types it was made of: far from both ends no guard is needed.

# A difference of two doubles is zero or at least so much of the smaller.
_GRAIN = 2.0**-54


@dataclass(frozen=True, slots=True)
class Magnitude:
    """Every value is NULL, zero, or between the two in magnitude."""

    least: float
    most: float

    @property
    def safe(self) -> bool:
        """Far from where doubles overflow or underflow, whatever rounding adds."""
        return self.least >= 1e-290 and self.most <= 1e290

    def __or__(self, other: Magnitude) -> Magnitude:
        return Magnitude(min(self.least, other.least), max(self.most, other.most))


_ANY = Magnitude(0.0, math.inf)


def magnitude(node: Scalar) -> Magnitude:
    """Claim: holds for every value that the expression can take.

    Because: whole numbers and decimals have as many digits as their type says, and each operation carries the ends of
    its arguments on; what is not listed can be anything.
    Needs: ends computed in doubles, which round by far less than `safe` leaves room for.
    """
    match node:
        case Const(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return Magnitude(abs(value), abs(value)) if value else Magnitude(1.0, 0.0)
        case Case(branches=branches, default=default):
            ends = magnitude(default)
            for _, then in branches:
                ends |= magnitude(then)
            return ends
        case Call(op=Op.CAST, args=(arg,), type=Type(kind=Kind.DOUBLE)) if arg.type.kind is not Kind.DOUBLE:
            return _of_digits(arg.type)
        case Call(op=Op.CAST | Op.NEG | Op.ABS, args=(arg,)):
            return magnitude(arg)
        case Call(op=Op.LEAST | Op.GREATEST | Op.COALESCE, args=args):
            ends = magnitude(args[0])
            for arg in args[1:]:
                ends |= magnitude(arg)
            return ends
        case Call(op=Op.ADD | Op.SUB | Op.MUL | Op.DIV as op, args=(left, right)) if node.type.kind is Kind.DOUBLE:
            return combined(op, magnitude(left), magnitude(right))
        case _:
            return _of_digits(node.type)


def combined(op: Op, left: Magnitude, right: Magnitude) -> Magnitude:
    """The result of an operation on two doubles."""
    if not (left.safe and right.safe):
        return _ANY
    match op:
        case Op.MUL:
            return Magnitude(left.least * right.least, left.most * right.most)
        case Op.DIV:
            return Magnitude(left.least / max(right.most, 1e-290), left.most / right.least)
        case _:
            return Magnitude(min(left.least, right.least) * _GRAIN, left.most + right.most)


def _of_digits(type_: Type) -> Magnitude:
    if type_.kind is Kind.INTEGER:
        return Magnitude(1.0, 10.0**type_.precision)
    if type_.kind is Kind.DECIMAL:
        return Magnitude(10.0**-type_.scale, 10.0 ** (type_.precision - type_.scale))
    return _ANY
