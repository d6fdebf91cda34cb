"""`dpsql demo --serve`: the line it prints works as it stands, and a second run goes on where the first ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpsql.cli import commands, demo_data
from dpsql.engines.postgres.local_cluster import find_binaries
from tests.server.process import PATIENCE, eventually, home

COUNT = "SELECT COUNT(*) FROM patients"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with home() as made:
        yield made / "demo"


@contextmanager
def demo(folder: Path) -> Iterator[str]:
    """The demo while it serves: what it has printed."""
    out = folder.with_name("demo.out")
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "dpsql", "demo", "--serve", "--port", "0", str(folder)],
            stdout=file,
            stderr=file,
        )
    try:
        eventually(lambda: process.poll() is not None or " psql " in out.read_text())
        yield out.read_text()
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


def psql(printed: str, *statements: str) -> str:
    """Run the printed line in a shell, with statements."""
    line = re.search(r"^  (.*psql .*)$", printed, re.MULTILINE)
    assert line, printed
    asked = " ".join(f'-c "{statement}"' for statement in statements)
    programs = find_binaries().root / "bin"
    done = subprocess.run(
        ["sh", "-c", f"{line[1]} -X -A -t {asked}"],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_line_works_as_it_stands_and_again_after_a_restart(folder: Path) -> None:
    with demo(folder) as printed:
        assert 'gave user "analyst" the password "demo"' in printed
        _, answer = psql(printed, "ALTER ROLE analyst SET dpsql.epsilon = 0.5", COUNT).splitlines()
    policy = (folder / demo_data.POLICY).read_text()
    with demo(folder) as printed:
        assert "already exists" in printed and "gave user" not in printed
        assert psql(printed, "SHOW dpsql.epsilon") == "0.5\n"
        # At the price of the first time, so it is the same question.
        assert psql(printed, "SET dpsql.epsilon = 0.25", COUNT) == f"SET\n{answer}\n"
        assert psql(printed, "SELECT spent_epsilon FROM dpsql.budget") == "0.25\n"
    assert (folder / demo_data.POLICY).read_text() == policy


def test_a_port_without_a_server() -> None:
    result = CliRunner().invoke(commands, ["demo", "--port", "1"])
    assert result.exit_code == 2 and "--port requires --serve" in result.stderr
