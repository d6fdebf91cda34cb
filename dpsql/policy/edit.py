"""Edits [users] and the prepared copy in the policy file. Comments and layout stay; a file that would not load is never
written.

Each edit is made twice, in the text and in the parsed document. If the new text does not parse to exactly the edited
document, its layout is not supported here, and nothing is written.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from decimal import Decimal
from pathlib import Path

from dpsql.errors import OperationalError, PolicyError, UnknownUser
from dpsql.files import sync_directory
from dpsql.policy.load import load_text, parse, read_file
from dpsql.policy.model import Policy, PreparedPolicy
from dpsql.policy.passwords import Verifier
from dpsql.policy.problems import quoted
from dpsql.policy.sections import Scanner, Span, header

Setting = Decimal | str
Users = dict[str, object]


def add_user(path: Path, name: str, epsilon: Decimal | None, password: Verifier | None) -> Policy:
    """Declare a user. Returns the new policy, as all edits do."""
    given = {"epsilon": epsilon, "password": None if password is None else str(password)}
    settings = {key: value for key, value in given.items() if value is not None}

    def add(users: Users) -> None:
        require_new(name, users)
        users[name] = dict(settings)

    return _edit(path, name, add, lambda text: _with_section(text, name, settings))


def remove_user(path: Path, name: str) -> Policy:
    """Remove a user from the policy. The user's spending stays in the ledger."""

    def remove(users: Users) -> None:
        del users[name]

    return _edit(path, name, remove, lambda text: _without_user(text, name))


def set_allowance(path: Path, name: str, epsilon: Decimal | None) -> Policy:
    """Set a user's allowance; None leaves only the dataset's total as the limit."""
    return _set(path, name, "epsilon", epsilon)


def set_password(path: Path, name: str, password: Verifier) -> Policy:
    """Set a user's password."""
    return _set(path, name, "password", str(password))


def _set(path: Path, name: str, key: str, value: Setting | None) -> Policy:
    def change(users: Users) -> None:
        settings = users[name]
        if not isinstance(settings, dict):
            raise KeyError(name)
        settings.pop(key, None)
        if value is not None:
            settings[key] = value

    return _edit(path, name, change, lambda text: _with_setting(text, name, key, value))


def set_prepared(path: Path, prepared: PreparedPolicy | None) -> Policy:
    """Set the prepared copy in the policy, or remove it."""
    settings: dict[str, str | int] | None = None
    if prepared is not None:
        settings = {"copy": prepared.copy, "version": prepared.version, "identity": prepared.identity}
    old = read_file(path)
    document, _ = parse(path, old)
    wanted = deepcopy(document)
    database = wanted.get("database")
    if not isinstance(database, dict):
        load_text(path, old)  # says what is wrong with it
        raise _prepared_not_understood()
    database.pop("prepared", None)
    if settings is not None:
        database["prepared"] = settings
    return _rewritten(path, old, wanted, lambda text: _with_prepared(text, settings), _prepared_not_understood())


def _edit(path: Path, name: str, change: Callable[[Users], None], rewrite: Callable[[str], str]) -> Policy:
    old = read_file(path)
    document, _ = parse(path, old)
    wanted = deepcopy(document)
    users = wanted.setdefault("users", {})
    if not isinstance(users, dict):
        load_text(path, old)  # says what is wrong with it
        raise _layout_not_understood(name)
    try:
        change(users)
    except KeyError:
        load_text(path, old)
        raise unknown_user(name) from None
    return _rewritten(path, old, wanted, rewrite, _layout_not_understood(name))


def _rewritten(
    path: Path, old: bytes, wanted: Mapping[str, object], rewrite: Callable[[str], str], otherwise: PolicyError
) -> Policy:
    text = old.decode()
    newline = "\r\n" if "\r\n" in text else "\n"
    try:
        new = rewrite(text.replace("\r\n", "\n")).replace("\n", newline)
        understood = _meaning(tomllib.loads(new, parse_float=Decimal)) == _meaning(wanted)
    except (tomllib.TOMLDecodeError, _NotUnderstood):
        understood = False
    if not understood:
        raise otherwise
    policy = load_text(path, new.encode())
    _replace(path, old, new.encode())
    return policy


def _meaning(document: Mapping[str, object]) -> dict[str, object]:
    """The document without an empty [users] section."""
    return {key: value for key, value in document.items() if key != "users" or value}


def require_new(name: str, users: Collection[str]) -> None:
    """Refuse an invalid name, or one that is taken."""
    if not name or not name.isprintable() or name != name.strip():
        raise PolicyError(
            f"{quoted(name)} is not a valid user name",
            hint="A user name consists of printable characters, without spaces at either end.",
        )
    if name in users:
        raise PolicyError(f"user {quoted(name)} already exists", hint="Choose another name.")


def require_known(path: Path, name: str) -> None:
    """Refuse a user who is not in the file. The rest of it may be invalid, for example that user's password."""
    data = read_file(path)
    users = parse(path, data)[0].get("users")
    if not isinstance(users, dict) or name not in users:
        load_text(path, data)
        raise unknown_user(name)


def unknown_user(name: str) -> UnknownUser:
    return UnknownUser(f"user {quoted(name)} is not known", hint="List the users with: dpsql user list.")


def _layout_not_understood(name: str) -> PolicyError:
    return PolicyError(
        f"user {quoted(name)} is written in a way that dpsql cannot edit",
        hint=f"Edit the file by hand, or write the user as a section [{header(('users', name))}] first.",
    )


