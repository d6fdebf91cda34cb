"""The newest charge that was seen, kept outside of the ledger: a ledger that no longer holds it has gone back in time.

The mark is a file in the state folder, where there is one, so that a restart notices too, and so that all processes
of a machine know what one of them has noticed. Without the folder it is kept in memory.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FILE = "ledger.json"  # in the state folder


@dataclass(frozen=True, slots=True)
class Seen:
    """Number and hash of a charge, of which ledger; and why the ledger is not served, if it is found damaged."""

    ledger: str
    number: int
    hash: str
    damage: str | None = None


class Mark:
    """Safe for many threads and processes: each writes what was in the ledger when it wrote."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._memory: Seen | None = None

    def read(self) -> Seen | None:
        """What was seen; the file is right where there is one, for the owner may have accepted another ledger."""
        with self._lock:
            return self._known()

    def write(self, seen: Seen) -> None:
        """Keep what was seen in place of all before. Where it cannot be written, this process alone remembers it."""
        with self._lock:
            self._write(seen)

    def advance(self, seen: Seen) -> None:
        """Keep a newer charge. Those who have charged end in any order."""
        with self._lock:
            known = self._known()
            if known is None or known.ledger != seen.ledger or known.number < seen.number:
                self._write(replace(seen, damage=None if known is None else known.damage))

    def condemn(self, ledger: str, damage: str) -> None:
        """Keep that the ledger is damaged, until the owner accepts it again."""
        with self._lock:
            known = self._known() or Seen(ledger, 0, "")
            self._write(replace(known, damage=known.damage or damage))

    def _known(self) -> Seen | None:
        if self._path is not None:
            with suppress(OSError, ValueError, TypeError):
                return Seen(**json.loads(self._path.read_bytes()))
        return self._memory

    def _write(self, seen: Seen) -> None:
        self._memory = seen
        if self._path is not None and self._path.parent.is_dir():
            with suppress(OSError):
                _replace(self._path, json.dumps(asdict(seen)).encode())


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all, but without waiting for the disk: after a power failure an older mark is right as well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
