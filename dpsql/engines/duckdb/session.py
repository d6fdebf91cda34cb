"""The settings of every DuckDB of dpsql, and statements that it has read.

The settings under which every DuckDB of dpsql runs: no files, no network, no Python objects, no changes.

Here, below both, because the backend and the post-processor need it and must not import each other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import MappingProxyType
from typing import Any, Protocol

from dpsql.errors import InternalError, PolicyError

# In this order: a later setting forbids changing an earlier one, and the last locks them all.
SETTINGS = MappingProxyType(
    {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "allow_extension_repositories": "forbidden",
        "allow_persistent_secrets": "false",
        # Variables of the calling Python code are not tables.
        "python_enable_replacements": "false",
        # No spilling: a temporary file would hold private values in the clear and survive a crash. A query that
        # does not fit into memory fails instead.
        "temp_directory": "",
        # A timestamp with time zone is the same instant whatever the machine's zone.
        "TimeZone": "UTC",
        # The generator guards divisors; should a guard be missing, zero gives NULL rather than an error that tells.
        "error_on_division_by_zero": "false",
        # Both would hold the rows of a join in memory, where reading its tables twice is cheaper.
        "disabled_optimizers": "common_subplan,grouping_sets",
        # The lock has no exceptions.
        "allowed_configs": "[]",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
)
# An optimizer that looks at the columns' own statistics evaluates expressions on them, and fails for some: whether a
# query runs would depend on the rows. It may be left on only where a query that failed is run once more without it.
_BY_STATISTICS = "statistics_propagation"


class Connection(Protocol):
    """As much of a DuckDB connection as is needed here."""

    def execute(self, query: str, /) -> Any: ...


def is_locked(connection: Connection) -> bool:
    return _in_force(connection)["lock_configuration"] == "true"


def lock_down(connection: Connection, *, statistics: bool = False) -> None:
    """Close every way out of the database.

    Claim: no statement can read or write another file, reach the network, load code, see a Python object or undo this.
    Because: the settings say so and are locked. They are read back, so one that the engine does not honour is noticed,
    as is a database that someone else in this process locked with other settings.
    Needs: nobody uses the connection before this returns.
    """
    settings = dict(SETTINGS)
    if not statistics:
        settings["disabled_optimizers"] = f"{_BY_STATISTICS},{settings['disabled_optimizers']}"
    if not is_locked(connection):
        for name, value in settings.items():
            connection.execute(f"SET GLOBAL {name} = '{value}'")
    in_force = _in_force(connection)
    for name, value in settings.items():
        if in_force.get(name) != value:
            raise PolicyError(f'the engine does not honour the setting "{name}"')


def _in_force(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM duckdb_settings()").fetchall())


# ------------------------------------------------------------
# Generated SQL as DuckDB has read it. Reading takes a good part of a short query, and texts come again.
#
# Here, below both, because the backend and the post-processor need it and must not import each other.

REMEMBERED = 500
LONGEST = 100_000  # characters; a longer text is read each time


class Reader(Protocol):
    """As much of a DuckDB connection as is needed here."""

    def extract_statements(self, query: str, /) -> list[Any]: ...


class Statements:
    """Single SELECTs by their text. Safe for many threads: DuckDB runs a copy of what it is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Any] = OrderedDict()

    def read(self, connection: Reader, sql: str) -> Any:
        """The statement; a text that is anything but one SELECT is a defect of ours."""
        with self._lock:
            found = self._known.get(sql)
            if found is not None:
                self._known.move_to_end(sql)
                return found
        statements = connection.extract_statements(sql)
        if [statement.type.name for statement in statements] != ["SELECT"]:
            raise InternalError("generated SQL is not a single SELECT")
        if len(sql) <= LONGEST:
            with self._lock:
                self._known[sql] = statements[0]
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        return statements[0]
