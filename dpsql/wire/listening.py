"""Sockets to listen on, bound before anything is started: a port that is taken is noticed at once."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import ExitStack

from dpsql.errors import PolicyError

ORPHAN_SECONDS = 3.0  # in which the workers of a server that was killed let go of its port
_PAUSE = 0.1


def bind(host: str, port: int, hint: str) -> list[socket.socket]:
    """A socket for each address of a host, all on one port. They refuse connections until they are listened on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses: dict[tuple[int, str | int], None] = {(family, each[0]): None for family, _, _, _, each in found}
        deadline = time.monotonic() + ORPHAN_SECONDS
        while True:
            try:
                return _bound(addresses, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
    except OSError as error:
        is_name = isinstance(error, socket.gaierror)
        reason = (error.strerror if is_name or not error.errno else os.strerror(error.errno)) or "unknown"
        raise PolicyError(f"cannot listen on {host}:{port}: {reason.lower()}", hint=hint) from None


def _bound(addresses: dict[tuple[int, str | int], None], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    with ExitStack() as on_failure:
        for family, address in addresses:
            # The protocol is named because asyncio switches Nagle's delay off only where it is.
            made = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                made.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # a machine without IPv6 may still have a name for it
                    raise
                missing = error
                continue
            sockets.append(made)
            port = made.getsockname()[1]
        if not sockets:
            assert missing is not None
            raise missing
        on_failure.pop_all()
    return sockets
