"""Reads the policy file, and checks it as far as possible without the database."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from dpsql.errors import PolicyError
from dpsql.policy.address import PostgresAddress
from dpsql.policy.keys import names
from dpsql.policy.load_server import read_server
from dpsql.policy.model import (
    Accounting,
    Bound,
    ColumnPolicy,
    CompileLimits,
    LedgerLocation,
    Limits,
    Policy,
    PreparedPolicy,
    PrivacyPolicy,
    StatementLimits,
    TablePolicy,
    UnitReference,
    UserPolicy,
    ViewPolicy,
)
from dpsql.policy.passwords import Verifier
from dpsql.policy.problems import PolicyProblems, Report, nearest, quoted
from dpsql.policy.schemes import EXAMPLE_URL, Address, address_of, kind_of
from dpsql.policy.sections import NOT_NEGATIVE, POSITIVE, PROBABILITY, LineIndex, Rule, Section, header

_SECTIONS = ("database", "privacy", "limits", "server", "tables", "views", "users")
_LARGEST_EPSILON = Fraction(9_000)  # far beyond any meaning; larger ones would not fit into the ledger's integers

_DEFAULT_QUERY_EPSILON = Fraction(1, 10)
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)? ?[KMGT]i?B")
# Larger values would overflow timers and calendars.
_TIMEOUT = Rule("greater than 0 and at most 86400 seconds", lambda seconds: 0 < seconds <= 86_400)
_REPLAY_DAYS = Rule("at least 0 and at most 36500 days", lambda days: 0 <= days <= 36_500)


def load(path: Path) -> Policy:
    """Read the policy file, or raise PolicyProblems with everything that is wrong in it."""
    return load_text(path, read_file(path))


def read_file(path: Path) -> bytes:
    report = Report(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        report.add(None, "the policy file does not exist", "run: dpsql init URL")
    except OSError as error:
        report.add(None, f"the policy file cannot be read: {error.strerror}")
    raise PolicyProblems(report.problems)


def load_text(path: Path, data: bytes) -> Policy:
    """The policy of a file with this content."""
    content, lines = parse(path, data)
    report = Report(path)
    root = Section((), content, _SECTIONS, lines, report)

    database = _read_database(root, path)
    privacy = _read_privacy(root)
    limits = _read_limits(root)
    server = read_server(root, path)
    tables = read_tables(root)
    views = _read_views(root, tables)
    users = _read_users(root, None if privacy is None else privacy.epsilon)

    if report.problems or database is None or privacy is None:
        raise PolicyProblems(report.problems)
    listed = MappingProxyType(tables), MappingProxyType(users)
    return Policy(
        path,
        database.url,
        privacy,
        *listed,
        limits,
        database.ledger,
        server,
        MappingProxyType(views),
        database.prepared,
        MappingProxyType(database.engine_keys),
    )


def database_address(policy: Policy) -> Address:
    """Where the database is."""
    return address_of(policy.database, policy.path.parent, policy.engine_keys)


def parse(path: Path, data: bytes) -> tuple[dict[str, object], LineIndex]:
    """The parsed file, with floats as exact decimals."""
    report = Report(path)
    try:
        text = data.decode("utf-8")
        return tomllib.loads(text, parse_float=Decimal), LineIndex(text)
    except UnicodeDecodeError as error:
        report.add(data.count(b"\n", 0, error.start) + 1, "the policy file is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        message, line = _split_position(str(error), data.count(b"\n") + 1)
        report.add(line, f"not valid TOML: {message}")
    except (ValueError, InvalidOperation):
        # Python refuses to read integers of thousands of digits, and exponents of dozens.
        report.add(None, "the policy file holds a number with too many digits")
    except RecursionError:
        report.add(None, "the policy file is nested too deeply")
    raise PolicyProblems(report.problems)


def _split_position(message: str, last_line: int) -> tuple[str, int]:
    """Split the position off the TOML parser's message: "Invalid value (at line 3, column 7)"."""
    text, _, place = message.rpartition(" (at ")
    number = re.match(r"line (\d+)", place)
    return text[:1].lower() + text[1:], int(number[1]) if number else last_line


# --- [database] ---


class _Database(NamedTuple):
    url: str
    ledger: LedgerLocation | None
    prepared: PreparedPolicy | None
    engine_keys: dict[str, str]


