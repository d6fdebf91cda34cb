"""The end of a server's process, which comes whatever its threads do."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_within(seconds: float) -> None:
    """End the process when that time has passed, in whatever state; a later call sets another time.

    The timer is a thread of C, which needs nothing of Python's.
    """
    with open(os.devnull, "wb") as nowhere:
        nowhere_for_good = os.dup(nowhere.fileno())
    faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere_for_good)


def leave() -> NoReturn:
    """End the process now, in order: Python itself would wait for every thread that is still at work."""
    faulthandler.cancel_dump_traceback_later()
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
