"""The settings of every DuckDB instance of dpsql, and its parsed statements.

Every DuckDB instance of dpsql runs without files, network, Python objects and changes.

This is a module of its own because engine and post-processor both need it and must not import each other.
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
        # Generated SQL guards divisors; should a guard be missing, division by zero gives NULL rather than a revealing
        # error.
        "error_on_division_by_zero": "false",
        # Both would keep the rows of a join in memory, where reading its tables twice is cheaper.
        "disabled_optimizers": "common_subplan,grouping_sets",
        # The lock allows no exceptions.
        "allowed_configs": "[]",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
)
# This optimizer evaluates expressions on the columns' statistics, which may fail: whether a query runs would depend on
# the rows. It may be enabled only where a query that failed is run again without it.
_BY_STATISTICS = "statistics_propagation"


class Connection(Protocol):
    """As much of a DuckDB connection as is needed here."""

    def execute(self, query: str, /) -> Any: ...


def is_locked(connection: Connection) -> bool:
    return _in_force(connection)["lock_configuration"] == "true"


def lock_down(connection: Connection, *, statistics: bool = False) -> None:
    """Close every way out of the database.

    Claim: no statement can read or write another file, reach the network, load code, see a Python object or undo this.
    Because: the settings say so and are locked. They are read back, so a setting that the engine ignores is noticed, as
    is a database that was locked with other settings in this process.
    Needs: the connection is not used before this returns.
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
# Generated SQL, parsed. Parsing is a large part of a short query, and texts recur.

REMEMBERED = 500
LONGEST = 100_000  # characters; a longer text is parsed each time


class Reader(Protocol):
    """As much of a DuckDB connection as is needed here."""

    def extract_statements(self, query: str, /) -> list[Any]: ...


class Statements:
    """Single SELECTs by their text. Thread-safe: DuckDB runs a copy of the statement."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Any] = OrderedDict()

    def read(self, connection: Reader, sql: str) -> Any:
        """The statement; generated text other than one SELECT is a bug."""
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
