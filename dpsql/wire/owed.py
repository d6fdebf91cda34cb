"""What the twin still owes: one entry for each message it was sent, in the order in which it will answer.

Books are kept on the answer, not on the request: what a message changes, it changes when the twin has confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dpsql.wire.messages import Message
from dpsql.wire.shown import Shown

# The letters with which the answer to a message ends.
ENDS = {
    b"P": b"1",
    b"B": b"2",
    b"C": b"3",
    b"D": b"Tn",
    b"E": b"CsI",
    b"S": b"Z",
    b"Q": b"Z",
    b"F": b"Z",
}


@dataclass(slots=True)
class Owed:
    """The answer to one message."""

    kind: bytes  # the letter of the message
    hidden: bool = False  # the client did not send it and does not see its answer; errors it does see
    statement: bytes | None = None  # the statement that the message prepares
    portal: bytes | None = None  # the portal that the message binds or describes
    on_ok: Callable[[], object] | None = None
    on_complete: list[Callable[[], None]] = field(default_factory=list)  # one for each statement of a Query
    gathered: list[Message] = field(default_factory=list)  # of a hidden answer
    shown: Shown | None = None  # what the client sees of a message of the answer
    hides_ready: bool = False  # of a Query: more statements of the same string follow
    failed: bool = False

    def ends_with(self, message: Message) -> bool:
        return message.kind in ENDS[self.kind]
