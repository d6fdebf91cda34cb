"""opendp's own interface: a context over a Polars frame. Runs in opendp's environment; reads a task, writes answers.

Each statistic is asked for once and shared: an average is a noisy sum by a noisy length, a variance three of them. A
person's rows are limited by opendp's own truncation: the first ones, as good as any here, and quicker than a sample.
Sums and lengths by key are asked for 25 times at once, at 25 times the price, which gives each the same noise as alone,
so that the table is read once for all of them; all else is asked for one by one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib", "honest-but-curious")

MOST_ROWS = 10_000_000  # what the owner says the table may at most hold; opendp needs it for sums of floats
MOST_CANDIDATES = 500_001  # of a quantile; more take longer than anybody waits
AT_ONCE = 25
SLOW = 5  # a quantile among so many candidates, or unknown keys, take seconds: a fifth of the runs


def main() -> None:
    task = json.load(sys.stdin)
    data = pl.read_parquet(task["file"]).lazy()
    for query in task["queries"]:
        try:
            runs = answer(task, query, data)
            print(json.dumps({"runs": runs}), flush=True)
        except Exception as error:
            print(json.dumps({"refused": str(error).strip().splitlines()[0][:300]}), flush=True)


def answer(task: dict[str, Any], query: dict[str, Any], data: pl.LazyFrame) -> list[list[list[Any]]]:
    wanted = _statistics(query, task["table"])
    runs = task["runs"]
    singly = query["unknown"] or any(kind == "quantile" for kind, _, _ in wanted)
    # Without keys, Polars would compute the same expression once, and give all of them the same noise.
    at_once = 1 if singly or not query["by"] else min(runs, AT_ONCE)
    if singly:
        runs = max(1, runs // SLOW)
    measurement = _plan(task, query, data, _loss(task, query, at_once), wanted * at_once).resolve()
    found: list[list[list[Any]]] = []
    while len(found) < runs:
        frame = measurement(data).collect()
        found += [_rows(frame, copy * len(wanted), query, wanted) for copy in range(at_once)]
    return found[:runs]


def _plan(
    task: dict[str, Any],
    query: dict[str, Any],
    data: pl.LazyFrame,
    loss: Any,
    asked: list[tuple[str, str, float]],
) -> Any:
    table, by, columns = task["table"], query["by"], task["table"]["columns"]
    many = table["rows"] > 1
    unit = dp.unit_of(contributions=1, identifier=table["unit"]) if many else dp.unit_of(contributions=1)
    margins = [dp.polars.Margin(by=names, max_length=MOST_ROWS) for names in ([[], by] if by else [[]])]
    context = dp.Context.compositor(
        data=data, privacy_unit=unit, privacy_loss=loss, split_evenly_over=1, margins=margins
    )
    plan = context.query()
    for column, sign, value in query["where"]:
        plan = plan.filter(_compared(pl.col(column), sign, value))
    squares = sorted({name for kind, name, _ in asked if kind == "square"})
    for name in squares:
        clipped = pl.col(name).clip(columns[name]["lower"], columns[name]["upper"])
        plan = plan.with_columns((clipped * clipped).alias(f"{name}_squared"))
    persons = query["aggregates"] == [{"kind": "count distinct", "column": table["unit"], "at": 0.5}]
    if persons:
        plan = plan.truncate_per_group(1, keep="first")
    elif query["unknown"] and many:
        # The fewest that each key gets of one person, so that the threshold is low.
        plan = plan.truncate_num_groups(table["rows"], by=by, keep="first")
        plan = plan.truncate_per_group(1, by=by, keep="first")
    elif many:
        plan = plan.truncate_per_group(table["rows"], keep="first")
    expressions = [_expression(statistic, columns).alias(str(place)) for place, statistic in enumerate(asked)]
    if not by:
        return plan.select(expressions)
    plan = plan.group_by(by).agg(expressions)
    return plan if query["unknown"] else plan.with_keys(_keys(by, columns, data))


def _loss(task: dict[str, Any], query: dict[str, Any], times: int) -> Any:
    share = len(task["queries"]) / times
    if task["accounting"] == "zcdp":
        if query["unknown"]:
            return dp.loss_of(rho=task["rho"] / share, delta=task["key_delta"] / share)
        return dp.loss_of(rho=task["rho"] / share)
    if query["unknown"]:
        return dp.loss_of(epsilon=task["epsilon"] / share, delta=task["delta"] / share)
    return dp.loss_of(epsilon=task["epsilon"] / share)


def _compared(column: pl.Expr, sign: str, value: Any) -> pl.Expr:
    compare = {"<": column.__lt__, "<=": column.__le__, ">=": column.__ge__, "=": column.__eq__}
    return compare[sign](value)


def _statistics(query: dict[str, Any], table: dict[str, Any]) -> list[tuple[str, str, float]]:
    """What must be measured, each once."""
    found: dict[tuple[str, str, float], None] = {}
    for aggregate in query["aggregates"]:
        kind, column = aggregate["kind"], aggregate["column"]
        if kind == "count" or (kind == "count distinct" and column == table["unit"]):
            found[("len", "", 0)] = None
        elif kind == "count distinct":
            found[("distinct", column, 0)] = None
        elif kind == "quantile":
            found[("quantile", column, aggregate["at"])] = None
        else:
            found[("sum", column, 0)] = None
            if kind != "sum":
                found[("len", "", 0)] = None
            if kind in ("variance", "stddev"):
                found[("square", column, 0)] = None
    return list(found)


def _expression(statistic: tuple[str, str, float], columns: dict[str, Any]) -> pl.Expr:
    kind, name, at = statistic
    if kind == "len":
        return dp.len(signed=True)
    if kind == "distinct":
        return pl.col(name).dp.n_unique(signed=True)
    lower, upper, step = (columns[name][part] for part in ("lower", "upper", "step"))
    whole = step == 1
    if kind == "quantile":
        pieces = min(round((upper - lower) / step) + 1, MOST_CANDIDATES)
        grid = [lower + (upper - lower) * place / (pieces - 1) for place in range(pieces)]
        return pl.col(name).fill_null(0 if whole else 0.0).dp.quantile(at, [round(x) for x in grid] if whole else grid)
    if kind == "square":
        name, lower, upper = f"{name}_squared", 0, max(lower**2, upper**2)
    cleaned = pl.col(name).fill_null(0) if whole else pl.col(name).fill_nan(0.0).fill_null(0.0)
    return cleaned.dp.sum((lower, upper) if whole else (float(lower), float(upper)))


def _keys(by: list[str], columns: dict[str, Any], data: pl.LazyFrame) -> pl.DataFrame:
    frame = pl.DataFrame({"": [0]})
    schema = data.collect_schema()
    for name in by:
        frame = frame.join(pl.DataFrame({name: pl.Series(columns[name]["values"], dtype=schema[name])}), how="cross")
    return frame.drop("")


def _rows(
    frame: pl.DataFrame, first: int, query: dict[str, Any], wanted: list[tuple[str, str, float]]
) -> list[list[Any]]:
    by = query["by"]
    if query["unknown"]:
        return [[row, []] for row in frame.select(by).iter_rows()]
    rows = []
    for row in frame.iter_rows(named=True):
        noisy = {statistic: row[str(place)] for place, statistic in enumerate(wanted, first)}
        rows.append([[row[name] for name in by], [_value(aggregate, noisy) for aggregate in query["aggregates"]]])
    return rows


def _value(aggregate: dict[str, Any], noisy: dict[tuple[str, str, float], Any]) -> float | None:
    kind, name = aggregate["kind"], aggregate["column"]
    if kind == "quantile":
        return noisy["quantile", name, aggregate["at"]]
    if kind == "count distinct" and ("distinct", name, 0) in noisy:
        return noisy["distinct", name, 0]
    if kind in ("count", "count distinct"):
        return noisy["len", "", 0]
    total = noisy["sum", name, 0]
    if kind == "sum":
        return total
    length = max(noisy["len", "", 0], 1)
    mean = total / length
    if kind == "avg":
        return mean
    variance = max((noisy["square", name, 0] / length - mean**2) * length / max(length - 1, 1), 0.0)
    return variance if kind == "variance" else variance**0.5


if __name__ == "__main__":
    main()
