"""What the processes of one server say to each other, and what one of them may ask of the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpsql.policy.model import Policy
from dpsql.wire.metrics import Counts, Gauge

# --- to a worker ---


@dataclass(frozen=True, slots=True)
class Begin:
    """Serve. Answered when the worker listens."""

    number: int
    count: int  # of workers
    policy: Policy
    twin_socket: Path | None  # None: the policy says where the twin is


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make ready to serve another policy; nothing changes yet."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Pause:
    """Let no session begin, and end those that cannot go on under the new policy; answered with their number."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Serve the new policy, or after all the old one."""

    to_new: bool


@dataclass(frozen=True, slots=True)
class Look:
    """How are you? Answered with a State."""


@dataclass(frozen=True, slots=True)
class Stop:
    at_once: bool


@dataclass(frozen=True, slots=True)
class State:
    counts: Counts
    gauges: tuple[Gauge, ...]


# --- to the supervisor ---


@dataclass(frozen=True, slots=True)
class LookAfterTwin:
    """The twin cannot be reached; answered with its socket when it can."""


@dataclass(frozen=True, slots=True)
class WrongPassword:
    """Answered with the seconds for which the refusal is held back."""

    user: str
    address: str


# --- in both directions: from a worker that does not know the session, to all others ---


@dataclass(frozen=True, slots=True)
class CancelSession:
    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class CancelStatement:
    user: str
    pid: int


class Colleagues(Protocol):
    """The other processes that serve the same dataset. The twin numbers all sessions, so no two share a number."""

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        """Cancel what runs in a session that is none of ours."""
        ...

    def cancel_statement(self, user: str, pid: int) -> None:
        """Cancel what the engine does for a session of a user that is none of ours."""
        ...


class Nobody:
    """There are none."""

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        pass

    def cancel_statement(self, user: str, pid: int) -> None:
        pass
