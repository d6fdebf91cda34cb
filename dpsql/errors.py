"""Every refusal and failure, each with its SQLSTATE.

The upper classes are those of PEP 249, so a driver raises these as they are.
A message says what, where and what to do; it never holds a value from the data.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Condition:
    """A SQLSTATE with PostgreSQL's name for it, when it is sent and what to do."""

    code: str
    name: str
    when: str
    remedy: str


# The table of errors: every SQLSTATE that dpsql itself raises. The reference page is generated from it.
_CONDITIONS = (
    Condition("08003", "connection_does_not_exist",
              "The driver was used incorrectly: a closed connection, or a cursor without an answer.",
              "Open a connection, and execute before fetching."),
    Condition("08P01", "protocol_violation", "A client sent bytes that the protocol does not allow at that point.",
              "Use a client of PostgreSQL's protocol, version 3."),
    Condition("0A000", "feature_not_supported", "The query cannot be made private, or uses an unsupported feature.",
              "Follow the hint."),
    Condition("21000", "cardinality_violation", "A scalar subquery returned more than one row.",
              "Aggregate in it, or add LIMIT 1."),
    Condition("22000", "data_exception", "A value is invalid.", "Correct the value."),
    Condition("22003", "numeric_value_out_of_range", "A number exceeds its type.", "Cast it to a wider type."),
    Condition("22007", "invalid_datetime_format", "A literal cannot be read as a date or timestamp.",
              "Use the ISO format: 2026-01-31 12:00:00."),
    Condition("22008", "datetime_field_overflow", "A part of a date or timestamp is out of its range.",
              "Correct the day, the hour or the year."),
    Condition("22023", "invalid_parameter_value", "A setting or a parameter is out of its range.",
              "Use a value that the message allows."),
    Condition("22025", "invalid_escape_sequence", "The pattern or the escape character of LIKE is wrong.",
              "Use a single escape character, and none at the end of the pattern."),
    Condition("22P02", "invalid_text_representation", "A quoted literal cannot be read as a value of its type.",
              "Correct the literal, or cast it to another type."),
    Condition("23000", "integrity_constraint_violation", "Never: dpsql does not write.", ""),
    Condition("25006", "read_only_sql_transaction", "A statement that writes.",
              "Use SELECT; change data in the database itself."),
    Condition("28000", "invalid_authorization_specification",
              "The user is not in the policy, or may not connect in this way.",
              "Use a name of the policy; the owner adds users with dpsql user."),
    Condition("28P01", "invalid_password", "The password is wrong, or the user is unknown or has none.",
              "The owner gives a new one: dpsql user."),
    Condition("3D000", "invalid_catalog_name", "There is no such database.", "Connect to the one that the hint names."),
    Condition("42000", "syntax_error_or_access_rule_violation",
              "The query has an error without a more specific code.", "Follow the message."),
    Condition("42501", "insufficient_privilege", "Rows of a private table would be returned.",
              "Aggregate, or group by columns with declared keys."),
    Condition("42601", "syntax_error", "The text is not a PostgreSQL statement, or more than one.",
              "Correct it at the position."),
    Condition("42622", "name_too_long", "A name is longer than 63 bytes.", "Choose a shorter one."),
    Condition("42702", "ambiguous_column", "Several tables have the column.", "Put the table's name before it."),
    Condition("42703", "undefined_column", "The column is unknown, or not declared.",
              "Use a declared one: \\d TABLE lists them."),
    Condition("42704", "undefined_object", "There is no such type or window.",
              "Use a type of PostgreSQL, or name the window."),
    Condition("42712", "duplicate_alias", "Two tables or queries have the same name.", "Give one of them an alias."),
    Condition("42803", "grouping_error",
              "A column is neither grouped by nor aggregated, or an aggregate is used where it is not allowed.",
              "Group by it or aggregate it; filter aggregates with HAVING."),
    Condition("42804", "datatype_mismatch", "A value has the wrong type for its context.", "Cast it."),
    Condition("42846", "cannot_coerce", "There is no cast between the two types.",
              "Cast through an intermediate type, such as text."),
    Condition("42883", "undefined_function", "No function or operator of that name takes these arguments.",
              "See the reference of functions, or cast an argument."),
    Condition("42P01", "undefined_table", "The table is unknown, or not declared.",
              "Use a declared one: \\d lists them."),
    Condition("42P02", "undefined_parameter", "There is no value for a parameter.",
              "Pass as many values as there are parameters."),
    Condition("42P10", "invalid_column_reference", "A position, alias or name is used where it is not allowed.",
              "Use a column of the select list."),
    Condition("42P20", "windowing_error", "A window is defined or used where it is not allowed.",
              "Move it, or correct its frame."),
    Condition("53000", "insufficient_resources", "The server has too many files or connections open.",
              "Try again soon; the owner raises the limit."),
    Condition("53300", "too_many_connections", "The server, or the user, has reached the limit of connections.",
              "Close one, or try again later."),
    Condition("53400", "configuration_limit_exceeded",
              "The privacy budget of the dataset or of the user is exhausted.",
              "Lower the price, ask the owner for a larger allowance, or use stored answers at no cost."),
    Condition("54000", "program_limit_exceeded",
              "The rest of a query, over released and public values, exceeds a limit.",
              "Return fewer rows; the limit is in [limits] of the policy."),
    Condition("54001", "statement_too_complex",
              "The statement is larger than the policy allows, or takes too long to compile.",
              "Split it; the hint names the limit."),
    Condition("55000", "object_not_in_prerequisite_state",
              "The policy lacks bounds or keys that the query needs, or a table has changed since the start.",
              "The owner declares them, or runs dpsql check and restarts dpsql."),
    Condition("57014", "query_canceled", "Cancelled, or timed out.",
              "Run it again; the detail says whether it was charged, and then the next try is free."),
    Condition("57P01", "admin_shutdown", "The server is stopping, or the owner ended the session.", "Connect again."),
    Condition("57P02", "crash_shutdown", "The session was lost within the server.", "Connect again."),
    Condition("57P03", "cannot_connect_now", "The server is starting up or shutting down.", "Try again soon."),
    Condition("58000", "system_error", "The engine, the ledger or the server failed.",
              "Try again; the owner finds the cause in the log."),
    Condition("F0000", "config_file_error", "Policy, database and ledger do not match.",
              "The owner runs dpsql check."),
    Condition("XX000", "internal_error", "An internal error of dpsql.", "Report it."),
)  # fmt: skip
CONDITIONS: Mapping[str, Condition] = MappingProxyType({each.code: each for each in _CONDITIONS})


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
    """The driver was used incorrectly (PEP 249)."""

    sqlstate = "08003"