def _read_database(root: Section, path: Path) -> _Database | None:
    of_engine = _keys_of_engine(root.content.get("database"))
    section = _required(root, "database", None if of_engine is None else (*names("database"), *of_engine))
    if section is None:
        return None
    given = {key: section.text(key) for key in of_engine or ()}
    keys = {key: value for key, value in given.items() if value is not None}
    if "url" not in section.content:
        section.missing("url", EXAMPLE_URL)
    url = section.text("url")
    address = None if url is None else _read_address(section, url, path, keys)
    ledger = section.text("ledger")
    if address is not None and address.file is None and "ledger" not in section.content:
        section.missing("ledger", 'write: ledger = "clinic.ledger", a file on a disk that is never restored')
    place = None if ledger is None else _read_location(section, ledger, path)
    return None if url is None else _Database(url, place, _read_prepared(section), keys)


def _keys_of_engine(database: object) -> tuple[str, ...] | None:
    """The keys that the engine takes; None where no engine is found, and so nobody knows them."""
    url = database.get("url") if isinstance(database, dict) else None
    if not isinstance(url, str):
        return ()
    try:
        return tuple(key.name for key in kind_of(url).keys)
    except PolicyError:
        return None  # told where the address is read


def _read_address(section: Section, url: str, path: Path, keys: Mapping[str, str]) -> Address | None:
    try:
        return address_of(url, path.parent, keys)
    except PolicyError as error:
        section.problem("url", f'"url" in [database]: {error.args[0]}', error.hint)
        return None


def _read_prepared(section: Section) -> PreparedPolicy | None:
    """The prepared copy, as `dpsql prepare` writes it."""
    prepared = section.section("prepared", names("database.prepared"))
    if prepared is None:
        return None
    copy, version, identity = prepared.text("copy"), prepared.integer("version"), prepared.text("identity")
    if not copy or version is None or not identity:
        section.problem(
            "prepared", '"prepared" in [database] is not in the form that dpsql writes', "run: dpsql prepare"
        )
        return None
    return PreparedPolicy(copy, version, identity, prepared.line())


def _read_location(section: Section, ledger: str, path: Path) -> LedgerLocation | None:
    """A path, from the folder of the policy file, or the address of a database on a PostgreSQL server."""
    if "://" not in ledger:
        return path.parent / ledger
    try:
        return PostgresAddress(ledger)
    except ValueError:
        # The address itself is not repeated: it may hold a password.
        section.problem(
            "ledger",
            '"ledger" in [database] is neither a path nor the address of a PostgreSQL database',
            'write: ledger = "postgresql://user@host/database"',
        )
        return None


# --- [privacy] ---


def _read_privacy(root: Section) -> PrivacyPolicy | None:
    section = _required(root, "privacy", names("privacy"))
    if section is None:
        return None
    if "epsilon" not in section.content:
        section.missing("epsilon", "write: epsilon = 1.0")
    epsilon = section.number("epsilon", POSITIVE)
    most = f"{int(_LARGEST_EPSILON):,}, the most that the ledger can count"
    _at_most(section, "epsilon", epsilon, _LARGEST_EPSILON, most)
    delta = section.number("delta", PROBABILITY, Fraction(0))
    accounting = _read_accounting(section, delta)
    key_delta = _read_key_delta(section, accounting, delta)
    query_delta = section.number("query_delta", NOT_NEGATIVE)
    largest = section.number("max_query_epsilon", POSITIVE, epsilon)
    price = section.number(
        "query_epsilon", POSITIVE, _DEFAULT_QUERY_EPSILON if largest is None else min(_DEFAULT_QUERY_EPSILON, largest)
    )
    _at_most(section, "max_query_epsilon", largest, epsilon, "the dataset's total")
    _at_most(section, "query_epsilon", price, largest, "one query may cost")
    _at_most(section, "query_delta", query_delta, key_delta, "is kept for keys")
    least = section.number("min_query_epsilon", POSITIVE)
    _at_most(section, "min_query_epsilon", least, price, "a query costs by default")
    pure = section.flag("pure")
    if accounting == "basic" and "pure" in section.content:
        section.problem(
            "pure", '"pure" has no meaning under basic accounting: answers over declared keys are pure', "remove it"
        )
    if epsilon is None or delta is None or accounting is None or key_delta is None or largest is None or price is None:
        return None
    return PrivacyPolicy(epsilon, delta, accounting, price, query_delta, key_delta, largest, pure, least)


