"""Every refusal and failure, each with its SQLSTATE.

The upper classes are those of PEP 249, so a driver raises these as they are.
A message says what, where and what to do; it never holds a value from the data.
"""

from __future__ import annotations

import errno
import math
from typing import Protocol


class Warning(Exception):  # noqa: A001 - the name is fixed by PEP 249
    """An important notice that is not an error (PEP 249)."""


class Error(Exception):
    """Base of all dpsql errors (PEP 249)."""

    sqlstate: str = "XX000"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail
        # One-based character position in the analyst's own text, as PostgreSQL counts.
        self.position = position


class InterfaceError(Error):
    """The driver was used wrongly (PEP 249)."""

    sqlstate = "08003"


class DatabaseError(Error):
    """Anything that concerns the database (PEP 249)."""


class DataError(DatabaseError):
    """A value does not fit (PEP 249)."""

    sqlstate = "22000"


class OperationalError(DatabaseError):
    """The operation failed for reasons outside the query text (PEP 249)."""

    sqlstate = "58000"


class IntegrityError(DatabaseError):
    """Relational integrity is affected (PEP 249); dpsql never writes, so it never raises it."""

    sqlstate = "23000"


class InternalError(DatabaseError):
    """dpsql met a state it holds impossible (PEP 249)."""


class ProgrammingError(DatabaseError):
    """The query text is wrong (PEP 249)."""

    sqlstate = "42000"


class NotSupportedError(DatabaseError):
    """The query cannot be answered (PEP 249)."""

    sqlstate = "0A000"


class NotSupported(NotSupportedError):
    """SQL that cannot be made private, or is not supported."""


class TooMuchNoise(NotSupported):
    """Noise so wide, in steps of the sum's grid, that 64 bits do not hold it."""


class TooComplex(NotSupported):
    """A statement that is larger than the policy allows."""

    sqlstate = "54001"


class PrivateRows(ProgrammingError):
    """Rows of a private table would be returned."""

    sqlstate = "42501"


class UnknownTable(ProgrammingError):
    """The table is unknown, undeclared or hidden: one text for all three."""

    sqlstate = "42P01"

    def __init__(self, name: str, *, position: int | None = None) -> None:
        super().__init__(f'relation "{name}" does not exist', position=position)


class MissingFrom(ProgrammingError):
    """A column is qualified with a table that the query does not read, whether or not there is one."""

    sqlstate = "42P01"

    def __init__(self, name: str, *, position: int | None = None) -> None:
        super().__init__(f'missing FROM-clause entry for table "{name}"', position=position)


class UnknownColumn(ProgrammingError):
    """The column is unknown, undeclared or hidden: one text for all three."""

    sqlstate = "42703"

    def __init__(self, name: str, *, position: int | None = None) -> None:
        super().__init__(f'column "{name}" does not exist', position=position)


class UnknownFunction(ProgrammingError):
    """The function is unknown or not on the allow-list: one text for both."""

    sqlstate = "42883"

    def __init__(self, name: str, *, hint: str | None = None, position: int | None = None) -> None:
        super().__init__(f"function {name} does not exist", hint=hint, position=position)


class UnknownOperator(ProgrammingError):
    """An operator or function exists, but not for these types."""

    sqlstate = "42883"


class AmbiguousColumn(ProgrammingError):
    sqlstate = "42702"


class NameTooLong(ProgrammingError):
    sqlstate = "42622"


class GroupingError(ProgrammingError):
    sqlstate = "42803"


class WindowingError(ProgrammingError):
    sqlstate = "42P20"


class UnknownWindow(ProgrammingError):
    sqlstate = "42704"

    def __init__(self, name: str, *, position: int | None = None) -> None:
        super().__init__(f'window "{name}" does not exist', position=position)


class TypeMismatch(ProgrammingError):
    sqlstate = "42804"


class InvalidReference(ProgrammingError):
    """A position, alias or name is used where it cannot stand."""

    sqlstate = "42P10"


class DuplicateName(ProgrammingError):
    sqlstate = "42712"


class UnknownParameter(ProgrammingError):
    sqlstate = "42P02"


class SqlSyntaxError(ProgrammingError):
    sqlstate = "42601"


class MissingDeclaration(ProgrammingError):
    """Bounds or keys that the query needs are missing in the policy."""

    sqlstate = "55000"


class Grains(Protocol):
    """A price as the ledger counts it; the class itself lives above this module."""

    @property
    def loss(self) -> int: ...

    @property
    def delta(self) -> int: ...


class BudgetExhausted(OperationalError):
    """The dataset or the user cannot pay. `needed` and `left` are those of the account that refused."""

    sqlstate = "53400"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        position: int | None = None,
        needed: Grains | None = None,
        left: Grains | None = None,
    ) -> None:
        super().__init__(message, hint=hint, detail=detail, position=position)
        self.needed = needed
        self.left = left


