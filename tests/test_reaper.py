"""A test run that is killed leaves no servers and no processes behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.server.process import eventually

_RUN = """
import subprocess, sys, time
from pathlib import Path
from grammar_tests.reaper import reap_process
from grammar_tests.servers import Server

server = Server(16, Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
reap_process(child.pid)
print(server._server.get_postmaster_info().pid, child.pid, flush=True)
time.sleep(600)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_killed_run_started_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", _RUN, str(folder)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        started = [int(pid) for pid in run.stdout.readline().split()]
        assert len(started) == 2 and all(map(_runs, started))
        run.kill()
    eventually(lambda: not any(map(_runs, started)))
    eventually(lambda: not folder.exists())
