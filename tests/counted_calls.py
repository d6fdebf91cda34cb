"""How much work a call is, on any machine: the calls of Python functions that it makes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")


def counted_calls(work: Callable[[], Result]) -> tuple[int, Result]:
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return calls, result
