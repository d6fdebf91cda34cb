"""The sockets that the server listens on."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

from dpsql.server.listener import bind


def test_answers_are_not_held_back() -> None:
    """asyncio switches Nagle's delay, 40 ms for most answers, off only on sockets that name their protocol."""
    for each in bind("127.0.0.1", 0, "hint"):
        with closing(each):
            assert each.proto == socket.IPPROTO_TCP


def test_a_port_that_is_let_go_of_in_time_is_waited_for() -> None:
    """The workers of a server that was killed hold it for a moment."""
    (held,) = bind("127.0.0.1", 0, "hint")
    held.listen()
    port = held.getsockname()[1]
    letting_go = threading.Timer(0.3, held.close)
    letting_go.start()
    (made,) = bind("127.0.0.1", port, "hint")
    made.close()
    letting_go.join()
