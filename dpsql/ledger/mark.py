"""The high-water mark: the newest charge seen, kept outside the ledger, so that a ledger that lost it is detected.

The mark is a file in the state folder, where there is one, so that it survives a restart and all processes of a
machine share what one of them has detected. Without the folder it is kept in memory.
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
    """The ledger's id, the number and hash of a charge, and the damage if the ledger was found damaged."""

    ledger: str
    number: int
    hash: str
    damage: str | None = None


class Mark:
    """Safe for many threads and processes: each writes what the ledger held at that time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._memory: Seen | None = None

    def read(self) -> Seen | None:
        """The mark. Where a file exists it decides, for the owner may have accepted another ledger."""
        with self._lock:
            return self._known()

    def write(self, seen: Seen) -> None:
        """Replace the mark. If the file cannot be written, only this process remembers it."""
        with self._lock:
            self._write(seen)

    def advance(self, seen: Seen) -> None:
        """Move the mark to a newer charge. Concurrent charges finish in any order."""
        with self._lock:
            known = self._known()
            if known is None or known.ledger != seen.ledger or known.number < seen.number:
                self._write(replace(seen, damage=None if known is None else known.damage))

    def condemn(self, ledger: str, damage: str) -> None:
        """Mark the ledger as damaged, until the owner accepts it."""
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
    """Replace the file atomically, without waiting for the disk: after a power failure an older mark is valid too."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
