"""What the generator must know of an engine: names of types, and its total form of each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fractions import Fraction

from dpsql.errors import NotSupported
from dpsql.plan.scalars import Call, Op, Windowed
from dpsql.plan.zones import Steps
from dpsql.types import BIGINT, Kind, Type

# Every date and timestamp lies between these, or is NULL.
_FIRST = datetime(1, 1, 1)
_LAST = datetime(9999, 12, 31) + timedelta(days=1, microseconds=-1)


@dataclass(frozen=True, slots=True)
class Grid:
    """The whole numbers that values between two bounds become: `low` to `high`, in steps."""

    below: Fraction
    above: Fraction
    low: int
    high: int
    step: Fraction


def quoted(identifier: str) -> str:
    """An identifier as standard SQL has it."""
    return '"' + identifier.replace('"', '""') + '"'


def qualified(source: Iterable[str]) -> str:
    """A table: schema and name."""
    return ".".join(map(quoted, source))


def literal(text: str) -> str:
    """A string constant as standard SQL has it."""
    if "\x00" in text:
        raise ValueError("a zero byte cannot stand in a string")
    return "'" + text.replace("'", "''") + "'"


def moment_literal(value: date) -> str:
    """A date or a timestamp as standard SQL has it."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    return f"DATE '{value.isoformat()}'"


def sum_of_values(value: str, type_: Type, distinct: str) -> str:
    del type_
    return f"SUM({distinct}{value})"


