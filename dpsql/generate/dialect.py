"""What the generator must know of an engine: names of types, and its total form of each operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpsql.plan.scalars import Op
from dpsql.types import Kind


@dataclass(frozen=True, slots=True)
class Dialect:
    """Facts about one engine. Templates take the arguments as {0}, {1} …, the target type as {type}."""

    name: str
    types: Mapping[Kind, str]
    wide: str  # an integer type of 128 bits
    integers: tuple[tuple[int, str], ...]  # narrower integer types with the digits they hold, narrowest first
    binary: str  # text {0} compared byte by byte, whatever the collation of its column
    templates: Mapping[Op, str]
    try_cast: str
    extract: str
    extract_seconds: str
    extract_epoch: str
    date_trunc: str
    in_list: str  # membership of {0} in the list parameter {1}
    array: str  # a parameter {0} as a list of {type}
    largest_double: str = "1.7976931348623157e308"


def quoted(identifier: str) -> str:
    """An identifier of the owner's schema."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant."""
    if "\x00" in text:
        raise ValueError("a zero byte cannot stand in a string")
    return "'" + text.replace("'", "''") + "'"


DUCKDB = Dialect(
    name="duckdb",
    types={
        Kind.BOOLEAN: "BOOLEAN",
        Kind.INTEGER: "BIGINT",
        Kind.DECIMAL: "DECIMAL",
        Kind.DOUBLE: "DOUBLE",
        Kind.TEXT: "VARCHAR",
        Kind.DATE: "DATE",
        Kind.TIMESTAMP: "TIMESTAMP",
        Kind.INTERVAL: "DOUBLE",  # seconds: intervals are only compared
    },
    wide="HUGEINT",
    integers=((5, "SMALLINT"), (10, "INTEGER")),
    binary='{0} COLLATE "C"',
    templates={
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
        Op.NEG: "(-{0})",
        Op.ABS: "abs({0})",
        Op.SIGN: "CAST(sign({0}) AS {type})",
        Op.FLOOR: "CAST(floor({0}) AS {type})",
        Op.CEIL: "CAST(ceil({0}) AS {type})",
        Op.SQRT: "sqrt(CASE WHEN {0} >= 0 THEN {0} END)",
        Op.LN: "ln(CASE WHEN {0} > 0 THEN {0} END)",
        Op.LOG10: "log10(CASE WHEN {0} > 0 THEN {0} END)",
        Op.NULLIF: "NULLIF({0}, {1})",
        Op.WIDTH_BUCKET: (
            "(CASE WHEN {0} IS NULL THEN NULL WHEN {0} < {1} THEN 0 WHEN {0} >= {2} THEN {3} + 1"
            " ELSE LEAST(TRY_CAST(floor(({0} - {1}) * {3} / ({2} - {1})) AS BIGINT) + 1, {3}) END)"
        ),
        Op.LENGTH: "length({0})",
        Op.LOWER: "lower({0})",
        Op.UPPER: "upper({0})",
        Op.TRIM: "trim({0}, ' ')",
        # Cut, so that nested concatenations cannot make a row's text, and the time it takes, grow without bound.
        Op.CONCAT: "left(left({0}, 10000) || left({1}, 10000), 10000)",
        Op.LEFT: "left({0}, {1})",
        Op.RIGHT: "right({0}, {1})",
        Op.SUBSTRING: "substring({0}, {1}, {2})",
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
    try_cast="TRY_CAST({0} AS {type})",
    extract="CAST(extract('{part}' FROM {0}) AS {type})",
    extract_seconds="CAST(extract('microseconds' FROM {0}) / 1000000 AS {type})",
    extract_epoch="epoch({0})",
    date_trunc="CAST(date_trunc('{part}', {0}) AS TIMESTAMP)",
    in_list="list_contains({1}, {0})",
    array="CAST({0} AS {type}[])",
)