def _read_accounting(section: Section, delta: Fraction | None) -> Accounting | None:
    match section.text("accounting"):
        case "basic":
            return "basic"
        case "zcdp":
            if delta == 0:
                section.problem(
                    "accounting", 'accounting "zcdp" needs a delta greater than 0', 'write: accounting = "basic"'
                )
            return "zcdp"
        case None if "accounting" not in section.content and delta is not None:
            return "zcdp" if delta > 0 else "basic"
        case None:
            return None
        case other:
            section.problem(
                "accounting",
                f"unknown accounting {quoted(other)}",
                f'write: accounting = "{nearest(other, ("basic", "zcdp")) or "zcdp"}"',
            )
            return None


def _read_key_delta(section: Section, accounting: Accounting | None, delta: Fraction | None) -> Fraction | None:
    """The part of delta for unknown keys; under zcdp the rest converts rho to epsilon and may not be 0."""
    if delta is None or accounting is None:
        return None
    if accounting == "basic":
        if "key_delta" in section.content:
            section.problem(
                "key_delta", '"key_delta" has no meaning under basic accounting: all of delta is for keys', "remove it"
            )
        return delta
    key_delta = section.number("key_delta", NOT_NEGATIVE, delta / 2)
    if "key_delta" in section.content and key_delta is not None and delta > 0 and key_delta >= delta:
        section.problem("key_delta", '"key_delta" in [privacy] must be less than delta')
    return key_delta


def _at_most(section: Section, key: str, value: Fraction | None, limit: Fraction | None, what: str) -> None:
    if key in section.content and value is not None and limit is not None and value > limit:
        section.problem(key, f"{quoted(key)} in {section.title} is more than {what}")


# --- [limits] ---


def _read_limits(root: Section) -> Limits:
    section = root.section("limits", names("limits"))
    if section is None:
        return Limits()
    defaults = Limits()
    memory = _memory(section, "memory", "2GB")
    timeout = section.number("timeout", _TIMEOUT)
    replay_days = section.number("replay_days", _REPLAY_DAYS)
    answer_tick = section.number("answer_tick", _TIMEOUT)
    return Limits(
        max_cells=section.integer("max_cells") or defaults.max_cells,
        timeout=defaults.timeout if timeout is None else float(timeout),
        memory=memory or defaults.memory,
        threads=section.integer("threads") or defaults.threads,
        replay_days=None if replay_days is None else float(replay_days),
        max_result_cells=section.integer("max_result_cells") or defaults.max_result_cells,
        max_queries_per_user=section.integer("max_queries_per_user") or defaults.max_queries_per_user,
        answer_tick=None if answer_tick is None else float(answer_tick),
        statement=_read_statement_limits(section),
        compiling=_read_compile_limits(section),
    )


def _memory(section: Section, key: str, example: str) -> str | None:
    amount = section.text(key)
    if amount is not None and not _MEMORY.fullmatch(amount):
        section.problem(key, f"{quoted(key)} in [limits] is not a memory size", f'write: {key} = "{example}"')
        return None
    return amount


def _read_compile_limits(section: Section) -> CompileLimits:
    defaults = CompileLimits()
    seconds = section.number("compile_timeout", _TIMEOUT)
    memory = _memory(section, "compile_memory", defaults.compile_memory)
    return CompileLimits(
        max_compile_steps=section.integer("max_compile_steps") or defaults.max_compile_steps,
        compile_timeout=defaults.compile_timeout if seconds is None else float(seconds),
        compile_memory=memory or defaults.compile_memory,
    )


def _read_statement_limits(section: Section) -> StatementLimits:
    defaults = StatementLimits()
    found = {part.name: section.integer(part.name) or getattr(defaults, part.name) for part in fields(StatementLimits)}
    for name, most in _LARGEST.items():
        if found[name] > most:
            section.problem(name, f"{quoted(name)} in [limits] is more than {most:,}", f"write: {name} = {most}")
    return StatementLimits(**found)


# Beyond these, reading a statement takes longer than others can wait for it, or more stack than Python has.
_LARGEST = {"max_bytes": 200_000, "max_nodes": 1_000_000, "max_nesting": 60, "max_joins": 1_000, "max_list": 100_000}


# --- [views] ---


