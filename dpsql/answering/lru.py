"""An LRU cache bounded by the weight of its entries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MOST = 1_000  # entries of one kind

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedLru(Generic[K, V]):
    """Safe for many threads.

    Claim: all entries together weigh no more than `room`, whatever is requested.
    Needs: a weight that does not change.
    """

    def __init__(self, weight: Callable[[K, V], int], room: int) -> None:
        self._weight = weight
        self._room = room
        self._found: OrderedDict[K, V] = OrderedDict()
        self._weighs = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        with self._lock:
            if (old := self._found.pop(key, None)) is not None:
                self._weighs -= self._weight(key, old)
            self._found[key] = value
            self._weighs += self._weight(key, value)
            while len(self._found) > MOST or self._weighs > self._room:
                self._weighs -= self._weight(*self._found.popitem(last=False))

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
            self._weighs = 0

    def __len__(self) -> int:
        return len(self._found)
