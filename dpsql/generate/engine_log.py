"""The engine's own words go to the owner's log; everyone else gets a fixed sentence and an id to find them by."""

from __future__ import annotations

import logging
import uuid

from dpsql.errors import EngineFailed, EngineLost

_log = logging.getLogger("dpsql.engine")


def log_engine_error(error: Exception) -> str:
    """Write the engine's text to the owner's log and return the id it is found under."""
    log_id = uuid.uuid4().hex[:12]
    kind = type(error).__name__
    # The text may quote the data; a log that goes further than the owner's eyes writes the other two only.
    _log.error("%s: %s: %s", log_id, kind, error, extra={"log_id": log_id, "error": kind})
    return log_id


def log_another_try(error: Exception) -> None:
    """Tell the owner that a query is run once more, without the engine's statistics."""
    kind = type(error).__name__
    _log.info("%s: a query is run once more without the engine's statistics", kind, extra={"error": kind})


def engine_failed(error: Exception, *, lost: bool = False) -> EngineFailed:
    """The error that may be seen in place of the engine's; `lost` if the engine itself is gone.

    Claim: it depends on no value the engine held.
    Because: its text is fixed but for a random id; the original is neither quoted nor chained.
    Needs: the caller raises it outside the `except` block, or Python attaches the original as its context.
    """
    return (EngineLost if lost else EngineFailed)(log_engine_error(error))
