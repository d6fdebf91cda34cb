"""Durability and privacy of files beyond their own contents."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in a folder durable: a file that was created or replaced is still there after a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all; its folder is made if it is missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # readable by nobody else from the first byte on
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
    sync_directory(path.parent)


def kept_secret(path: Path, size: int) -> bytes:
    """Random bytes that are drawn once and stay the same from then on."""
    if not path.exists():
        write_private(path, secrets.token_bytes(size))
    return path.read_bytes()
