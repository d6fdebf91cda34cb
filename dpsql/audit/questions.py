"""The queries of an audit: each aggregate, over each kind of key, along each join that the policy allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dpsql.audit.synthetic import furthest, in_order
from dpsql.lowering.dialect import quoted
from dpsql.policy.model import Catalog, Column, Table
from dpsql.privacy.mechanisms.top_keys import LEAST_GAIN
from dpsql.types import Kind

MOST_STEPS = 250  # number of keys of running totals
MOST_CHOSEN = 3  # number of top keys
QUARTILES = "quartiles"
TOTALS = "all unknown"  # number of keys of totals above groups

_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class Question:
    tables: str  # for the table of results: the tables, and how they are joined
    aggregate: str
    keys: str
    sql: str
    part: int | None = None  # for a query with bound searches: which of its measurements is audited


def questions(catalog: Catalog) -> Iterator[Question]:
    tables = in_order(catalog)
    private = [table for table in tables if table.is_private]
    for table in private:
        yield from _over(table.name, f"{_named(table)} AS a", table, table, all_aggregates=True)
        yield from _combined(table)
        yield from _totals(table)
    for table in private:
        for other in private:
            if table.path and other.name == table.path[0].table:
                step = table.path[0]
                same = " AND ".join(
                    f"a.{quoted(via)} = b.{quoted(key)}" for via, key in zip(step.via, step.key, strict=True)
                )
                yield from _joined(table, other, same)
            elif not table.path and not other.path and table.name < other.name:
                yield from _joined(table, other, f"a.{quoted(table.owner or '')} = b.{quoted(other.owner or '')}")
        for public in tables:
            if not public.is_private and (name := _common_column(table, public)) is not None:
                yield from _joined(table, public, f"a.{quoted(name)} = b.{quoted(name)}")


def _joined(table: Table, other: Table, condition: str) -> Iterator[Question]:
    source = f"{_named(table)} AS a JOIN {_named(other)} AS b ON {condition}"
    yield from _over(f"{table.name} ⋈ {other.name}", source, table, table, all_aggregates=False)


def _over(label: str, source: str, table: Table, keyed: Table, *, all_aggregates: bool) -> Iterator[Question]:
    aggregates = {"COUNT(*)": "COUNT(*)"}
    number = next((c for c in table.columns.values() if _is_bounded(c)), None)
    if number is not None:
        x = f"a.{quoted(number.name)}"
        aggregates["SUM"] = f"SUM({x})"
        if all_aggregates:
            aggregates |= {"AVG": f"AVG({x})", "STDDEV": f"STDDEV({x})", "COUNT(DISTINCT)": f"COUNT(DISTINCT {x})"}
            aggregates |= {"VARIANCE": f"VAR_POP({x})", "SUM(DISTINCT)": f"SUM(DISTINCT {x})"}
            ranks = "PERCENTILE_DISC(ARRAY[0.25, 0.5, 0.75])"
            aggregates[QUARTILES] = f"{ranks} WITHIN GROUP (ORDER BY {x})"
            aggregates |= {"MEDIAN": f"MEDIAN({x})", "MIN": f"MIN({x})", "MAX": f"MAX({x})"}
            other = next((c for c in table.columns.values() if _is_bounded(c) and c is not number), None)
            if other is not None:
                y = f"a.{quoted(other.name)}"
                aggregates |= {f"{name}": f"{name}({y}, {x})" for name in ("COVAR_POP", "CORR", "REGR_SLOPE")}
    if all_aggregates and (named := _declared_key(table)) is not None:
        aggregates["MODE"] = f"MODE() WITHIN GROUP (ORDER BY a.{quoted(named.name)})"
    if all_aggregates and not table.path:
        aggregates["COUNT(DISTINCT unit)"] = f"COUNT(DISTINCT a.{quoted(table.owner or '')})"
    kinds = {"none": None, "declared": _declared_key(keyed), "unknown": _unknown_key(keyed)}
    for aggregate, expression in aggregates.items():
        for kind, column in kinds.items():
            if kind == "none":
                yield Question(label, aggregate, kind, f"SELECT {expression} FROM {source}")
            elif column is not None:
                key = f"a.{quoted(column.name)}"
                yield Question(label, aggregate, kind, f"SELECT {key}, {expression} FROM {source} GROUP BY {key}")


def _combined(table: Table) -> Iterator[Question]:
    """Consistent counts (grouping sets, running totals), and the count of the top key."""
    source = f"{_named(table)} AS a"
    declared = [f"a.{quoted(c.name)}" for c in table.columns.values() if _is_declared(c)][:2]
    if len(declared) == 2:
        keys = ", ".join(declared)
        sql = f"SELECT {keys}, COUNT(*) FROM {source} GROUP BY CUBE ({keys})"
        yield Question(table.name, "COUNT(*)", "cube", sql)
    for column in table.columns.values():
        if _is_bounded(column) and column.type.kind is Kind.INTEGER and _steps(column) <= MOST_STEPS:
            key = f"a.{quoted(column.name)}"
            # Ordered from the person's key: who is in the first cell is in every total, and changes them most.
            order = f"{key} DESC" if _is_heavy_above(column) else key
            sql = f"SELECT {key}, SUM(COUNT(*)) OVER (ORDER BY {order}) FROM {source} GROUP BY {key}"
            yield Question(table.name, "running COUNT(*)", "declared", sql)
            if not table.path and table.max_rows_per_unit >= LEAST_GAIN:
                counted = f"COUNT(DISTINCT a.{quoted(table.owner or '')})"
                for most in sorted({1, min(table.max_rows_per_unit // LEAST_GAIN, MOST_CHOSEN)}):
                    asked = f"most COUNT(DISTINCT unit), LIMIT {most}"
                    sql = f"SELECT {key}, {counted} FROM {source} GROUP BY {key} ORDER BY {counted} DESC LIMIT {most}"
                    yield Question(table.name, asked, "declared", sql)
            break


def _totals(table: Table) -> Iterator[Question]:
    """Totals over groups with unknown keys: measured over their rows, so that no key is suppressed."""
    unknown = _unknown_key(table)
    if unknown is None:
        return
    key = f"a.{quoted(unknown.name)}"
    groups = f"(SELECT {key}, COUNT(*) AS n FROM {_named(table)} AS a GROUP BY {key}) AS g"
    for aggregate in ("COUNT(*)", "SUM(n)"):
        yield Question(table.name, f"{aggregate} of groups", TOTALS, f"SELECT {aggregate} FROM {groups}")


def _is_heavy_above(column: Column) -> bool:
    assert isinstance(column.lower, Fraction) and isinstance(column.upper, Fraction)
    return furthest(column.lower, column.upper) == column.upper


def _steps(column: Column) -> float:
    assert isinstance(column.lower, Fraction) and isinstance(column.upper, Fraction)
    return float(column.upper - column.lower)


def _named(table: Table) -> str:
    return ".".join(map(quoted, table.name.split(".")))


def _is_bounded(column: Column) -> bool:
    return column.type.kind in _NUMBERS and column.lower is not None and column.values is None


def _declared_key(table: Table) -> Column | None:
    return next((c for c in table.columns.values() if _is_declared(c)), None)


def _is_declared(column: Column) -> bool:
    return column.values is not None or column.type.kind is Kind.BOOLEAN


def _unknown_key(table: Table) -> Column | None:
    return next((c for c in table.columns.values() if c.type.kind is Kind.TEXT and c.values is None), None)


def _common_column(table: Table, public: Table) -> str | None:
    return next(
        (n for n, c in table.columns.items() if n in public.columns and public.columns[n].type.kind is c.type.kind),
        None,
    )
