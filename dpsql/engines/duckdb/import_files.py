"""A folder of parquet or CSV files becomes a DuckDB file, once: each file a table."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from dpsql.engines.runtime import log_engine_error
from dpsql.errors import PolicyError

_READERS = {".parquet": "read_parquet", ".csv": "read_csv", ".csv.gz": "read_csv", ".tsv": "read_csv"}


@dataclass(frozen=True, slots=True)
class Imported:
    """A file that became a table."""

    file: str
    table: str
    columns: int


def import_folder(folder: Path, database: Path) -> list[Imported]:
    """Create the database, or leave nothing behind. An existing database is not changed."""
    if database.exists():
        raise PolicyError(
            f'"{database}" already exists', hint=f'To draft a policy for it as it is, run: dpsql init "{database}".'
        )
    try:
        tables = _tables(folder)
        # Beside the database, so that the finished file only needs a new name.
        with TemporaryDirectory(prefix=f".{database.name}.", dir=database.parent) as unfinished:
            imported = _import_all(tables, Path(unfinished) / database.name)
            (Path(unfinished) / database.name).rename(database)
    except OSError as error:
        raise PolicyError(f'"{folder}" cannot be imported into "{database}": {error.strerror}') from None
    return imported


def _tables(folder: Path) -> dict[str, tuple[Path, str]]:
    """The name of each table, with its file and the function that reads it."""
    tables: dict[str, tuple[Path, str]] = {}
    for file in sorted(folder.iterdir()):
        ending = next((ending for ending in _READERS if file.name.lower().endswith(ending)), None)
        if ending is None or not file.is_file():
            continue
        # A name that needs no quotation marks in SQL.
        name = re.sub(r"\W+", "_", file.name[: -len(ending)]).strip("_").lower() or "table"
        if name in tables:
            raise PolicyError(
                f'"{tables[name][0].name}" and "{file.name}" would both become table "{name}"',
                hint="Rename one of the two, or move it out of the folder.",
            )
        tables[name] = (file, _READERS[ending])
    if not tables:
        raise PolicyError(
            f'there is no parquet or CSV file in "{folder}"',
            hint="Each file becomes a table; folders inside are not read.",
        )
    return tables


def _import_all(tables: dict[str, tuple[Path, str]], database: Path) -> list[Imported]:
    try:
        with duckdb.connect(str(database)) as connection:
            connection.execute("SET autoinstall_known_extensions = false")
            imported = [
                Imported(file.name, name, _import(connection, name, file, reader))
                for name, (file, reader) in tables.items()
            ]
            # Closing also writes what is left, but reports no error if the disk is full.
            connection.execute("CHECKPOINT")
            return imported
    except duckdb.Error as error:
        log_id = log_engine_error(error)
    raise PolicyError(f"the import failed (log id {log_id})", hint="Check that there is room on the disk.")


def _import(connection: duckdb.DuckDBPyConnection, name: str, file: Path, reader: str) -> int:
    try:
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM {reader}(?)', [glob.escape(str(file))])
        return len(connection.table(f'"{name}"').columns)
    except duckdb.Error as error:
        log_id = log_engine_error(error)
    raise PolicyError(
        f'"{file}" cannot be read (log id {log_id})',
        hint="It must be a parquet file, or a CSV file with a header line; nothing was imported.",
    )
