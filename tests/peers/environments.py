"""The environments of other systems: made with venv and pip when first needed, kept where the caller says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Peer:
    """A system by the name of its package, and what else its environment needs."""

    name: str
    beside: tuple[str, ...] = ()


SMARTNOISE = Peer("smartnoise-sql", ("pyarrow",))
OPENDP = Peer("opendp", ("opendp[polars]",))
QRLEW = Peer("pyqrlew", ())


class NotInstalled(Exception):
    """This Python has no version of the system, in pip's words."""


@dataclass(frozen=True)
class Environment:
    """A peer that can be run."""

    python: Path
    version: str

    def run(self, script: Path, task: object) -> Iterator[Any]:
        """The lines of JSON that a script writes, as they come. The task is handed over on its standard input."""
        command = [str(self.python), "-W", "ignore", str(script)]
        # Nothing of this process's packages may be found there.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(task))
            process.stdin.close()
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        if process.returncode:
            raise RuntimeError(f"{script.name} ended with status {process.returncode}")


def environment(peer: Peer, folder: Path) -> Environment:
    """The peer's environment in this folder, made if it is not there yet."""
    home = folder / peer.name
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        venv.create(home, with_pip=True, clear=True)
        done = _pip(python, "install", "--quiet", peer.name, *peer.beside)
        if done.returncode:
            raise NotInstalled(
                f"{peer.name} on Python {sys.version_info.major}.{sys.version_info.minor}: {_fault(done)}"
            )
        (home / "complete").touch()
    shown = _pip(python, "show", peer.name).stdout
    (version,) = [line.split()[1] for line in shown.splitlines() if line.startswith("Version:")]
    return Environment(python, version)


def _pip(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), "-m", "pip", *arguments], capture_output=True, text=True, check=False)


def _fault(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return lines[-1] if lines else "pip failed"
