"""smartnoise-sql over a pandas frame. Runs in its own environment; reads a task, writes answers.

Its epsilon is that of one noisy column; here it is the largest whose cost, by its own account of the queries
of the task, is the total. It refuses noise of a scale above ten million, so columns are handed over in units of powers
of ten, and answers scaled back. What it reads from the data, with the rows that it samples for each person, is drawn
anew a few times; the noise, through its own door for aggregates that are computed elsewhere, in every run.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pandas as pd
import snsql
from snsql import Privacy

SAMPLES = 4
SLOW = 5  # thousands of unknown keys, each with its noise, take seconds: a fifth of the runs


def main() -> None:
    task = json.load(sys.stdin)
    table = task["table"]
    used = _used(task)
    frame = pd.read_parquet(task["file"], columns=[table["unit"], *used])
    units = {name: _unit(column) for name, column in table["columns"].items() if column["lower"] is not None}
    for name in used:
        if name in units and units[name] != 1:
            frame[name] = frame[name] / units[name]
    metadata = _metadata(task, units, used, len(frame))
    texts = [_text(query, units) for query in task["queries"]]
    reader = snsql.from_df(frame, privacy=Privacy(epsilon=1.0, delta=task["delta"]), metadata=metadata)
    try:
        privacy = _price(reader, texts, task)
    except Exception as error:
        for _ in texts:
            print(json.dumps({"refused": _words(error)}), flush=True)
        return
    reader.privacy.epsilon, reader.privacy.delta = privacy.epsilon, privacy.delta
    for query, text in zip(task["queries"], texts, strict=True):
        try:
            print(json.dumps({"runs": _answers(reader, text, query, units, task["runs"])}), flush=True)
        except Exception as error:
            print(json.dumps({"refused": _words(error)}), flush=True)


def _words(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]


def _used(task: dict[str, Any]) -> list[str]:
    found: dict[str, None] = {}
    for query in task["queries"]:
        for name in (*query["by"], *(a["column"] for a in query["aggregates"]), *(c for c, _, _ in query["where"])):
            if name and name != task["table"]["unit"]:
                found[name] = None
    return list(found)


def _unit(column: dict[str, Any]) -> float:
    """A power of ten that brings the bounds below ten; keys stay as they are."""
    if column["values"] is not None:
        return 1
    return float(10 ** max(0, math.floor(math.log10(max(abs(column["lower"]), abs(column["upper"]), 1)))))


def _metadata(task: dict[str, Any], units: dict[str, float], used: list[str], rows: int) -> dict[str, Any]:
    table = task["table"]
    described: dict[str, Any] = {
        "max_ids": table["rows"],
        "sample_max_ids": True,
        "censor_dims": any(query["unknown"] for query in task["queries"]),
        "clamp_counts": False,
        "rows": rows,
        table["unit"]: {"type": "int", "private_id": True},
    }
    for name in used:
        column = table["columns"][name]
        if column["values"] is not None or column["lower"] is None:
            whole = column["values"] is not None and isinstance(column["values"][0], int)
            described[name] = {"type": "int" if whole else "string"}
        else:
            unit = units[name]
            described[name] = {"type": "float", "lower": column["lower"] / unit, "upper": column["upper"] / unit}
    return {"": {"d": {"t": described}}}


def _text(query: dict[str, Any], units: dict[str, float]) -> str:
    words = {"sum": "SUM", "avg": "AVG", "variance": "VARIANCE", "stddev": "STDDEV"}
    selected = list(query["by"])
    for place, aggregate in enumerate(query["aggregates"]):
        kind, column = aggregate["kind"], aggregate["column"]
        if kind == "count":
            written = "COUNT(*)"
        elif kind == "count distinct":
            written = f"COUNT(DISTINCT {column})"
        elif kind == "quantile":
            written = f"MEDIAN({column})" if aggregate["at"] == 0.5 else f"PERCENTILE({column}, {aggregate['at']})"
        else:
            written = f"{words[kind]}({column})"
        selected.append(f"{written} AS a{place}")
    text = f"SELECT {', '.join(selected)} FROM d.t"
    conditions = [
        f"{column} {sign} " + (f"'{value}'" if isinstance(value, str) else f"{value / units.get(column, 1)}")
        for column, sign, value in query["where"]
    ]
    if conditions:
        text += f" WHERE {' AND '.join(conditions)}"
    return text + (f" GROUP BY {', '.join(query['by'])}" if query["by"] else "")


def _price(reader: Any, texts: list[str], task: dict[str, Any]) -> Privacy:
    """The most epsilon for each column that all queries together leave within the total, by its own account."""
    _, delta = reader.get_privacy_cost(texts)
    delta = task["delta"] * min(1.0, task["delta"] / float(delta))
    low, high = 0.0, float(task["epsilon"])
    reader.privacy.delta = delta
    for step in range(24):
        reader.privacy.epsilon = middle = (low + high) / 2 if step else high
        cost, _ = reader.get_privacy_cost(texts)
        if cost <= task["epsilon"] * (1 + 1e-9):
            low = middle
        else:
            high = middle
        if low == high:
            break
    return Privacy(epsilon=low, delta=delta)


def _answers(
    reader: Any, text: str, query: dict[str, Any], units: dict[str, float], runs: int
) -> list[list[list[Any]]]:
    found = []
    if query["unknown"]:
        runs = max(1, runs // SLOW)
    for run in range(runs):
        if run % max(1, runs // SAMPLES) == 0:
            subquery, _ = reader._rewrite(text)
            exact = reader.reader._execute_ast(subquery)
        found.append(_rows(reader.execute(text, pre_aggregated=exact), query, units))
    return found


def _rows(answer: list[Any], query: dict[str, Any], units: dict[str, float]) -> list[list[Any]]:
    keys = len(query["by"])
    if query["unknown"]:
        return [[list(row[:keys]), []] for row in answer[1:]]
    powers = {"sum": 1, "avg": 1, "stddev": 1, "quantile": 1, "variance": 2}
    factors = [units.get(a["column"], 1) ** powers.get(a["kind"], 0) for a in query["aggregates"]]
    return [
        [list(row[:keys]), [value * factor for value, factor in zip(row[keys:], factors, strict=True)]]
        for row in answer[1:]
    ]


if __name__ == "__main__":
    main()
