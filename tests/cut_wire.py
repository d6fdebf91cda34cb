"""A wire to a PostgreSQL server that can be cut where it hurts most: around the COMMIT of a client."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from dpsql.policy.address import PostgresAddress

_COMMIT = b"COMMIT\0"


class Fault(Enum):
    """What happens to the next COMMIT."""

    LOST = auto()  # it never reaches the server
    UNACKNOWLEDGED = auto()  # the server commits, and the client never hears of it
    LATE = auto()  # the client is cut off at once, and the server gets it a while later


class Wire:
    """Listens beside the server and passes everything on, in both directions, until told otherwise."""

    def __init__(self, server: PostgresAddress) -> None:
        parts = conninfo_to_dict(server.url)
        self.lead_to(server)
        self._directory = tempfile.TemporaryDirectory()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._directory.name) / ".s.PGSQL.5432"))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self.fault: Fault | None = None
        self.on_commit: Callable[[], object] = lambda: None  # before the server gets one
        self.fails_for_good = False  # after a fault, nobody gets through any more
        self.faults = 0
        host = quote(self._directory.name, safe="")
        self.address = PostgresAddress(f"postgresql://{parts['user']}@{host}/{parts['dbname']}")
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server: PostgresAddress) -> None:
        """Where connections go from now on: as when an address is given to another machine."""
        self._server = str(Path(str(conninfo_to_dict(server.url)["host"])) / ".s.PGSQL.5432")

    def close(self) -> None:
        self._listener.close()
        for end in self._open:
            end.close()
        self._directory.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.faults and self.fails_for_good:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._open += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._replies, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65_536):
                if _COMMIT in data:
                    self.on_commit()
                if self.fault is not None and _COMMIT in data:
                    fault, self.fault = self.fault, None
                    self.faults += 1
                    self._break(fault, data, client, server)
                    return
                server.sendall(data)
        except OSError:
            pass
        _hang_up(server)

    def _break(self, fault: Fault, data: bytes, client: socket.socket, server: socket.socket) -> None:
        # The reply has no way back from here on.
        _hang_up(client)
        if fault is Fault.LATE:
            time.sleep(0.5)
        if fault is not Fault.LOST:
            server.sendall(data)
            time.sleep(0.2)  # the server reads it before it sees that nobody is there
        _hang_up(server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := server.recv(65_536):
                client.sendall(data)
        except OSError:
            pass
        _hang_up(client)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
