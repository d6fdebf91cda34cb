"""Reads the policy file. What it says is checked here as far as that is possible without the database."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from dpsql.passwords import Verifier
from dpsql.policy.address import PostgresAddress, is_postgres_address
from dpsql.policy.lines import LineIndex
from dpsql.policy.model import (
    Accounting,
    CompileLimits,
    Limits,
    Place,
    Policy,
    PreparedPolicy,
    PrivacyPolicy,
    StatementLimits,
    TablePolicy,
    UserPolicy,
    ViewPolicy,
)
from dpsql.policy.problems import PolicyProblems, Problem, Report, nearest, quoted
from dpsql.policy.section import NOT_NEGATIVE, POSITIVE, PROBABILITY, Rule, Section
from dpsql.policy.server_reader import read_server
from dpsql.policy.table_reader import read_tables

_SECTIONS = ("database", "privacy", "limits", "server", "tables", "views", "users")
_DATABASE = ("url", "ledger", "prepared")
_PREPARED = ("copy", "version", "identity")
_PRIVACY = (
    "epsilon",
    "delta",
    "accounting",
    "query_epsilon",
    "query_delta",
    "key_delta",
    "max_query_epsilon",
    "min_query_epsilon",
    "pure",
)
_LIMITS = (
    "max_cells",
    "max_compile_steps",
    "compile_timeout",
    "compile_memory",
    "timeout",
    "memory",
    "threads",
    "replay_days",
    "max_result_cells",
    "max_queries_per_user",
    "answer_tick",
    *(part.name for part in fields(StatementLimits)),
)
_VIEW = ("sql",)
_USER = ("epsilon", "password")
_LARGEST_EPSILON = Fraction(9_000)  # beyond any meaning; more would not fit into the ledger's integers

_DUCKDB = "duckdb:///"
_EXAMPLE_URL = 'write: url = "duckdb:///file.duckdb" or "postgresql://user@host/database"'
_DEFAULT_QUERY_EPSILON = Fraction(1, 10)
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)? ?[KMGT]i?B")
# Timers and calendars overflow on what is far beyond these.
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
    """The policy that the file would hold with this content."""
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
    url, ledger, prepared = database
    listed = MappingProxyType(tables), MappingProxyType(users)
    return Policy(path, url, privacy, *listed, limits, ledger, server, MappingProxyType(views), prepared)


def database_path(policy: Policy) -> Path:
    """The file of a DuckDB database. A relative one lies beside the policy file, wherever dpsql was started."""
    if not _is_duckdb(policy.database):
        raise PolicyProblems([Problem(str(policy.path), None, "the database is not a DuckDB file", _EXAMPLE_URL)])
    return policy.path.parent / policy.database.removeprefix(_DUCKDB)


def copy_path(policy: Policy, prepared: PreparedPolicy) -> Path:
    """The file of a prepared copy of a DuckDB database."""
    return policy.path.parent / prepared.copy


def database_name(policy: Policy) -> str:
    """What a ledger knows the database by."""
    if is_postgres_address(policy.database):
        # The address may change with the network, and holds a password: its path is the database's name.
        return unquote(urlsplit(policy.database).path.strip("/")) or "postgres"
    return database_path(policy).name


def _is_duckdb(url: str) -> bool:
    return url.startswith(_DUCKDB) and url != _DUCKDB


def parse(path: Path, data: bytes) -> tuple[dict[str, object], LineIndex]:
    """The file as it is, floats as exact decimals."""
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
    """Take the place apart from what the TOML parser says: "Invalid value (at line 3, column 7)"."""
    text, _, place = message.rpartition(" (at ")
    number = re.match(r"line (\d+)", place)
    return text[:1].lower() + text[1:], int(number[1]) if number else last_line


# --- [database] ---


def _read_database(root: Section, path: Path) -> tuple[str, Place | None, PreparedPolicy | None] | None:
    section = _required(root, "database", _DATABASE)
    if section is None:
        return None
    if "url" not in section.content:
        section.missing("url", _EXAMPLE_URL)
    url = section.text("url")
    if url is not None and not _is_duckdb(url) and not is_postgres_address(url):
        # The address itself is not repeated: it may hold a password.
        what = '"url" in [database] is not the address of a DuckDB file or a PostgreSQL database'
        section.problem("url", what, _EXAMPLE_URL)
    ledger = section.text("ledger")
    if url is not None and is_postgres_address(url) and "ledger" not in section.content:
        section.missing("ledger", 'write: ledger = "clinic.ledger", a file on a disk that is never restored')
    place = None if ledger is None else _read_place(section, ledger, path)
    return None if url is None else (url, place, _read_prepared(section))


def _read_prepared(section: Section) -> PreparedPolicy | None:
    """What `dpsql prepare` has written."""
    prepared = section.section("prepared", _PREPARED)
    if prepared is None:
        return None
    copy, version, identity = prepared.text("copy"), prepared.integer("version"), prepared.text("identity")
    if not copy or version is None or not identity:
        section.problem("prepared", '"prepared" in [database] is not as dpsql writes it', "run: dpsql prepare")
        return None
    return PreparedPolicy(copy, version, identity, prepared.line())


def _read_place(section: Section, ledger: str, path: Path) -> Place | None:
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
    section = _required(root, "privacy", _PRIVACY)
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
    """The part of delta that releases unknown keys; under zcdp the rest turns rho into epsilon and may not be 0."""
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
    section = root.section("limits", _LIMITS)
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
        section.problem(key, f"{quoted(key)} in [limits] is not an amount of memory", f'write: {key} = "{example}"')
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
    names = [part.name for part in fields(StatementLimits)]
    found = {name: section.integer(name) or getattr(defaults, name) for name in names}
    for name, most in _LARGEST.items():
        if found[name] > most:
            section.problem(name, f"{quoted(name)} in [limits] is more than {most:,}", f"write: {name} = {most}")
    return StatementLimits(**found)


# Beyond these, reading a statement takes longer than others can wait for it, or more stack than Python has.
_LARGEST = {"max_bytes": 200_000, "max_nodes": 1_000_000, "max_nesting": 60, "max_joins": 1_000, "max_list": 100_000}


# --- [views] ---


def _read_views(root: Section, tables: Mapping[str, TablePolicy]) -> dict[str, ViewPolicy]:
    """Queries under names; what they say is read when the policy meets its database."""
    section = root.section("views", None)
    if section is None:
        return {}
    views: dict[str, ViewPolicy] = {}
    for name in section.content:
        view = section.section(name, _VIEW)
        if view is None:
            continue
        parts = name.split(".")
        if len(parts) > 2 or not all(parts) or "\0" in name:
            section.problem(
                name, f"{quoted(name)} is not the name of a view", 'write: [views.NAME] or [views."SCHEMA.NAME"]'
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
        user = section.section(name, _USER)
        if not name or "\0" in name:
            section.problem(name, f"{quoted(name)} is not the name of a user")
        if user is not None:
            epsilon = user.number("epsilon", POSITIVE)
            _at_most(user, "epsilon", epsilon, total, "the dataset's total")
            users[name] = UserPolicy(name, epsilon, user.line(), _read_password(user, name))
    return users


def _read_password(user: Section, name: str) -> str | None:
    """What a server recognises the user's password by. What stands there instead is never repeated."""
    password = user.text("password")
    if password is not None and Verifier.parse(password) is None:
        user.problem(
            "password",
            f'"password" in {user.title} is not a SCRAM-SHA-256 verifier; a password itself is never written here',
            f"run: dpsql user password {shlex.quote(name)}",
        )
        return None
    return password


def _required(root: Section, name: str, known: tuple[str, ...]) -> Section | None:
    if name not in root.content:
        root.report.add(None, f"section [{name}] is missing", f"write: [{name}]")
    return root.section(name, known)