def _read_views(root: Section, tables: Mapping[str, TablePolicy]) -> dict[str, ViewPolicy]:
    """Named queries; they are parsed when the policy is joined with its database."""
    section = root.section("views", None)
    if section is None:
        return {}
    views: dict[str, ViewPolicy] = {}
    for name in section.content:
        view = section.section(name, names("views"))
        if view is None:
            continue
        parts = name.split(".")
        if len(parts) > 2 or not all(parts) or "\0" in name:
            section.problem(
                name, f"{quoted(name)} is not a valid view name", 'write: [views.NAME] or [views."SCHEMA.NAME"]'
            )
        if name in tables:
            section.problem(name, f"{quoted(name)} is declared as a table and as a view", "remove one of the two")
        if "sql" not in view.content:
            view.missing("sql", 'write: sql = "SELECT …"')
        sql = view.text("sql")
        if sql is not None:
            views[name] = ViewPolicy(name, sql, view.line())
    return views


# --- [users] ---


def _read_users(root: Section, total: Fraction | None) -> dict[str, UserPolicy]:
    section = root.section("users", None)
    if section is None:
        return {}
    users: dict[str, UserPolicy] = {}
    for name in section.content:
        user = section.section(name, names("users"))
        if not name or "\0" in name:
            section.problem(name, f"{quoted(name)} is not a valid user name")
        if user is not None:
            epsilon = user.number("epsilon", POSITIVE)
            _at_most(user, "epsilon", epsilon, total, "the dataset's total")
            users[name] = UserPolicy(name, epsilon, user.line(), _read_password(user, name))
    return users


def _read_password(user: Section, name: str) -> str | None:
    """The verifier of the user's password. An invalid value is never quoted."""
    password = user.text("password")
    if password is not None and Verifier.parse(password) is None:
        user.problem(
            "password",
            f'"password" in {user.title} is not a SCRAM-SHA-256 verifier; passwords themselves are not stored',
            f"run: dpsql user password {shlex.quote(name)}",
        )
        return None
    return password


def _required(root: Section, name: str, known: tuple[str, ...] | None) -> Section | None:
    if name not in root.content:
        root.report.add(None, f"section [{name}] is missing", f"write: [{name}]")
    return root.section(name, known)


# ------------------------------------------------------------
# Reads the [tables] of the policy file: the owner of each row, and the columns.


def read_tables(root: Section) -> dict[str, TablePolicy]:
    """All declared tables by name. A table that is not declared does not exist for an analyst."""
    if "tables" not in root.content:
        root.report.add(None, "no table is declared", "write: [tables.NAME]")
    section = root.section("tables", None)
    if section is None:
        return {}
    tables: dict[str, TablePolicy] = {}
    for name in section.content:
        table = _read_table(section, name)
        if table is not None:
            tables[name] = table
    for table in tables.values():
        if isinstance(table.unit, UnitReference):
            _check_reference(section, tables, table.name, table.unit)
    return tables


def _read_table(tables: Section, name: str) -> TablePolicy | None:
    parts = name.split(".")
    if len(parts) > 2 or not all(parts) or "\0" in name:
        tables.problem(
            name, f"{quoted(name)} is not a valid table name", 'write: [tables.NAME] or [tables."SCHEMA.NAME"]'
        )
        return None
    content = tables.content[name]
    if _is_schema(content):
        for table in content:
            fix = f"write: [{header(('tables', f'{name}.{table}'))}]"
            tables.report.add(tables.line(name, table), "a table in a schema needs quotation marks", fix)
        return None
    section = tables.section(name, names("tables"))
    if section is None:
        return None
    if section.flag("public"):
        for key in section.content:
            if key in names("tables") and key not in ("public", "columns"):
                section.problem(
                    key, f"public table {quoted(name)} takes no {quoted(key)}", "remove it, or public = true"
                )
        return TablePolicy(name, public=True, columns=_read_columns(section, public=True), line=section.line())
    return TablePolicy(
        name,
        unit=_read_unit(section, name),
        max_rows_per_unit=section.integer("max_rows_per_unit") or 1,
        max_groups_per_unit=section.integer("max_groups_per_unit"),
        columns=_read_columns(section),
        line=section.line(),
        tight=_said(section, "tight"),
    )


def _is_schema(content: object) -> TypeGuard[dict[str, object]]:
    """[tables.sales.orders] without quotation marks: TOML reads a table "sales" that holds only tables."""
    return (
        isinstance(content, dict)
        and bool(content)
        and all(isinstance(value, dict) and key not in names("tables") for key, value in content.items())
    )