def dollar(name: str) -> str:
    """A parameter by its name."""
    return f"${name}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Facts about one engine. Templates take the arguments as {0}, {1} …, the target type as {type}.

    What depends on the types at hand is a function. Each must be total: defined for every value of those types.
    """

    name: str
    types: Mapping[Kind, str]  # values of a kind that is missing are refused
    decimal_digits: bool  # decimals are written with their digits, for the engine sets room aside for them
    wide_type: str | None  # an integer type of 128 bits; None: what needs one is refused
    binary: str  # text {0} compared byte by byte, whatever the collation of its column
    text: str  # a quoted constant {0}
    templates: Mapping[Op, str]  # an operation that is missing is refused
    whole_quotient: str  # of integers, toward zero
    wide_quotient: str  # the same of the wide type
    like: str
    ilike: str
    like_escape: bool  # the escape character must be named even where the pattern has none
    round_even: str  # a double to a whole number, halves to the even one
    moment: str  # a temporal column {0} as {type}; NULL if that cannot hold it
    extract: str
    extract_seconds: str
    extract_epoch: str
    date_trunc: str
    date_bin: Callable[[str, datetime, int], str]  # the bin of a moment; one begins there, and has so many microseconds
    to_char: Callable[[str, str], str]  # a timestamp in a format of plan/constants.py
    offset: Callable[[str, Steps], str]  # the seconds that a time zone adds to a moment {0}
    # A long text {0} used so often by another one, written once.
    once: Callable[[str, int, Callable[[str], str]], str]
    in_list: str  # membership of {0} in the list parameter {1}
    array: str  # a parameter {0} as a list of {type}
    flag: str  # a parameter {0} that is true or false
    salt: str  # the parameter {0}, the secret of the choice among keys, as text
    chosen_by: str  # what the choice is ordered by, for the text {0}
    not_owned_by: str  # rows t whose owner has no row in {0}
    count_distinct: bool  # COUNT(DISTINCT …) is the engine's fastest way to count different values
    largest_double: str
    column: Callable[[str, Type], str]  # a number column, NULL where it is no number
    cast: Callable[[str, Type, Type], str]  # from the first type to the second; NULL for what does not fit
    local_in_text: Callable[[str], str]  # the time that a text shows; NULL where it names a zone
    instant_in_text: Callable[[str, str], str]  # the moment of UTC of a text that names a zone; of others, {1}
    fit: Callable[[str, Type], str]  # a whole number or decimal of any width, as the type; NULL if it does not fit
    stage_value: Callable[[str, Type], str]  # a parameter as a value of the type
    round_away: Callable[[str, int], str]  # a double to so many places, halves away from zero
    trunc_places: Callable[[str, int], str]  # a double cut to so many places
    # The bucket of a double between two bounds, of so many. Of a numeric the quotient is taken last, of others first.
    width_bucket: Callable[[str, float, float, str, bool], str]
    on_grid: Callable[[str, Type, Grid], str]  # a number as a whole one within the grid; NULL if it is no number
    window_arguments: Callable[[Windowed, list[str]], list[str]]  # as the engine's function takes them
    window_result: Callable[[Windowed, str], str]  # what the engine's function gives, as the type of the call
    # Ends a subquery whose columns shall be computed once, where the engine would copy them to wherever they are used.
    fence: str = ""
    # A test {0} of keys that nearly all rows pass. An engine that tests compressed text while it scans does it slowly.
    after_scan: str = "{0}"
    # The engine knows the least and the largest value of each block of rows, and skips blocks that a test leaves out.
    skips_blocks: bool = False
    # There, the square of a whole number or decimal of the type, exactly; NULL if it has more than nine digits.
    square: Callable[[str, Type], str] | None = None
    # Reading one table of a join once more is cheaper than counting the owners of the join itself.
    counts_apart: bool = False
    # Arithmetic on doubles, where the engine raises errors instead of giving infinity.
    double: Callable[[Call, Sequence[str]], str] | None = None

    # --- how SQL is written; an engine that reads standard SQL otherwise must say so, for names and strings come from
    # owners and analysts, and nothing that these write may be read as SQL.
    quote: Callable[[str], str] = quoted  # an identifier
    string: Callable[[str], str] = literal  # a string constant
    moment_constant: Callable[[date], str] = moment_literal  # a date or a timestamp
    parameter: Callable[[str], str] = dollar
    int64: str = "BIGINT"  # the type of sums
    # The sum of values of a type, with "DISTINCT " or nothing before them: a call that FILTER may follow. Integers and
    # decimals are added exactly, however many there are.
    total: Callable[[str, Type, str], str] = sum_of_values
    materialized: str = "AS MATERIALIZED"  # what makes a common table expression be computed once
    inlined: str = "AS NOT MATERIALIZED"  # and what makes one a part of the query that reads it
    separator: str = "chr(31)"  # a character between parts of a text
    side: str = "({0})"  # a query {0}, which may begin with WITH, as the second part of a UNION
    grouping_sets: bool = True
    quantified: bool = True  # comparisons with ANY and ALL of a subquery

    @property
    def wide(self) -> str:
        if self.wide_type is None:
            raise NotSupported(
                f"this needs integers of 128 bits, which {self.name} does not have",
                hint="Ask for one row per person, without GROUP BY, or of columns with fewer digits.",
            )
        return self.wide_type

    def form(self, op: Op) -> str:
        """The total form of an operation."""
        found = self.templates.get(op)
        if found is None:
            raise NotSupported(f"{op.value} is not supported on {self.name}", hint="Leave it out of the query.")
        return found

    def sum_of(self, value: str, type_: Type = BIGINT, *, distinct: bool = False) -> str:
        return self.total(value, type_, "DISTINCT " if distinct else "")

    def calendar(self, type_: Type) -> tuple[str, str]:
        first, last = calendar(type_)
        return self.moment_constant(first), self.moment_constant(last)

    def in_calendar(self, text: str, type_: Type) -> str:
        """A test that a date or timestamp lies in the years that dpsql knows."""
        return in_calendar(text, type_, self.moment_constant)

    def qualified(self, source: Iterable[str]) -> str:
        """A table: schema and name."""
        return ".".join(map(self.quote, source))

    def type(self, type_: Type) -> str:
        if type_.element is not None:
            return f"{self.type(type_.element)}[]"
        native = self.types.get(type_.kind)
        if native is None:
            raise NotSupported(
                f"values of type {type_.kind.value} are not supported on {self.name}",
                hint="Leave them out of the query.",
            )
        digits = self.decimal_digits and type_.kind is Kind.DECIMAL
        return f"{native}({type_.precision},{type_.scale})" if digits else native


def calendar(type_: Type) -> tuple[date, date]:
    """The first and the last date or timestamp that dpsql knows."""
    return (_FIRST.date(), _LAST.date()) if type_.kind is Kind.DATE else (_FIRST, _LAST)


def in_calendar(text: str, type_: Type, constant: Callable[[date], str] = moment_literal) -> str:
    first, last = map(constant, calendar(type_))
    return f"{text} >= {first} AND {text} <= {last}"


_MONTHS = "(CAST(extract(year FROM {0}) AS BIGINT) * 12 + CAST(extract(month FROM {0}) AS BIGINT))"
_FINITE = "CASE WHEN abs({0}) <= CAST('1.797e308' AS DOUBLE PRECISION) THEN {0} END"
# An exponent whose product with a logarithm (at most 745, and at least 1e-16 or zero) neither over- nor underflows.
_EXPONENT = (
    "(CASE WHEN abs({1}) < CAST('1e-290' AS DOUBLE PRECISION) THEN 0"
    " ELSE LEAST(GREATEST({1}, CAST('-1e290' AS DOUBLE PRECISION)), CAST('1e290' AS DOUBLE PRECISION)) END)"
)

# Operations that every engine writes alike. Guards stand in the argument: engines evaluate early.
EVERYWHERE: dict[Op, str] = {
    Op.AND: "({0} AND {1})",
    Op.OR: "({0} OR {1})",
    Op.NOT: "(NOT {0})",
    Op.EQ: "({0} = {1})",
    Op.NE: "({0} <> {1})",
    Op.LT: "({0} < {1})",
    Op.LE: "({0} <= {1})",
    Op.GT: "({0} > {1})",
    Op.GE: "({0} >= {1})",
    Op.IS_NULL: "({0} IS NULL)",
    Op.IS_TRUE: "COALESCE({0}, FALSE)",
    Op.IS_FALSE: "(NOT COALESCE({0}, TRUE))",
    Op.DISTINCT_FROM: "({0} IS DISTINCT FROM {1})",
    Op.ADD: "({0} + {1})",
    Op.SUB: "({0} - {1})",
    Op.MUL: "({0} * {1})",
    Op.DIV: "({0} / NULLIF({1}, 0))",
    Op.MOD: "({0} % NULLIF({1}, 0))",
    Op.ABS: "abs({0})",
    Op.SIGN: "CAST(sign({0}) AS {type})",
    Op.FLOOR: "CAST(floor({0}) AS {type})",
    Op.CEIL: "CAST(ceil({0}) AS {type})",
    Op.SQRT: "sqrt(CASE WHEN {0} >= 0 THEN {0} END)",
    Op.LN: "ln(CASE WHEN {0} > 0 THEN {0} END)",
    # Beyond 709 it would overflow; below -708 it underflows to zero.
    Op.EXP: "(CASE WHEN {0} < -708 THEN 0 ELSE exp(CASE WHEN {0} <= 709 THEN GREATEST({0}, -708) END) END)",
    Op.POWER: (
        "power(CASE WHEN {0} = 0 AND {1} >= 0 THEN {0} WHEN ({0} > 0 OR {1} = floor({1}))"
        f" AND abs({_EXPONENT} * ln(abs(NULLIF({{0}}, 0)))) <= 708 THEN {{0}} END, {{1}})"
    ),
    Op.CBRT: "cbrt({0})",
    Op.SIN: f"sin({_FINITE})",
    Op.COS: f"cos({_FINITE})",
    Op.TAN: f"tan({_FINITE})",
    Op.ASIN: "asin(CASE WHEN abs({0}) <= 1 THEN {0} END)",
    Op.ACOS: "acos(CASE WHEN abs({0}) <= 1 THEN {0} END)",
    Op.ATAN: "atan({0})",
    # Plus nothing: zero has no sign. Nothing else tells one from the other, and which of two equal values stands for a
    # person's rows is up to the engine, which other people's rows may sway.
    Op.ATAN2: "atan2({0} + 0, {1} + 0)",
    Op.NULLIF: "NULLIF({0}, {1})",
    # Whole months: one less where the later moment is not as far into its month. Toward zero, whichever comes first.
    Op.MONTHS_BETWEEN: (
        f"({_MONTHS.format('{0}')} - {_MONTHS.format('{1}')} + CASE"
        " WHEN {0} >= {1} AND {0} - date_trunc('month', {0}) < {1} - date_trunc('month', {1}) THEN -1"
        " WHEN {0} < {1} AND {0} - date_trunc('month', {0}) > {1} - date_trunc('month', {1}) THEN 1 ELSE 0 END)"
    ),
    Op.STARTS_WITH: "starts_with({0}, {1})",
    Op.LTRIM: "ltrim({0}, {1})",
    Op.RTRIM: "rtrim({0}, {1})",
    Op.REPLACE: "left(replace(left({0}, 10000), {1}, {2}), 10000)",
    # Whether there is such a day is asked before, in the year.
    Op.MAKE_DATE: (
        "make_date(CAST(CASE WHEN {0} BETWEEN 1 AND 9999 AND {2} <= CASE WHEN {1} IN (4, 6, 9, 11) THEN 30"
        " WHEN {1} <> 2 THEN 31 WHEN {0} % 4 = 0 AND ({0} % 100 <> 0 OR {0} % 400 = 0) THEN 29 ELSE 28 END"
        " THEN {0} END AS INTEGER), CAST(CASE WHEN {1} BETWEEN 1 AND 12 THEN {1} END AS INTEGER),"
        " CAST(CASE WHEN {2} BETWEEN 1 AND 31 THEN {2} END AS INTEGER))"
    ),
    # Cut, so that nested concatenations cannot make a row's text, and the time it takes, grow without bound.
    Op.CONCAT: "left(left({0}, 10000) || left({1}, 10000), 10000)",
}


def everywhere(*, int64: str, double: str) -> dict[Op, str]:
    """The same for an engine that has other names for its types."""
    return {op: text.replace("BIGINT", int64).replace("DOUBLE PRECISION", double) for op, text in EVERYWHERE.items()}


def in_steps(value: str, step: Fraction) -> str:
    """The value in steps: multiplied and divided by whole numbers where that is exact."""
    text = value
    if step.denominator != 1:
        text = f"{text} * {step.denominator}"
    if step.numerator != 1:
        text = f"{text} / {step.numerator}"
    return text
