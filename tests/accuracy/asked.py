"""What is asked, said once for all systems: tables with their bounds, and queries as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["count", "sum", "avg", "variance", "stddev", "quantile", "count distinct"]
Accounting = Literal["basic", "zcdp"]


@dataclass(frozen=True)
class Column:
    """What a policy says about a column. Numbers are on a grid of `step`; keys are declared, or found out."""

    lower: float | None = None
    upper: float | None = None
    step: float = 1
    values: tuple[str | int, ...] | None = None
    expression: str = ""  # of columns of the stored table, where it is none itself


@dataclass(frozen=True)
class Table:
    """Rows with an owner. All systems are told the same bounds, and the same number of rows that count."""

    name: str
    unit: str
    rows: int
    columns: Mapping[str, Column]


@dataclass(frozen=True)
class Aggregate:
    kind: Kind
    column: str = ""
    at: float = 0.5  # of a quantile

    def __str__(self) -> str:
        return f"{self.kind} {self.column}".strip() + (f" {self.at}" if self.kind == "quantile" else "")


Condition = tuple[str, Literal["<", "<=", ">=", "="], int | float | str]


@dataclass(frozen=True)
class Query:
    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...] = ()
    where: tuple[Condition, ...] = ()
    unknown: bool = False  # keys are found out, not declared: how many come back is what counts


@dataclass(frozen=True)
class Case:
    """One line of the table: a query, or the queries of one session that share one budget."""

    name: str
    data: str
    table: str
    queries: tuple[Query, ...]
    accounting: Accounting = "basic"
    better: float = 1 / 1.05  # the least ratio wanted: the best peer's error by ours, or our keys by its keys
    held_out: bool = False  # data that nothing was tuned on

    @property
    def unknown(self) -> bool:
        return self.queries[0].unknown

    @property
    def label(self) -> str:
        return f"{self.data}: {self.name}"


@dataclass(frozen=True)
class Task:
    """Queries of one table for one system, as it is handed to another process."""

    file: str
    table: Table
    queries: tuple[Query, ...]
    accounting: Accounting
    epsilon: float
    delta: float
    rho: float  # of all queries together, where accounting is zcdp
    key_delta: float  # of delta, for unknown keys beside rho
    runs: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Answers:
    """What a system said: for each query its runs, each with rows of keys and numbers; or why it said nothing."""

    runs: list[list[list[list[Any]]]] = field(default_factory=list)
    refused: str = ""
