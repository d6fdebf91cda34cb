"""DuckDB as it is registered: `duckdb:///file.duckdb`, and paths without a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.policy.schemes import Address

if TYPE_CHECKING:
    from dpsql.engines.base import CopyWriter, Engine, Scratch, Survey
    from dpsql.policy.model import Limits, PreparedPolicy

SCHEME = "duckdb:///"


class DuckDBKind:
    title = "DuckDB"
    schemes = ("duckdb",)
    dialect = DUCKDB
    keys = ()

    def address(self, url: str, folder: Path, keys: Mapping[str, str]) -> Address:
        del keys
        if not url.startswith(SCHEME) or url == SCHEME:
            raise ValueError("not the address of a DuckDB file")
        file = folder / url.removeprefix(SCHEME)
        return Address(url, folder, file.name, file)

    def open(self, address: Address, limits: Limits, prepared: PreparedPolicy | None) -> Engine:
        from dpsql.engines.duckdb.engine import DuckDBEngine

        path = file_of(address) if prepared is None else address.folder / prepared.copy
        return DuckDBEngine(path, memory=limits.memory, threads=limits.threads, prepared=prepared)

    @property
    def survey(self) -> Survey:
        from dpsql.engines.duckdb.survey import survey

        return survey

    @property
    def copies(self) -> CopyWriter:
        from dpsql.engines.duckdb.copies import CopyFiles

        return CopyFiles()

    def scratch(self, folder: Path) -> AbstractContextManager[Scratch]:
        from dpsql.engines.duckdb.scratch import DuckDBFiles

        return DuckDBFiles(folder)


def file_of(address: Address) -> Path:
    assert address.file is not None  # as `DuckDBKind.address` makes it
    return address.file


KIND = DuckDBKind()
