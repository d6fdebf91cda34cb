"""The sockets that the server listens on."""

from __future__ import annotations

import socket
from contextlib import closing

from dpsql.wire.listening import bind


def test_answers_are_not_held_back() -> None:
    """asyncio switches Nagle's delay, 40 ms for most answers, off only on sockets that name their protocol."""
    for each in bind("127.0.0.1", 0, "hint"):
        with closing(each):
            assert each.proto == socket.IPPROTO_TCP
