"""smartnoise-sql on a pandas frame: the same questions again and again. Runs in its own environment."""

from __future__ import annotations

import json
import statistics
import sys
import time

import pandas as pd
import snsql


def main() -> None:
    task = json.load(sys.stdin)
    columns = {name: {"type": "int", "lower": low, "upper": high} for name, (low, high) in task["bounds"].items()}
    table = {"max_ids": 1, "censor_dims": False, "rows": 100, "id": {"type": "int", "private_id": True}, **columns}
    frame = pd.DataFrame(task["people"])
    reader = snsql.from_df(
        frame, privacy=snsql.Privacy(epsilon=1.0, delta=1e-6), metadata={"": {"bench": {"people": table}}}
    )
    for name, sql in task["queries"].items():
        times, before = [], time.process_time()
        for _ in range(task["repeats"]):
            started = time.perf_counter()
            reader.execute(sql.replace("FROM people", "FROM bench.people"))
            times.append((time.perf_counter() - started) * 1_000)
        processor = (time.process_time() - before) / task["repeats"] * 1_000
        found = {"name": name, "passed": statistics.median(times), "processor": processor}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
