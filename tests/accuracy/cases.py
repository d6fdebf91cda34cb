"""The cases: one line of the table each. Wanted ratios stand beside the query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tests.accuracy.asked import Accounting, Aggregate, Case, Condition, Query

COUNT = Aggregate("count")
_QUARTERS = tuple(Aggregate("quantile", "income", at) for at in (0.25, 0.5, 0.75))


def _sum(column: str) -> Aggregate:
    return Aggregate("sum", column)


def _avg(column: str) -> Aggregate:
    return Aggregate("avg", column)


def _persons(data: str, *, held_out: bool = False) -> Iterable[Case]:
    """One row each."""

    def case(name: str, *aggregates: Aggregate, by: str = "", where: tuple[Condition, ...] = (), **more: float) -> Case:
        query = Query(aggregates, (by,) if by else (), where)
        return Case(name, data, "people", (query,), held_out=held_out, **more)  # type: ignore[arg-type]

    yield case("count", COUNT)
    yield case("count by region", COUNT, by="region")
    yield case("count under a filter", COUNT, where=(("age", ">=", 65), ("income", "<", 30_000)))
    yield case("sum", _sum("income"))
    yield case("average", _avg("income"))
    yield case("average by region", _avg("income"), by="region", better=4)
    yield case("variance", Aggregate("variance", "age"))
    yield case("deviation", Aggregate("stddev", "income"))
    yield case("median", Aggregate("quantile", "income"), better=5)
    yield case("median by region", Aggregate("quantile", "income"), by="region", better=5)
    yield case("three quartiles", *_QUARTERS)
    yield case("five aggregates by region", COUNT, _sum("income"), _avg("income"), _avg("age"), by="region")
    yield case("count of distinct cities", Aggregate("count distinct", "city"))
    yield _keys("unknown cities", data, "people", "city", held_out=held_out)


def _visitors(data: str, *, held_out: bool = False) -> Iterable[Case]:
    """Many rows each."""

    def case(name: str, *aggregates: Aggregate, by: str = "", where: tuple[Condition, ...] = (), **more: float) -> Case:
        query = Query(aggregates, (by,) if by else (), where)
        return Case(name, data, "visits", (query,), held_out=held_out, **more)  # type: ignore[arg-type]

    yield case("count, many rows", COUNT)
    yield case("count by kind, many rows", COUNT, by="kind")
    yield case("count of persons", Aggregate("count distinct", "person"))
    yield case("sum, many rows", _sum("fee"), better=1.5)
    yield case("sum by kind, many rows", _sum("fee"), by="kind", better=1.5)
    yield case("sum under a filter, many rows", _sum("fee"), where=(("fee", ">=", 10_000),), better=1.5)
    yield case("average, many rows", _avg("fee"))
    yield case("average by kind, many rows", _avg("fee"), by="kind", better=4)
    yield case("median, many rows", Aggregate("quantile", "fee"), better=5)
    yield case("deviation, many rows", Aggregate("stddev", "fee"))
    yield case("three aggregates by kind, many rows", COUNT, _sum("fee"), _avg("fee"), by="kind")
    yield _keys("unknown towns, many rows", data, "visits", "town", held_out=held_out)
    yield _keys("unknown towns, many rows, zcdp", data, "visits", "town", "zcdp", held_out=held_out)


def _keys(
    name: str, data: str, table: str, by: str, accounting: Accounting = "basic", *, held_out: bool = False
) -> Case:
    query = Query((COUNT,), (by,), unknown=True)
    return Case(name, data, table, (query,), accounting, 1.5, held_out)


_Q1 = (
    _sum("l_quantity"),
    _sum("l_extendedprice"),
    _sum("disc_price"),
    _sum("charge"),
    _avg("l_quantity"),
    _avg("l_extendedprice"),
    _avg("l_discount"),
    COUNT,
)
_Q6: tuple[Condition, ...] = (
    ("l_shipdate", ">=", "1994-01-01"),
    ("l_shipdate", "<", "1995-01-01"),
    ("l_discount", ">=", 0.05),
    ("l_discount", "<=", 0.07),
    ("l_quantity", "<", 24),
)


def _tpch(data: str) -> Iterable[Case]:
    flags, shipped = ("l_returnflag", "l_linestatus"), (("l_shipdate", "<=", "1998-09-02"),)
    first = Query(_Q1, flags, shipped)  # type: ignore[arg-type]
    yield Case("Q1", data, "lineitem", (first,), better=3)
    yield Case("Q1, zcdp", data, "lineitem", (first,), "zcdp", better=3)
    yield Case("Q6", data, "lineitem", (Query((_sum("revenue"),), (), _Q6),), better=1.5)
    yield Case("sum of orders", data, "orders", (Query((_sum("o_totalprice"),)),), better=1.5)
    yield Case(
        "average order by priority", data, "orders", (Query((_avg("o_totalprice"),), ("o_orderpriority",)),), better=4
    )
    yield Case("median order", data, "orders", (Query((Aggregate("quantile", "o_totalprice"),)),), better=5)
    yield _keys("unknown clerks", data, "orders", "o_clerk")


def _session(data: str, table: str, key: str, column: str, filtered: str, ends: range, *, held_out: bool) -> Case:
    """Fifty questions of one budget: counts, sums and averages, in all and by key, under ever other filters."""
    kinds = ((COUNT,), (_sum(column),), (_avg(column),))
    questions = [
        Query(kinds[number % 3], (key,) if number % 2 else (), ((filtered, ">=", end),))
        for number, end in enumerate(ends)
    ]
    return Case(f"50 queries of {table}", data, table, tuple(questions[:50]), "zcdp", held_out=held_out)


def cases() -> tuple[Case, ...]:
    """All of them, in the order of the table."""
    made_up = [*_persons("people"), *_visitors("people")]
    others = [*_persons("heavy", held_out=True), *_visitors("heavy", held_out=True)]
    sessions = [
        _session(data, *table, held_out=data == "heavy")
        for data in ("people", "heavy")
        for table in (
            ("people", "region", "income", "age", range(50)),
            ("visits", "kind", "fee", "fee", range(0, 15_000, 300)),
        )
    ]
    at_once = [*made_up, *others, *_tpch("TPC-H 0.1"), *_tpch("TPC-H 1"), *sessions]
    assert len({case.label for case in at_once}) == len(at_once)
    return tuple(at_once)


def small() -> tuple[Case, ...]:
    """One of every kind, for a quick look."""
    return tuple(replace(case) for case in cases() if case.data == "people")
