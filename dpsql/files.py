"""Files that are durable and private."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Sync a folder, so that a file that was created or replaced in it survives a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only; its folder is created if it does not exist."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # private from the first byte on
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
    """Random bytes that are drawn once and then kept."""
    if not path.exists():
        write_private(path, secrets.token_bytes(size))
    return path.read_bytes()
