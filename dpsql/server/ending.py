"""Ends a server's process even if its threads hang."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_within(seconds: float) -> None:
    """End the process after that many seconds, in whatever state it is; a later call replaces the time.

    The timer is a C thread, which does not need Python's interpreter lock.
    """
    with open(os.devnull, "wb") as nowhere:
        nowhere_for_good = os.dup(nowhere.fileno())
    faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere_for_good)


def leave() -> NoReturn:
    """End the process now, with its buffers flushed: Python itself would wait for every thread that still runs."""
    faulthandler.cancel_dump_traceback_later()
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