class DatabaseError(Error):
    """Anything that concerns the database (PEP 249)."""


class DataError(DatabaseError):
    """A value is invalid (PEP 249)."""

    sqlstate = "22000"


class OperationalError(DatabaseError):
    """The operation failed for reasons outside the query text (PEP 249)."""

    sqlstate = "58000"


class IntegrityError(DatabaseError):
    """Relational integrity is affected (PEP 249); dpsql never writes, so it never raises it."""

    sqlstate = "23000"


class InternalError(DatabaseError):
    """dpsql is in an impossible state (PEP 249)."""


class ProgrammingError(DatabaseError):
    """The query text is wrong (PEP 249)."""

    sqlstate = "42000"


class NotSupportedError(DatabaseError):
    """The query cannot be answered (PEP 249)."""

    sqlstate = "0A000"


class NotSupported(NotSupportedError):
    """SQL that cannot be made private, or is not supported."""


class TooMuchNoise(NotSupported):
    """Noise so wide, in steps of the sum's grid, that it exceeds 64 bits."""


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
    """A position, alias or name is used where it is not allowed."""

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
    """A scalar subquery over released values returned more than one row."""

    sqlstate = "21000"


class ResultTooLarge(OperationalError):
    """The rest of a query, over released and public values, exceeds a limit of the policy."""

    sqlstate = "54000"


class TooManyFiles(OperationalError):
    """The process, or the system, has reached its limit of open files or connections."""

    sqlstate = "53000"

    def __init__(self) -> None:
        super().__init__(
            "the server has too many open files",
            hint="Try again soon. If it persists, the owner raises the limit of open files: ulimit -n in the"
            " shell, LimitNOFILE in a systemd unit.",
        )


class Cancelled(OperationalError):
    """Cancelled or timed out. If it was charged, the detail says so."""

    sqlstate = "57014"


class EngineFailed(OperationalError):
    """The engine failed. A fixed message and a log id, without the engine's text."""

    sqlstate = "58000"

    def __init__(self, log_id: str) -> None:
        super().__init__(
            f"the engine could not run the query (log id {log_id})",
            hint="The owner finds the cause in the log under this id.",
        )
        self.log_id = log_id


class EngineLost(EngineFailed):
    """The connection to the engine was lost, which affects all queries."""


class CircuitOpen(OperationalError):
    """The circuit breaker is open: the engine failed recently, and new queries are refused, uncharged."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database has failed, and new queries are refused for {max(1, math.ceil(seconds))} s",
            detail="Nothing was charged.",
            hint="Try again then. Earlier answers, and queries that were paid for and failed, are still free.",
        )


class LedgerLost(OperationalError):
    """The ledger has lost a charge that was seen in it. Nothing is charged until the owner accepts it."""

    def __init__(self, number: int, found: int) -> None:
        super().__init__(
            "the ledger has lost charges",
            detail=f"Charge {number:,} was seen, and is not there, or is another; the ledger has {found:,} now.",
            hint="Restore the ledger that has all charges. If it is lost for good, the owner accepts this one with:"
            " dpsql ledger accept",
        )


class LedgerDamaged(OperationalError):
    """The ledger's storage is damaged. Nothing is charged until the owner accepts it."""

    def __init__(self, why: str | None = None) -> None:
        super().__init__(
            "the ledger is damaged" + (f": {why}" if why else ""),
            hint="Keep it, and restore a copy that holds all charges. dpsql ledger verify says what is wrong, and dpsql"
            " ledger accept lets a sound one be charged again.",
        )


class UnknownUser(OperationalError):
    sqlstate = "28000"


class ProtocolViolation(OperationalError):
    """A client sent bytes that the protocol does not allow at that point."""

    sqlstate = "08P01"


class LoginRefused(OperationalError):
    """A client may not connect in this way, whatever its password."""

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
    """The policy, the database or the ledger do not match."""

    sqlstate = "F0000"


class SchemaChanged(PolicyError):
    """A table was changed after the policy was checked against it."""

    sqlstate = "55000"

    def __init__(self, table: str) -> None:
        super().__init__(
            f'table "{table}" was changed in the database after the policy was read',
            hint="The owner runs dpsql check, and then restarts dpsql.",
        )


def is_for_files(error: BaseException | None) -> bool:
    """Whether an error means that too many files are open."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
        error = error.__cause__ or error.__context__
    return error is not None
