"""PostgreSQL as it is registered: `postgresql://user@host/database`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.policy.schemes import Address

if TYPE_CHECKING:
    from dpsql.engines.base import CopyWriter, Engine, Scratch, Survey
    from dpsql.policy.model import Limits, PreparedPolicy


class PostgresKind:
    title = "PostgreSQL"
    schemes = ("postgresql", "postgres")
    dialect = POSTGRES
    keys = ()

    def address(self, url: str, folder: Path, keys: Mapping[str, str]) -> Address:
        """libpq reports errors in the address when it is opened.

        The host may change, and the address may hold a password, so the ledger knows the database by its path alone.
        """
        del keys
        return Address(url, folder, unquote(urlsplit(url).path.strip("/")) or "postgres")

    def open(self, address: Address, limits: Limits, prepared: PreparedPolicy | None) -> Engine:
        from dpsql.engines.postgres.engine import PostgresEngine

        return PostgresEngine(address.url, memory=limits.memory, threads=limits.threads, prepared=prepared)

    @property
    def survey(self) -> Survey:
        from dpsql.engines.postgres.survey import survey

        return survey

    @property
    def copies(self) -> CopyWriter:
        from dpsql.engines.postgres.copies import CopySchemas

        return CopySchemas()

    def scratch(self, folder: Path) -> AbstractContextManager[Scratch]:
        from dpsql.engines.postgres.scratch import PostgresServer

        return PostgresServer(folder)


KIND = PostgresKind()
