"""The twin's server as seen by a process that did not start it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from dpsql.twin.cluster import connect


class LeasedCluster:
    """Used as a `Cluster`. Who runs the server is asked to look after it, and says where it listens."""

    def __init__(self, socket: Path, look_after: Callable[[], Path]) -> None:
        self.socket = socket
        self._look_after = look_after

    @property
    def is_ready(self) -> bool:
        """As far as is known: who cannot reach it has it looked after."""
        return True

    def ensure_running(self) -> None:
        self.socket = self._look_after()

    def connect(self, database: str) -> psycopg.Connection[TupleRow]:
        """As the superuser."""
        try:
            return connect(self.socket, database)
        except psycopg.OperationalError:
            self.ensure_running()
            return connect(self.socket, database)

    def stop(self) -> None:
        """Not ours to stop."""
