"""Texts in the client's encoding, which its session may change at any time."""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.wire.encodings import codec

_PLAIN = str.maketrans({"…": "...", "±": "+-", "×": "x", "≥": ">=", "≤": "<="})


class Letters:
    """Reads and writes what a session reads and writes. `parameters`: those that the twin has reported."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    @property
    def _codec(self) -> str:
        return codec(self._parameters.get("client_encoding", "UTF8")) or "ascii"

    @property
    def standard_strings(self) -> bool:
        return self._parameters.get("standard_conforming_strings") != "off"

    def decoded(self, text: bytes) -> str | None:
        """A text of the client; None if it cannot be read."""
        try:
            return text.decode(self._codec)
        except UnicodeDecodeError:
            return None

    def encoded(self, text: str) -> bytes:
        """A text that came from the client."""
        return text.encode(self._codec)

    def fitted(self, text: str) -> str:
        """A text of ours without what the client's encoding has no letter for."""
        try:
            text.encode(self._codec)
        except UnicodeEncodeError:
            text = text.translate(_PLAIN).encode(self._codec, errors="replace").decode(self._codec)
        return text