def _prepared_not_understood() -> PolicyError:
    return PolicyError(
        "[database] is written in a way that dpsql cannot edit",
        hint="Write it as a section [database], with a line for each key, and try again.",
    )


# --- the text ---


class _NotUnderstood(Exception):
    """The text has a layout that is not supported here."""


def _scanned(text: str) -> Scanner:
    scanner = Scanner(text)
    scanner.scan()
    return scanner


def _literal(value: Setting) -> str:
    return quoted(value) if isinstance(value, str) else str(value)


def _with_section(text: str, name: str, settings: Mapping[str, Setting]) -> str:
    """A section after the other users, or at the end."""
    found = _scanned(text)
    ends = [
        place.end for places in (found.headers, found.assignments) for p, place in places.items() if p[0] == "users"
    ]
    at = _line_end(text, max(ends)) if ends else len(text)
    before, after = text[:at], text[at:]
    if before and not before.endswith("\n"):
        before += "\n"
    gap = "" if not before or before.endswith("\n\n") else "\n"
    lines = [f"[{header(('users', name))}]", *(f"{key} = {_literal(value)}" for key, value in settings.items())]
    return before + gap + "\n".join(lines) + "\n" + after


def _with_setting(text: str, name: str, key: str, value: Setting | None) -> str:
    found = _scanned(text)
    user: tuple[str | int, ...] = ("users", name)
    place, inline, section = found.assignments.get((*user, key)), found.assignments.get(user), found.headers.get(user)
    if value is None:
        return text if place is None else _without(text, place, inline)
    if place is not None:
        return text[: place.value] + _literal(value) + text[place.end :]
    written = f"{key} = {_literal(value)}"
    if inline is not None and text[inline.value] == "{":
        inside = text[inline.value + 1 : inline.end - 1].strip()
        both = f"{inside}, {written}" if inside else written
        return f"{text[: inline.value]}{{ {both} }}{text[inline.end :]}"
    if section is not None:
        own = [assigned.end for path, assigned in found.assignments.items() if path[:2] == user]
        at = _line_end(text, max([section.end, *own]))
        line_break = "" if text[:at].endswith("\n") else "\n"
        return f"{text[:at]}{line_break}{written}\n{text[at:]}"
    raise _NotUnderstood


def _with_prepared(text: str, settings: Mapping[str, str | int] | None) -> str:
    found = _scanned(text)
    place, section = found.assignments.get(("database", "prepared")), found.headers.get(("database",))
    if settings is None:
        return text if place is None else _without(text, place, None)
    parts = [f"{key} = {quoted(value) if isinstance(value, str) else value}" for key, value in settings.items()]
    written = f"{{ {', '.join(parts)} }}"
    if place is not None:
        return text[: place.value] + written + text[place.end :]
    if section is None:
        raise _NotUnderstood
    own = [assigned.end for path, assigned in found.assignments.items() if path[0] == "database"]
    at = _line_end(text, max([section.end, *own]))
    line_break = "" if text[:at].endswith("\n") else "\n"
    return f"{text[:at]}{line_break}prepared = {written}\n{text[at:]}"


def _without(text: str, place: Span, inline: Span | None) -> str:
    """Remove an assignment: a line of its own, or a part of an inline table."""
    if inline is None:
        return _without_lines(text, place.start, place.end)
    before, after = text[inline.value + 1 : place.start].rstrip(), text[place.end : inline.end - 1].lstrip()
    inside = (before.removesuffix(",") + after if before else after.removeprefix(",")).strip()
    return text[: inline.value] + (f"{{ {inside} }}" if inside else "{}") + text[inline.end :]


def _without_user(text: str, name: str) -> str:
    found = _scanned(text)
    user: tuple[str | int, ...] = ("users", name)
    place = found.headers.get(user) or found.assignments.get(user)
    if place is None:
        raise _NotUnderstood
    own = [assigned.end for path, assigned in found.assignments.items() if path[:2] == user]
    return _without_lines(text, place.start, max([place.end, *own]))


def _without_lines(text: str, start: int, end: int) -> str:
    before, after = text[: text.rfind("\n", 0, start) + 1], text[_line_end(text, end) :]
    # Keep only the blank lines below.
    if re.match(r"[ \t]*(\n|$)", after):
        before = re.sub(r"\n([ \t]*\n)+$", "\n", before)
    return before + after


def _line_end(text: str, position: int) -> int:
    """After the newline that ends the line, and after the comment that stands before it."""
    return text.find("\n", position) + 1 or len(text)


# --- the file ---


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Replace the file atomically, and only if it has not changed since it was read."""
    target = path.resolve()
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}.new")
    try:
        status = target.stat()
        if not os.access(target, os.W_OK):  # replacing a file checks only its folder
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:
            file.write(new)
            file.flush()
            with suppress(PermissionError):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, status.st_mode & 0o7777)
            os.fsync(descriptor)
        if target.read_bytes() != old:
            raise OperationalError(f'the policy file "{path}" was changed by another process', hint="Try again.")
        os.replace(fresh, target)
        sync_directory(target.parent)
    except OSError as error:
        raise OperationalError(
            f'the policy file "{path}" cannot be written: {(error.strerror or "").lower()}',
            hint="Check that the file and its folder can be written, and that there is room.",
        ) from None
    finally:
        with suppress(OSError):
            fresh.unlink()
