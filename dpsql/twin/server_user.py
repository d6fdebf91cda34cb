"""Who runs the server: PostgreSQL refuses to run as root, so under root it runs as somebody with fewer rights."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from dpsql.errors import OperationalError

# A user made for dpsql is best. "nobody" may run other things, too, but "postgres" may own somebody's data.
_CANDIDATES = ("dpsql", "nobody", "postgres")


class Identity(TypedDict, total=False):
    """The arguments of subprocess.Popen that change who a process is, before it runs anything."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class ServerUser:
    """An unprivileged user, for a dpsql that runs as root."""

    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Whether the permissions of the folder and all above it let this user through; what is not there yet does."""
        return all(self._passes(part) for part in (folder, *folder.parents) if part.exists())

    def _passes(self, folder: Path) -> bool:
        found = folder.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        if found.st_gid == self.gid:
            return bool(found.st_mode & stat.S_IXGRP)
        return bool(found.st_mode & stat.S_IXOTH)


def server_user() -> ServerUser | None:
    """None: the server runs as whoever runs dpsql."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        if found.pw_uid != 0:
            return ServerUser(found.pw_uid, found.pw_gid)
    raise OperationalError(
        "dpsql runs as root, and there is no unprivileged user to run PostgreSQL as",
        hint="Run dpsql as an ordinary user, or create a system user called dpsql.",
    )


def identity(user: ServerUser | None) -> Identity:
    return Identity() if user is None else Identity(user=user.uid, group=user.gid, extra_groups=[])


def own_name() -> str:
    """The name of the user that runs dpsql: the only one the server lets in."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise OperationalError(
            f"the user with number {os.geteuid()}, as which dpsql runs, has no name on this machine",
            hint="PostgreSQL needs one: add the user to /etc/passwd.",
        ) from None
