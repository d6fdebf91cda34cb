"""What the server tells its owner: one event a line, as JSON for machines and as words at a terminal.

Claim: no line holds a value of the data, a password or the text of a statement.
Because: events are made of names, codes, times and prices, each written out where the event is noted; of an exception
only its type and place are written, and of another package's message only the first line.
Needs: nobody adds such a value to an event. What the engine itself said goes to a file that only the owner can read.
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
    """Write an event down. Facts that are None are left out."""
    _write(logging.INFO, event, facts)


def warn(event: str, /, **facts: Fact) -> None:
    """Write down an event that the owner should look after."""
    _write(logging.WARNING, event, facts)


def _write(level: int, event: str, facts: Mapping[str, Fact]) -> None:
    known = {name: fact for name, fact in facts.items() if fact is not None}
    _log.log(level, "%s", event, extra={"facts": known})


def event_of(record: logging.LogRecord) -> tuple[str, Mapping[str, Fact]]:
    """The event that a line of any logger stands for."""
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
    """Where there are several workers, each event of one says which it was."""

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
        # JSON's quotes, so that a name made to look like a fact, or like another line, does not.
        told = [f"{name}={fact if _is_plain(fact) else json.dumps(fact)}" for name, fact in facts.items()]
        return " ".join([f"{_moment(record).astimezone():%H:%M:%S}", event.replace("_", " "), *told])


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _is_plain(fact: Fact) -> bool:
    return isinstance(fact, str) and fact != "" and all(c.isalnum() or c in "-_.:/" for c in fact)


def write_logs(stream: TextIO, *, worker: int | None = None) -> None:
    """Send what this process logs to a stream, one event a line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Words(worker) if stream.isatty() else JsonLines(worker))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("dpsql").setLevel(logging.INFO)
    logging.captureWarnings(True)


class _PrivateFile(RotatingFileHandler):
    """A file that only its owner can read, and two of them at most."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))


def keep_engine_log(state: Path, worker: int | None = None) -> None:
    """Keep what the engine itself says of its failures, by the ids that analysts are shown; each worker in its own."""
    name = ENGINE_LOG if worker is None else f"engine-{worker}.log"
    handler = _PrivateFile(state / name, maxBytes=_ENGINE_LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger("dpsql.answering.dataset").addHandler(handler)
