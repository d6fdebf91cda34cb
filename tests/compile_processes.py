"""The processes that compile, as the system shows them: to hold one, and to see it gone. Linux only."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def nursery_of(pid: int) -> int | None:
    """The process that a server has started to start others."""
    found = [child for child in _children(pid) if b"dpsql.answering.compiling" in _read(f"/proc/{child}/cmdline")]
    return found[0] if found else None


def compiling(pid: int) -> list[int]:
    """The processes in which a server compiles, idle ones included."""
    nursery = nursery_of(pid)
    return [] if nursery is None else _children(nursery)


def hold(pid: int) -> None:
    """Let a process do nothing any more, as one that has lost itself in some long computation."""
    os.kill(pid, signal.SIGSTOP)


def let_go(pid: int) -> None:
    """Let it go on, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def is_there(pid: int) -> bool:
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, _read(str(task)).split())
    return [child for child in found if is_there(child)]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
