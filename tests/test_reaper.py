"""A test run that is killed leaves no servers and no processes behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.server.process import eventually

_RUN = """
import subprocess, sys, time
from grammar_tests.reaper import reap_process
from grammar_tests.servers import Server

server = Server(16)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
reap_process(child.pid)
print(server._server.pgdata, server._server.get_postmaster_info().pid, child.pid, flush=True)
time.sleep(600)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_killed_run_started_ends_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _RUN], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        data, *numbers = run.stdout.readline().split()
        started = [int(number) for number in numbers]
        assert len(started) == 2 and all(map(_runs, started))
        run.kill()
    eventually(lambda: not any(map(_runs, started)))
    eventually(lambda: not Path(data).parent.exists())
