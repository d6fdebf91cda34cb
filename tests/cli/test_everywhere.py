"""What every command does when things go wrong: a sentence and an exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = "SELECT state, COUNT(*) FROM people GROUP BY state"
COMMANDS = {
    "check": ["check", "{policy}"],
    "query": ["query", "--policy", "{policy}", "--user", "alice", COUNT],
    "explain": ["explain", "--policy", "{policy}", "--user", "alice", COUNT],
    "shell": ["shell", "--policy", "{policy}", "--user", "alice"],
    "budget": ["budget", "--policy", "{policy}"],
    "log": ["log", "--policy", "{policy}"],
    "user": ["user", "list", "--policy", "{policy}"],
    "ledger": ["ledger", "verify", "--policy", "{policy}"],
}
ASKS = ["query", "explain", "shell"]


def run(name: str, policy: Path, *replaced: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    words = [word.format(policy=policy) for word in COMMANDS[name]]
    for old, new in replaced:
        words = [new if word == old else word for word in words]
    command = [sys.executable, "-m", "dpsql", *words]
    return subprocess.run(command, input=f"{COUNT};\n", capture_output=True, text=True, check=False)


def is_a_sentence(result: subprocess.CompletedProcess[str]) -> bool:
    return result.returncode == 1 and bool(result.stderr.strip()) and "Traceback" not in result.stderr + result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_policy(name: str, tmp_path: Path) -> None:
    result = run(name, tmp_path / "nothing.toml")
    assert is_a_sentence(result)
    assert "nothing.toml" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_broken_policy(name: str, clinic: Path) -> None:
    clinic.write_text(clinic.read_text().replace("max_rows_per_unit = 10", "max_rows_per_unit = many"))
    result = run(name, clinic)
    assert is_a_sentence(result)
    assert clinic.name in result.stderr


@pytest.mark.parametrize("name", ASKS)
def test_a_user_nobody_declared(name: str, clinic: Path) -> None:
    result = run(name, clinic, ("alice", "mallory"))
    assert is_a_sentence(result)
    assert 'user "mallory" is not known' in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_that_left(name: str, clinic: Path) -> None:
    """As in `dpsql … | head`: the pipe closes before everything is written."""
    run("query", clinic)  # so that there are books to show
    words = [word.format(policy=clinic) for word in COMMANDS[name]]
    with subprocess.Popen(
        [sys.executable, "-m", "dpsql", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, stderr = process.communicate(f"{COUNT};\n")
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr


@pytest.mark.parametrize("group", ["user", "ledger"])
def test_no_line_of_help_breaks_off(group: str) -> None:
    shown = subprocess.run([sys.executable, "-m", "dpsql", group, "--help"], capture_output=True, text=True, check=True)
    assert "..." not in shown.stdout.split("Commands:")[1]
