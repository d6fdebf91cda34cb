"""A fork server for compilations: `python -m dpsql.answering.compiling FILE`.

It has one thread, so that forking is safe, and has imported everything, so that forking is fast. It ends together with
its children when the process that uses it is gone. Each child compiles one text after the other until the other end of
its socket is closed; one that takes too long is killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from dpsql.answering.compiling.packing import Packing
from dpsql.answering.compiling.work import Choice, Ground, OutOfSteps, compile_source
from dpsql.errors import Error, NotSupported
from dpsql.release import Source

FORK, END = b"F", b"E"
STATUS = struct.Struct("!q")
LENGTH = struct.Struct("!I")
WALL_TIMES = 6  # the wall-clock limit, as a multiple of processor time, which is shared
_GLANCE = 1_000  # milliseconds between checks for children that have ended
_USUAL, _DEEP = sys.getrecursionlimit(), 4_000  # the latter while a release is pickled: the C stack has room for it
_MOST_VISIBLE = 1_000  # characters kept of an internal error's text


@dataclass(frozen=True, slots=True)
class Order:
    """One text to compile, and its limits."""

    source: Source
    chosen: Choice
    steps: int
    seconds: float  # processor time
    memory: int  # bytes beyond the process's initial size

    @property
    def wall_seconds(self) -> float:
        """The wall-clock limit."""
        return self.seconds * WALL_TIMES


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no release."""

    reason: str  # "steps", "memory" or "defect"
    text: str = ""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when it ends
    control = socket.socket(fileno=int(sys.argv[1]))
    children: set[int] = set()
    try:
        _serve(control, children)
    except ConnectionError:  # the parent was killed, possibly while it waited for an answer
        pass
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def _serve(control: socket.socket, children: set[int]) -> None:
    """Start and end children on request, until the other end is closed."""
    data = receive(control)
    if data is None:
        return
    ground = Packing().unpack(data)
    gc.collect()
    gc.freeze()  # or every child would soon copy all of the heap
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while True:
        for child in list(children):
            if os.waitpid(child, os.WNOHANG)[0]:
                children.discard(child)
        if not waiting.poll(_GLANCE):
            continue
        order, files, _, _ = socket.recv_fds(control, 1 + STATUS.size, 1)
        if order[:1] == FORK:
            child = os.fork()
            if child == 0:
                _become_child(control, socket.socket(fileno=files[0]), ground)
            os.close(files[0])
            children.add(child)
            control.sendall(STATUS.pack(child))
        elif order[:1] == END:
            (child,) = STATUS.unpack(order[1:])
            status = _end(child) if child in children else 0
            children.discard(child)
            control.sendall(STATUS.pack(status))
        else:
            return


def _end(child: int) -> int:
    """Kill a child that has not been reaped yet, so that its pid is still valid; returns its status."""
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _become_child(control: socket.socket, line: socket.socket, ground: Ground) -> None:
    status = 1
    try:
        control.close()
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)  # the default action ends the process, whatever it does
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(
                "1000"
            )  # the OOM killer should take this one rather than the server
        packing, before = Packing(ground), _address_space()
        gc.disable()  # plans are trees: garbage collection would take half of the time of a long text
        while (data := receive(line)) is not None:
            order: Order = packing.unpack(data)
            send(line, _carry_out(order, ground, packing, before))
            gc.collect()  # while idle
        status = 0
    finally:
        os._exit(status)


def _carry_out(order: Order, ground: Ground, packing: Packing, before: int) -> bytes:
    _limit_time(order.seconds, order.wall_seconds)
    _limit_memory(before if before == resource.RLIM_INFINITY else before + order.memory)
    try:
        compiled = compile_source(ground, order.source, order.chosen, order.steps)
        sys.setrecursionlimit(_DEEP)
        return packing.pack(compiled)
    except RecursionError:
        return packing.pack(NotSupported("the query is nested too deeply", hint="Split it into smaller queries."))
    except Error as refusal:
        if not _is_for_memory(refusal):
            return packing.pack(refusal.with_traceback(None))
    except OutOfSteps:
        return packing.pack(Failure("steps"))
    except MemoryError:
        pass
    except Exception:
        return packing.pack(Failure("defect", traceback.format_exc()[-_MOST_VISIBLE:]))
    finally:
        sys.setrecursionlimit(_USUAL)
        _limit_memory(resource.RLIM_INFINITY)
        _limit_time(0, 0)
    return packing.pack(Failure("memory"))


def _is_for_memory(error: BaseException | None) -> bool:
    """Whether memory ran out: the tokenizer reports every failure as an error of the text."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _address_space() -> int:
    """The present size in bytes; where the system does not report it, it enforces no limit either."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return resource.RLIM_INFINITY


def _limit_time(processor: float, wall: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, processor)
    signal.setitimer(signal.ITIMER_REAL, wall)


def _limit_memory(wanted: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most != resource.RLIM_INFINITY:
        wanted = most if wanted == resource.RLIM_INFINITY else min(wanted, most)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def receive(line: socket.socket) -> bytes | None:
    """One message; None if the other end is closed."""
    head = _exactly(line, LENGTH.size)
    return None if head is None else _exactly(line, LENGTH.unpack(head)[0])


def send(line: socket.socket, data: bytes) -> None:
    line.sendall(LENGTH.pack(len(data)) + data)


def _exactly(line: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = line.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
