"""Writes the prepared copy of a DuckDB database: a separate file, written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb

from dpsql.engines.base import CopyPlan, CopyRequest, Tell
from dpsql.engines.duckdb.kind import file_of
from dpsql.engines.runtime import engine_failed
from dpsql.errors import OperationalError, PolicyError
from dpsql.files import sync_directory
from dpsql.lowering.copies import TableToCopy
from dpsql.lowering.dialect import quoted
from dpsql.policy.model import PreparedPolicy, TableSchema
from dpsql.policy.prepared import ABOUT, ABOUT_COLUMNS, COPIED_OWNER, COPIED_ROWS, SCHEMA, About
from dpsql.policy.schemes import Address

_TARGET = "prepared"


class CopyFiles:
    """A copy is a file, beside the database unless the owner names another place."""

    in_database = False

    def plan(
        self, request: CopyRequest, private: Sequence[tuple[str, ...]], public: Sequence[tuple[str, ...]]
    ) -> CopyPlan:
        """All tables under their own names, since only the copy is read."""
        if request.writer is not None:
            raise PolicyError(
                "--as is only for PostgreSQL",
                hint="Run dpsql prepare without --as, as a user who may write to the folder of the DuckDB file.",
            )
        target = _target(request)
        name = os.path.relpath(target, request.address.folder)
        return CopyPlan(name, {source: (source[0], source[1]) for source in (*private, *public)})

    def like(self, table: TableSchema) -> tuple[TableSchema, tuple[tuple[str, ...], ...]]:
        """Without columns that cannot be declared. The copy does not enforce unique keys."""
        columns = {name: column for name, column in table.columns.items() if column.type is not None}
        return replace(table, columns=columns), tuple(sorted(tuple(sorted(names)) for names in table.unique))

    def write(self, request: CopyRequest, name: str, tables: Sequence[TableToCopy], about: About, tell: Tell) -> None:
        del name
        limits, source = request.limits, file_of(request.address)
        write_copy(source, _target(request), tables, about, memory=limits.memory, threads=limits.threads, tell=tell)

    def warnings(self, address: Address, prepared: PreparedPolicy) -> list[str]:
        database, copy = file_of(address), address.folder / prepared.copy
        if not database.is_file() or database.stat().st_mtime_ns <= copy.stat().st_mtime_ns:
            return []
        return ["the database was written to after its copy was prepared: dpsql prepare makes the next version"]


def _target(request: CopyRequest) -> Path:
    if request.to is not None:
        return Path(request.to).absolute()
    database = file_of(request.address).absolute()
    return database.with_name(f"{database.stem}.prepared-{request.version}{database.suffix}")


def write_copy(
    source: Path,
    target: Path,
    tables: Sequence[TableToCopy],
    about: About,
    *,
    memory: str,
    threads: int,
    tell: Callable[[str], None],
) -> None:
    """Copy the tables, in one snapshot. `tell` is called with the name of each table before it is copied."""
    if target.exists():
        raise PolicyError(f'the file "{target}" already exists', hint="Name another one with --to.")
    fresh = target.with_name(f".{target.name}.new")
    # No other user may read the rows meanwhile; the finished copy has the permissions of the database.
    mask = os.umask(0o077)
    try:
        fresh.unlink(missing_ok=True)
        _fill(source, fresh, tables, about, {"memory_limit": memory, "threads": threads}, tell)
        with open(fresh, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(fresh, source.stat().st_mode & 0o444)  # it never changes
        os.link(fresh, target)  # fails if the file was created meanwhile
        sync_directory(target.parent)
    except OSError as error:
        raise OperationalError(
            f'the copy "{target}" cannot be written: {(error.strerror or "").lower()}',
            hint="Check that its folder can be written, and that there is room for a second database.",
        ) from None
    finally:
        os.umask(mask)
        for left in (fresh, fresh.with_name(f"{fresh.name}.wal")):
            with suppress(OSError):
                left.unlink()
        shutil.rmtree(_overflow(fresh), ignore_errors=True)


def _overflow(fresh: Path) -> Path:
    """The folder for data that does not fit into memory: private, and removed at the end."""
    return fresh.with_name(f"{fresh.name}.tmp")


def _fill(
    source: Path,
    fresh: Path,
    tables: Sequence[TableToCopy],
    about: About,
    config: dict[str, str | bool | int | float | list[str]],
    tell: Callable[[str], None],
) -> None:
    failure: OperationalError
    try:
        with duckdb.connect(config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"SET temp_directory = {_text(str(_overflow(fresh)))}")
            connection.execute(f"ATTACH {_text(str(source))} AS source (READ_ONLY)")
            connection.execute(f"ATTACH {_text(str(fresh))} AS {_TARGET}")
            connection.execute("USE source")
            for table in tables:
                tell(table.copied.source[1])
                _copy(connection, table)
            place = f"{_TARGET}.{SCHEMA}"
            connection.execute(f"CREATE SCHEMA {place}")
            connection.execute(f"CREATE TABLE {place}.{ABOUT} ({', '.join(f'{c} VARCHAR' for c in ABOUT_COLUMNS)})")
            row = [str(about.version), about.identity, about.facts]
            connection.execute(f"INSERT INTO {place}.{ABOUT} VALUES (?, ?, ?)", row)
            connection.execute(f"CHECKPOINT {_TARGET}")
    except duckdb.Error as error:
        failure = engine_failed(error)
    else:
        return
    raise failure


def _copy(connection: duckdb.DuckDBPyConnection, table: TableToCopy) -> None:
    schema, name = table.copied.copy
    columns = [
        f"{quoted(column.name)} {column.native}{'' if column.nullable else ' NOT NULL'}"
        for column in table.schema.columns.values()
    ]
    if table.owner_type:
        columns += [f"{COPIED_OWNER} {table.owner_type} NOT NULL", f"{COPIED_ROWS} BIGINT NOT NULL"]
    place = f"{_TARGET}.{quoted(schema)}.{quoted(name)}"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_TARGET}.{quoted(schema)}")
    connection.execute(f"CREATE TABLE {place} ({', '.join(columns)})")
    connection.execute(f"INSERT INTO {place} {table.rows}")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
