"""The parent's side of compile processes: started when needed, and killed when no one waits for the result."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from dpsql.answering.compiling.nursery import END, FORK, STATUS, receive, send
from dpsql.answering.compiling.packing import Packing
from dpsql.answering.compiling.work import Ground
from dpsql.errors import OperationalError, TooManyFiles, is_for_files

_LONGEST_START, _LONGEST_MESSAGE = 60.0, 30.0  # seconds
_LONGEST_END = 5.0
_LEAST = 0.001


class Ended(Exception):
    """The process has ended without a result. `by`: the signal that ended it, if any."""

    def __init__(self, by: int | None) -> None:
        super().__init__(f"a process that compiles has ended, signal {by}")
        self.by = by


class Nursery:
    """Safe for many threads."""

    def __init__(self, ground: Ground) -> None:
        self.packing = Packing(ground)
        self._ground = ground
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[Child] = []
        self._closed = False

    def child(self) -> Child:
        """An idle process; the caller returns it or ends it."""
        with self._lock:
            if self._closed:
                raise OperationalError("the dataset is closed")
            if self._idle:
                return self._idle.pop()
            for another_try in (True, False):
                try:
                    return self._forked(self._control or self._start())
                except OSError as error:
                    if is_for_files(error):
                        raise TooManyFiles from None
                    self._stop()  # the fork server itself was killed
                    if not another_try:
                        break
        raise OperationalError("no process can be started to compile the query", hint="Try again soon.")

    def _forked(self, control: socket.socket) -> Child:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(control, [FORK + bytes(STATUS.size)], [theirs.fileno()])
                return Child(self, self._status(control), ours)
        except BaseException:
            ours.close()
            raise

    def warm(self) -> None:
        """Start the fork server in advance."""
        with suppress(OperationalError):
            self.give_back(self.child())

    def give_back(self, child: Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.close()

    def end(self, pid: int) -> int:
        """Kill a child; returns its status."""
        with self._lock:
            if self._control is None:
                return 0
            try:
                self._control.sendall(END + STATUS.pack(pid))
                return self._status(self._control)
            except OSError:
                self._stop()
                return 0

    def close(self) -> None:
        """End all of them, also busy ones."""
        with self._lock:
            self._closed = True
            for child in self._idle:
                child.close()
            self._idle.clear()
            self._stop()

    def _start(self) -> socket.socket:
        """A new interpreter, not a fork: this one has threads."""
        ours, theirs = socket.socketpair()
        # Threads of a numerical library would not survive a fork.
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-P", "-m", "dpsql.answering.compiling", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C at the terminal is for the parent
                    env=env,
                )
            except OSError:
                ours.close()
                raise
        ours.settimeout(_LONGEST_START)
        self._control = ours
        send(ours, Packing().pack(self._ground))
        return ours

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_LONGEST_END)  # it notices the closed socket, and ends its children
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _status(self, control: socket.socket) -> int:
        data = control.recv(STATUS.size, socket.MSG_WAITALL)
        if len(data) < STATUS.size:
            raise ConnectionResetError
        found: int = STATUS.unpack(data)[0]
        return found


class Child:
    """One process that compiles."""

    def __init__(self, nursery: Nursery, pid: int, line: socket.socket) -> None:
        self._nursery = nursery
        self._pid = pid
        self._line = line
        # Linux: a pidfd refers to this process even if its pid is reused. It was just forked, and is idle.
        self._handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        self._lock = threading.Lock()
        self._is_asked = False

    def ask(self, order: bytes) -> None:
        with self._lock:
            self._is_asked = True
        with suppress(OSError):  # its end is noticed when it is waited for
            self._line.settimeout(_LONGEST_MESSAGE)
            send(self._line, order)

    def answer(self, within: float) -> bytes | None:
        """Its reply, or None on timeout; raises Ended if it is gone."""
        try:
            self._line.settimeout(max(within, _LEAST))
            self._line.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return None
        except OSError:
            data = None
        else:
            data = self._rest()
        with self._lock:
            self._is_asked = False
        if data is None:
            status = self._nursery.end(self._pid)
            self.close()
            raise Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)
        return data

    def _rest(self) -> bytes | None:
        """Read the rest of a reply: once it replies, the work is done."""
        try:
            self._line.settimeout(_LONGEST_MESSAGE)
            return receive(self._line)
        except OSError:
            return None

    def kill(self) -> None:
        """Kill it during its work, at once, from any thread. Does nothing once it has replied."""
        with self._lock:
            if not self._is_asked:
                return
            if self._handle is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            else:
                self._nursery.end(self._pid)

    def close(self) -> None:
        """Close the connection: the process ends when it is idle."""
        self._line.close()
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None
            self._is_asked = False


KILLED, OUT_OF_TIME, STUCK = signal.SIGKILL, signal.SIGPROF, signal.SIGALRM
