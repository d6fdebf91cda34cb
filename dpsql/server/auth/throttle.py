"""Slows down password guessing, and treats unknown names like known ones.

The reply to a wrong password is delayed; the delay grows with the failures of the name or the address. A right
password is not delayed.

Hanging up early gains nothing: a failed attempt holds its turn until its delay is over, and a name has few turns at a
time from one address.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dpsql.policy.passwords import ITERATIONS, SALT_BYTES, Verifier
from dpsql.slots import Slots

FIRST_DELAY = 0.25  # seconds; doubles with each further failure
LONGEST_DELAY = 8.0
FORGET_AFTER = 900.0  # seconds without a failure
MOST_REMEMBERED = 10_000  # names and addresses; the oldest failures are dropped first
TURNS = 4
_GLANCE = 0.05  # seconds between checks of the turns that other processes hold


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


@dataclass(slots=True)
class _Queue:
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TURNS))
    present: int = 0


class Throttle:
    def __init__(self, slots: Slots | None = None) -> None:
        self._slots = slots or Slots()
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._queues: dict[tuple[str, str], _Queue] = {}

    async def delay(self, user: str, address: str) -> float:
        """Record a failure now; how many seconds to delay its reply."""
        return self.failed(user, address, asyncio.get_running_loop().time())

    def failed(self, user: str, address: str, now: float) -> float:
        """Record a failure; how many seconds to delay its reply."""
        count = max(self._note(("user", user), now), self._note(("address", neighbourhood(address)), now))
        return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(count - 1, 30))

    def _note(self, key: tuple[str, str], now: float) -> int:
        failures = self._failures.pop(key, None)
        if failures is None or now - failures.last > FORGET_AFTER:
            failures = _Failures(0, now)
        failures.count += 1
        failures.last = now
        self._failures[key] = failures
        if len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)
        return failures.count

    @asynccontextmanager
    async def turn(self, user: str, address: str) -> AsyncIterator[None]:
        """Wait until a password of this name may be checked. There is no wait unless attempts are failing now."""
        key = (user, neighbourhood(address))
        queue = self._queues.setdefault(key, _Queue())
        queue.present += 1
        try:
            async with queue.turns:
                while (slot := self._slots.take(repr(("turn", *key)).encode(), TURNS)) is None:
                    await asyncio.sleep(_GLANCE)
                try:
                    yield
                finally:
                    self._slots.give_back(slot)
        finally:
            queue.present -= 1
            if not queue.present:
                del self._queues[key]


def neighbourhood(address: str) -> str:
    """Addresses that one attacker can have many of count as one: an IPv6 /64 network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed), 64), strict=False))
    return str(parsed)


# ------------------------------------------------------------
# SCRAM verifiers. An unknown name has a made-up one, so that it cannot be told from a known name.


class Verifiers:
    """The verifiers of the users who have a password, and a made-up one for every other name.

    Claim: what the server sends before the verdict does not depend on whether a name is a user.
    Because: the salt of an unknown name is a keyed hash of the name, as stable as a stored salt, with a length and an
    iteration count that some user has; both kinds are computed for every name, and checked by the same code.
    Needs: `secret` is known to the server only and stays the same over restarts.
    """

    def __init__(self, users: Mapping[str, Verifier], secret: bytes) -> None:
        self._users = dict(users)
        self._secret = secret
        shapes = {(each.iterations, len(each.salt)) for each in users.values()}
        self._shapes = sorted(shapes) or [(ITERATIONS, SALT_BYTES)]

    def of(self, name: str) -> tuple[Verifier, bool]:
        """The verifier of a name, and whether it can ever be satisfied."""
        made_up = self._made_up(name)
        return self._users.get(name, made_up), name in self._users

    def _made_up(self, name: str) -> Verifier:
        # The shape with the largest hash: adding a user changes it only if the user's shape is new.
        iterations, length = max(self._shapes, key=lambda shape: self._hash(f"shape {shape}", name))
        salt = b"".join(self._hash(f"salt {part}", name) for part in range(-(-length // 32)))[:length]
        return Verifier(iterations, salt, self._hash("stored key", name), self._hash("server key", name))

    def _hash(self, purpose: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{purpose}\0{name}".encode(), "sha256")
