"""dpsql: ordinary SQL in, differentially private answers out.

This package is also the module that PEP 249 describes: `dpsql.connect`, `dpsql.paramstyle`, `dpsql.Error` and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpsql.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - the name is fixed by PEP 249
)
from dpsql.version import __version__

if TYPE_CHECKING:
    from dpsql.driver.dbapi import (
        BINARY,
        DATETIME,
        NUMBER,
        ROWID,
        STRING,
        Binary,
        Connection,
        Cursor,
        Date,
        DateFromTicks,
        Time,
        TimeFromTicks,
        Timestamp,
        TimestampFromTicks,
        apilevel,
        connect,
        paramstyle,
        threadsafety,
    )


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "__version__",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]


if not TYPE_CHECKING:  # where it would allow every name

    def __getattr__(name: str) -> object:
        """The driver, loaded when it is first needed: engines take long to import."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("dpsql.driver.dbapi"), name)


def __dir__() -> list[str]:
    return __all__
