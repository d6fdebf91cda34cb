"""TPC-H data in a DuckDB file, with the keys of its specification, and the policy that protects customers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb

TPCH = Path(__file__).parent / "tpch"
# Orders have no key that the engine enforces: that lines refer to one order each is verified when the file is opened.
KEYS = {
    "region": "r_regionkey",
    "nation": "n_nationkey",
    "supplier": "s_suppkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey, ps_suppkey",
    "customer": "c_custkey",
    "orders": None,
    "lineitem": None,
}
SUPPLIERS_AT_SCALE_1 = 10_000


def make(directory: Path, scale: float) -> Path:
    """A database and its policy file, whose path is returned."""
    raw = directory / "raw"
    command = [_generator(), "parquet", "--scale-factor", str(scale), "--output-dir", str(raw)]
    subprocess.run(command, check=True, capture_output=True)  # a fixed program with our own arguments
    with duckdb.connect(str(directory / "tpch.duckdb")) as connection:
        for table, key in KEYS.items():
            described = connection.execute(f"DESCRIBE SELECT * FROM '{raw}/{table}.parquet'").fetchall()
            columns = [f"{name} {type_} NOT NULL" for name, type_, *_ in described]
            constraint = [] if key is None else [f"PRIMARY KEY ({key})"]
            connection.execute(f"CREATE TABLE {table} ({', '.join([*columns, *constraint])})")
            connection.execute(f"INSERT INTO {table} SELECT * FROM '{raw}/{table}.parquet'")
    shutil.rmtree(raw)
    policy = directory / "tpch.toml"
    text = (TPCH / "tpch.toml").read_text()
    policy.write_text(text.replace("max = 10_000 }  # suppliers", f"max = {round(SUPPLIERS_AT_SCALE_1 * scale)} }}"))
    return policy


def _generator() -> str:
    """The generator beside the Python that runs, or wherever it is."""
    beside = Path(sys.executable).parent / "tpchgen-cli"
    return str(beside) if beside.exists() else shutil.which("tpchgen-cli") or "tpchgen-cli"