# --- the unit ---


def _read_unit(section: Section, name: str) -> str | UnitReference | None:
    unit = section.content.get("unit")
    if unit is None:
        section.report.add(
            section.line(), f"table {quoted(name)} has no unit", 'write: unit = "COLUMN", or public = true'
        )
        return None
    if not isinstance(unit, dict):
        return section.text("unit")
    reference = section.section("unit", names("tables.unit"))
    if reference is None:
        return None
    for key in names("tables.unit"):
        if key not in reference.content:
            reference.missing(key, 'write: unit = { via = "COLUMN", table = "TABLE", key = "COLUMN" }')
    via, table, target = reference.texts("via"), reference.text("table"), reference.texts("key")
    if via is None or table is None or target is None:
        return None
    if len(via) != len(target):
        reference.problem("via", f'"via" and "key" in {reference.title} name different numbers of columns')
        return None
    return UnitReference(via, table, target)


def _check_reference(section: Section, tables: Mapping[str, TablePolicy], name: str, unit: UnitReference) -> None:
    """A chain of references must end at a table with a unit column: otherwise a row has no owner."""
    line = section.line(name, "unit")
    # A table that is declared but invalid was reported already; it is not missing.
    if unit.table not in section.content:
        meant = nearest(unit.table, tables)
        fix = None if meant is None else f"write: table = {quoted(meant)}"
        section.report.add(line, f"the unit refers to table {quoted(unit.table)}, which is not declared", fix)
        return
    target = tables.get(unit.table)
    if target is not None and target.public:
        section.report.add(line, f"the unit refers to table {quoted(unit.table)}, which is public and has no unit")
    passed: set[str] = set()
    while target is not None and target.name not in passed and isinstance(target.unit, UnitReference):
        if target.name == name:
            section.report.add(line, f"the unit of table {quoted(name)} refers back to itself")
            return
        passed.add(target.name)
        target = tables.get(target.unit.table)


# --- the columns ---


def _read_columns(table: Section, *, public: bool = False) -> Mapping[str, ColumnPolicy]:
    section = table.section("columns", None)
    columns: dict[str, ColumnPolicy] = {}
    if section is not None:
        for name, content in section.content.items():
            if not isinstance(content, dict):
                fix = f"write: {header((name,))} = {{}}"
                section.problem(name, f"column {quoted(name)} must be a table in braces, even if it is empty", fix)
                continue
            column = section.section(name, names("tables.columns"))
            if column is not None:
                columns[name] = _read_column(column, name, public=public)
    return MappingProxyType(columns)


def _read_column(column: Section, name: str, *, public: bool) -> ColumnPolicy:
    lower, upper = _read_bounds(column)
    step = column.number("step", POSITIVE)
    values = column.values("values")
    if "values" in column.content and ("min" in column.content or "max" in column.content):
        column.problem("values", f'{column.title} has both "values" and "min" or "max"', "keep one of the two")
    if step is not None and (isinstance(lower, date) or (values is not None and type(values[0]) is not int)):
        column.problem("step", f'"step" in {column.title} is for numbers only', "remove it")
    if "tight" in column.content and lower is None:
        column.problem("tight", f'"tight" in {column.title} is for columns with "min" and "max"', "remove it")
    tight, most = _said(column, "tight"), column.integer("max_rows_per_value")
    if most is not None and not public:
        fix = "remove it; max_rows_per_unit bounds the rows of a private table"
        column.problem("max_rows_per_value", f'"max_rows_per_value" in {column.title} is for public tables only', fix)
    return ColumnPolicy(name, lower, upper, step, values, column.flag("nullable_key"), column.line(), tight, most)


def _said(section: Section, key: str) -> bool | None:
    return section.flag(key) if key in section.content else None


def _read_bounds(column: Section) -> tuple[Bound | None, Bound | None]:
    for key, other in (("min", "max"), ("max", "min")):
        if key in column.content and other not in column.content:
            column.problem(key, f'{column.title} has "{key}" without "{other}"', "write both, or neither")
    lower, upper = column.bound("min"), column.bound("max")
    if lower is not None and upper is not None:
        if type(lower) is not type(upper):
            column.problem("max", f'"min" and "max" in {column.title} are of different types')
        elif lower > upper:  # type: ignore[operator]  # both are of one type
            column.problem("min", f'"min" in {column.title} is greater than "max"')
    return lower, upper
