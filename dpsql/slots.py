"""Counted slots shared by the processes of one machine: each is a byte of a file, taken by locking it.

The kernel frees a process's slots when it ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
from pathlib import Path

MOST = 1 << 20  # slots of one kind

# Linux's open file description locks: closing another descriptor of the same file does not release them.
_SET = getattr(fcntl, "F_OFD_SETLK", None)
ARE_SHARED = _SET is not None


class Slots:
    """Safe for many threads. Without a file the slots are local to this process."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def take(self, kind: bytes, most: int) -> int | None:
        """One of `most` slots of a kind; None if all are taken."""
        first = int.from_bytes(hashlib.sha256(kind).digest()[:5], "big") * MOST
        with self._lock:
            for slot in range(first, first + min(most, MOST)):
                if slot not in self._held and self._locked(slot):
                    self._held.add(slot)
                    return slot
        return None

    def give_back(self, slot: int) -> None:
        with self._lock:
            self._held.discard(slot)
            if self._file is not None:
                self._set(fcntl.F_UNLCK, slot)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _locked(self, slot: int) -> bool:
        if self._file is None:
            return True
        try:
            self._set(fcntl.F_WRLCK, slot)
        except BlockingIOError:
            return False
        return True

    def _set(self, kind: int, slot: int) -> None:
        assert self._file is not None and _SET is not None
        # struct flock: type, whence, start, length, and a process number that must be zero
        fcntl.fcntl(self._file, _SET, struct.pack("@hhqqi4x", kind, os.SEEK_SET, slot, 1, 0))
