"""The tables: what each column may hold, as the owner would declare it. Bounds are as loose as owners' bounds are."""

from __future__ import annotations

from tests.accuracy.asked import Column, Table

REGIONS = ("north", "south", "east", "west", "isles")
KINDS = tuple(range(10))

PEOPLE = Table(
    "people",
    "id",
    1,
    {
        "region": Column(values=REGIONS),
        "age": Column(0, 110),
        "income": Column(0, 500_000),
        "city": Column(),
    },
)
VISITS = Table(
    "visits",
    "person",
    20,
    {
        "kind": Column(0, 9, values=KINDS),
        "fee": Column(0, 100_000),  # cents
        "town": Column(),
    },
)
# The policy of grammar_tests/tpch: lines belong to customers through their orders.
LINES = Table(
    "lineitem",
    "person",
    160,
    {
        "l_returnflag": Column(values=("A", "N", "R")),
        "l_linestatus": Column(values=("F", "O")),
        "l_shipmode": Column(values=("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")),
        "l_shipdate": Column(),
        "l_quantity": Column(0, 50),
        "l_extendedprice": Column(0, 100_000, 0.01),
        "l_discount": Column(0, 0.1, 0.01),
        "disc_price": Column(0, 100_000, 0.01, expression="l_extendedprice * (1 - l_discount)"),
        "charge": Column(0, 108_000, 0.01, expression="l_extendedprice * (1 - l_discount) * (1 + l_tax)"),
        "revenue": Column(0, 10_000, 0.01, expression="l_extendedprice * l_discount"),
    },
)
ORDERS = Table(
    "orders",
    "person",
    40,
    {
        "o_orderpriority": Column(values=("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")),
        "o_totalprice": Column(0, 500_000, 0.01),
        "o_clerk": Column(),
    },
)

TABLES = {table.name: table for table in (PEOPLE, VISITS, LINES, ORDERS)}
