"""All checks in one command: style, types, layers, then the tests.

python -m tests [pytest arguments]         everything that must hold before a change lands
python -m tests fast [pytest arguments]    for every save: no server, no process of its own; about 90 seconds
python -m tests slow                       by name: planted defects, random queries and a soak, for more than an hour
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from grammar_tests.reaper import reap_process

ROOT = Path(__file__).resolve().parent.parent

CHECKS: list[tuple[str, list[str]]] = [
    ("style", ["-m", "ruff", "check", "."]),
    ("format", ["-m", "ruff", "format", "--check", "."]),
    ("types", ["-m", "mypy"]),
    ("layers", ["-c", "from importlinter.cli import lint_imports_command as run; run()"]),
]

# Verdicts of the grammar cases, proofs and laws, SQL and plans, policies: what most changes break first.
FAST = """
    grammar_tests/test_verdicts.py
    tests/driver tests/lowering tests/noise tests/plan tests/policy tests/privacy tests/release tests/sql
    tests/property/test_domains.py tests/property/test_intervals.py
    tests/test_claims.py tests/test_imports.py tests/test_settings.py
""".split()

# Of these the full tier runs every fifth to tenth case; DPSQL_ALL=1 asks for all.
_SAMPLED = """
    grammar_tests/test_prepared.py
    tests/engines/test_postgres_neighbours.py tests/engines/test_postgres_prepared.py tests/recovery/test_faults.py
""".split()

SLOW: list[tuple[str, list[str]]] = [
    ("all of what is sampled", ["-m", "pytest", "-n", "2", *_SAMPLED]),
    ("random queries", ["-m", "tests.property", "--seconds", "900"]),
    ("random queries on PostgreSQL", ["-m", "tests.property", "--seconds", "900", "--postgres"]),
    ("hostile readings", ["-m", "grammar_tests.readings", "--seconds", "900"]),
    ("soak", ["-m", "tests.soak"]),
    ("planted defects", ["-m", "tests.mutations"]),
]


def main() -> int:
    match sys.argv[1:]:
        case ["fast", *arguments]:
            return _run([*CHECKS, ("tests", ["-m", "pytest", "-n", "2", *FAST, *arguments])])
        case ["slow"]:
            os.environ["DPSQL_ALL"] = "1"
            return _run(SLOW)
        case arguments:
            return _run([*CHECKS, ("tests", ["-m", "pytest", "-n", "2", *arguments])])


def _run(checks: list[tuple[str, list[str]]]) -> int:
    failed = []
    for name, words in checks:
        print(f"== {name}", flush=True)
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT)
        reap_process(process.pid, signal.SIGINT)  # pytest then ends its workers, and they their servers
        if process.wait() != 0:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
