"""pyqrlew: rewrites a query into one that adds the noise itself, for PostgreSQL. Runs in its own environment."""

from __future__ import annotations

import json
import statistics
import sys
import time

from pyqrlew import BenchDataset, Dialect
from sqlalchemy import create_engine, text


def main() -> None:
    task = json.load(sys.stdin)
    engine = create_engine(task["url"].replace("postgresql://", "postgresql+psycopg2://"))
    dataset = BenchDataset.from_database("bench", engine, schema_name="public")
    for column, (lower, upper) in task["bounds"].items():
        dataset = dataset.with_range("public", "people", column, lower, upper)
    with engine.connect() as connection:
        for name, sql in task["queries"].items():
            times, before = [], time.process_time()
            for _ in range(task["repeats"]):
                started = time.perf_counter()
                relation = dataset.relation(sql, Dialect.PostgreSql)
                private = relation.rewrite_with_differential_privacy(
                    dataset, [("people", [], "id")], {"epsilon": 1.0, "delta": 1e-6}
                )
                connection.execute(text(private.relation().to_query(Dialect.PostgreSql))).all()
                times.append((time.perf_counter() - started) * 1_000)
            processor = (time.process_time() - before) / task["repeats"] * 1_000
            found = {"name": name, "passed": statistics.median(times), "processor": processor}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
