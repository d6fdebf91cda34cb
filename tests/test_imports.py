"""Each command imports what it needs and no more: engines take long to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import toy

_HEAVY = ("asyncio", "cryptography", "duckdb", "numpy", "prompt_toolkit", "psycopg", "sqlglot")


def imported(code: str) -> set[str]:
    report = f"\nimport sys\nprint(*(name for name in {_HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + report], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_needs_no_engine(arguments: list[str]) -> None:
    code = f"from dpsql.cli import commands\ncommands({arguments!r}, standalone_mode=False)"
    assert imported(code) == set()


def test_a_file_is_asked_without_the_driver_of_servers(clinic: Path) -> None:
    policy = toy.write_policy(clinic.parent, users=("alice",))
    code = (
        "from dpsql.cli import commands\n"
        f"commands(['query', '--policy', {str(policy)!r}, '--user', 'alice', 'SELECT COUNT(*) FROM people'],"
        " standalone_mode=False)"
    )
    assert imported(code) >= {"duckdb", "sqlglot"}
    assert "psycopg" not in imported(code)
