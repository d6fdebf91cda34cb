"""What the password of a name is checked against. A name nobody has is treated like any other, to the end."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from dpsql.passwords import ITERATIONS, SALT_BYTES, Verifier


class Verifiers:
    """The verifiers of the users who have a password, and a made-up one for every other name.

    Claim: from what the server sends before the verdict, nobody can tell whether a name is a user.
    Because: the salt of another name is a keyed hash of it, stable as a stored one is, with a length and a number of
    iterations that some user has; both sorts are computed for every name, and checked by the same code.
    Needs: `secret` is known to nobody else and stays the same over restarts.
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
        # The shape with the largest hash: another user changes it only by bringing a shape that nobody had.
        iterations, length = max(self._shapes, key=lambda shape: self._hash(f"shape {shape}", name))
        salt = b"".join(self._hash(f"salt {part}", name) for part in range(-(-length // 32)))[:length]
        return Verifier(iterations, salt, self._hash("stored key", name), self._hash("server key", name))

    def _hash(self, purpose: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{purpose}\0{name}".encode(), "sha256")
