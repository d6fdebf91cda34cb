"""How many clients each of the processes behind one port has, so that whoever has more leaves the next to the others.

The system wakes all of them for a connection, and on a quiet machine the same one always comes first.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

_NUMBER = struct.Struct("@I")


class Crowding:
    """Numbers in a file that the processes share; each writes its own, and takes those of the others as they are."""

    def __init__(self, path: Path, number: int, count: int) -> None:
        """For process `number`, counted from one, of so many; it has no clients yet."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number = number
        self._count = count
        self.clients(0)

    def clients(self, now: int) -> None:
        """This process has so many now."""
        os.pwrite(self._file, _NUMBER.pack(now), (self._number - 1) * _NUMBER.size)

    def is_above_others(self) -> bool:
        """Whether another process has fewer clients than this one."""
        size = self._count * _NUMBER.size
        found = os.pread(self._file, size, 0).ljust(size, b"\0")
        numbers: list[int] = [number for (number,) in _NUMBER.iter_unpack(found)]
        return min(numbers) < numbers[self._number - 1]


class Alone:
    """The only process behind a port."""

    def clients(self, now: int) -> None:
        pass

    def is_above_others(self) -> bool:
        return False