class ReadOnly(NotSupportedError):
    """A write, DDL, DO, CALL or COPY FROM."""

    sqlstate = "25006"


class BadSetting(DataError):
    """A setting or a parameter value is out of its range."""

    sqlstate = "22023"


class OutOfRange(DataError):
    """Arithmetic on released or public values left the range of its type."""

    sqlstate = "22003"


class CannotCast(ProgrammingError):
    """There is no cast between the two types."""

    sqlstate = "42846"


class UnknownType(ProgrammingError):
    sqlstate = "42704"

    def __init__(self, name: str, *, position: int | None = None) -> None:
        super().__init__(f'type "{name}" does not exist', position=position)


class InvalidEscape(DataError):
    sqlstate = "22025"


class InvalidText(DataError):
    """A quoted literal cannot be read as a value of its type."""

    sqlstate = "22P02"


class InvalidDate(DataError):
    """A quoted literal cannot be read as a date or timestamp."""

    sqlstate = "22007"


class DateOutOfRange(DataError):
    """A part of a date or timestamp is out of its range."""

    sqlstate = "22008"


class TooManyRows(DataError):
    """A scalar subquery over released values gave more than one row."""

    sqlstate = "21000"


class ResultTooLarge(OperationalError):
    """The rest of a query, over released and public values, grew beyond what the policy allows."""

    sqlstate = "54000"


class TooManyFiles(OperationalError):
    """The system lets the process, or all processes, open no more files or connections."""

    sqlstate = "53000"

    def __init__(self) -> None:
        super().__init__(
            "the server has too many open files",
            hint="Try again soon. If it does not pass, the owner raises the limit of open files: ulimit -n in the"
            " shell, LimitNOFILE in a systemd unit.",
        )


class Cancelled(OperationalError):
    """Cancelled or timed out. Where it was charged before, the detail says so."""

    sqlstate = "57014"


class EngineFailed(OperationalError):
    """The engine failed. One fixed sentence and a log id; nothing of the engine's text."""

    sqlstate = "58000"

    def __init__(self, log_id: str) -> None:
        super().__init__(
            f"the engine could not run the query (log id {log_id})",
            hint="The owner finds the cause in the log under this id.",
        )
        self.log_id = log_id


class EngineLost(EngineFailed):
    """The engine went away: not this query alone has failed."""


class CircuitOpen(OperationalError):
    """The engine failed a moment ago, and nothing is charged until it is tried again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database has failed, and new queries are refused for {max(1, math.ceil(seconds))} s",
            detail="Nothing was charged.",
            hint="Ask again then. Earlier answers, and queries that were paid for and failed, are still free.",
        )


class LedgerLost(OperationalError):
    """The ledger no longer holds a charge that was seen in it. Nothing is charged until the owner decides."""

    def __init__(self, number: int, found: int) -> None:
        super().__init__(
            "the ledger has lost charges",
            detail=f"Charge {number:,} was seen, and is not there, or is another; the ledger has {found:,} now.",
            hint="Put back the ledger that holds all charges. If it is lost for good, the owner accepts this one with:"
            " dpsql ledger accept",
        )


class LedgerDamaged(OperationalError):
    """The storage of the ledger is broken. Nothing is charged until the owner decides."""

    def __init__(self, why: str | None = None) -> None:
        super().__init__(
            "the ledger is damaged" + (f": {why}" if why else ""),
            hint="Keep it, and restore a copy that holds all charges. dpsql ledger verify says what is wrong, and dpsql"
            " ledger accept lets a sound one be charged again.",
        )


class UnknownUser(OperationalError):
    sqlstate = "28000"


class ProtocolViolation(OperationalError):
    """A client sent bytes that the protocol does not allow at that place."""

    sqlstate = "08P01"


class LoginRefused(OperationalError):
    """A client may not come in this way, whatever its password."""

    sqlstate = "28000"


class WrongPassword(OperationalError):
    """The password is wrong, or there is no such user, or none with a password: one text for all three."""

    sqlstate = "28P01"

    def __init__(self, user: str) -> None:
        super().__init__(f'password authentication failed for user "{user}"')


class UnknownDatabase(OperationalError):
    sqlstate = "3D000"

    def __init__(self, name: str, *, hint: str) -> None:
        super().__init__(f'database "{name}" does not exist', hint=hint)


class PolicyError(OperationalError):
    """The policy, the database or the ledger do not fit together."""

    sqlstate = "F0000"


class SchemaChanged(PolicyError):
    """A table is no longer what the policy was checked against."""

    sqlstate = "55000"

    def __init__(self, table: str) -> None:
        super().__init__(
            f'table "{table}" was changed in the database after the policy was read',
            hint="The owner runs dpsql check, and then starts dpsql anew.",
        )


def is_for_files(error: BaseException | None) -> bool:
    """Whether an error comes from having too many files open."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
        error = error.__cause__ or error.__context__
    return error is not None
