"""The server's log: one event a line, as JSON for machines, as plain text at a terminal.

Claim: no line holds a value of the data, a password or the text of a statement.
Because: events consist of names, codes, times and prices, each named where the event is logged; of an exception only
its type and place are written, and of another package's message only the first line.
Needs: no caller adds such a value to an event. Engine errors go to a file that only the owner can read.
"""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

Fact = str | int | float | bool | None

ENGINE_LOG = "engine.log"  # in the state folder
_ENGINE_LOG_BYTES = 1_000_000

_log = logging.getLogger("dpsql.serve")


def note(event: str, /, **facts: Fact) -> None:
    """Log an event. Facts that are None are left out."""
    _write(logging.INFO, event, facts)


def warn(event: str, /, **facts: Fact) -> None:
    """Log an event that the owner should act on."""
    _write(logging.WARNING, event, facts)


def _write(level: int, event: str, facts: Mapping[str, Fact]) -> None:
    known = {name: fact for name, fact in facts.items() if fact is not None}
    _log.log(level, "%s", event, extra={"facts": known})


def event_of(record: logging.LogRecord) -> tuple[str, Mapping[str, Fact]]:
    """The event of a log record, from any logger."""
    facts: Mapping[str, Fact] | None = getattr(record, "facts", None)
    if facts is not None:
        return record.getMessage(), facts
    if record.name == "dpsql.answering.dataset":
        return "engine_failed", {"log_id": getattr(record, "log_id", None), "error": getattr(record, "error", None)}
    found: dict[str, Fact] = {"logger": record.name, "message": record.getMessage().partition("\n")[0]}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        frames = traceback.extract_tb(error.__traceback__)
        found |= {
            "error": type(error).__name__,
            "at": " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames)),
        }
    return "message", found


class _Lines(logging.Formatter):
    """Where there are several workers, each event names its worker."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._whose: dict[str, Fact] = {} if worker is None else {"worker": worker}

    def event_of(self, record: logging.LogRecord) -> tuple[str, Mapping[str, Fact]]:
        event, facts = event_of(record)
        return event, {**facts, **self._whose}


class JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        event, facts = self.event_of(record)
        line = {"time": _moment(record).isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        return json.dumps({**line, "event": event, **facts})


class Words(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        event, facts = self.event_of(record)
        # JSON's quotes, so that a name cannot pass for a fact or for another line.
        told = [f"{name}={fact if _is_plain(fact) else json.dumps(fact)}" for name, fact in facts.items()]
        return " ".join([f"{_moment(record).astimezone():%H:%M:%S}", event.replace("_", " "), *told])


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _is_plain(fact: Fact) -> bool:
    return isinstance(fact, str) and fact != "" and all(c.isalnum() or c in "-_.:/" for c in fact)


def write_logs(stream: TextIO, *, worker: int | None = None) -> None:
    """Write this process's log to a stream, one event a line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Words(worker) if stream.isatty() else JsonLines(worker))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("dpsql").setLevel(logging.INFO)
    logging.captureWarnings(True)


class _PrivateFile(RotatingFileHandler):
    """A rotating log file that only its owner can read, with at most one older file."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))


def keep_engine_log(state: Path, worker: int | None = None) -> None:
    """Write the engine's own error messages to a file, under the ids that analysts are shown; one file per worker."""
    name = ENGINE_LOG if worker is None else f"engine-{worker}.log"
    handler = _PrivateFile(state / name, maxBytes=_ENGINE_LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("dpsql.answering.dataset").addHandler(handler)
