"""The names PostgreSQL has for encodings, and Python's."""

from __future__ import annotations

import codecs
from collections.abc import Mapping

_LATIN = dict(zip(range(1, 11), (1, 2, 3, 4, 9, 10, 13, 14, 15, 16), strict=True))  # Latin-N to parts of ISO 8859
_PYTHON = {
    "sql_ascii": "utf-8",
    "unicode": "utf-8",
    "euc_cn": "gb2312",
    "sjis": "shift_jis",
    "uhc": "cp949",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "win": "cp1251",
    "alt": "cp866",
} | {f"latin{number}": f"iso8859_{part}" for number, part in _LATIN.items()}


def codec(name: str) -> str | None:
    """Python's codec for one of PostgreSQL's encodings; None if it has none."""
    plain = name.strip("'\" ").lower().replace("-", "_")
    if plain.startswith("win") and plain[3:].isdigit():
        plain = f"cp{plain[3:]}"
    if plain.startswith("iso_8859_"):
        plain = plain.replace("iso_8859_", "iso8859_")
    try:
        return codecs.lookup(_PYTHON.get(plain, plain)).name
    except LookupError:
        return None


# ------------------------------------------------------------
# The client's encoding, which its session may change at any time.

_PLAIN = str.maketrans({"…": "...", "±": "+-", "×": "x", "≥": ">=", "≤": "<="})


class ClientEncoding:
    """Decodes and encodes in client_encoding, from the `parameters` that the twin has reported."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    @property
    def _codec(self) -> str:
        return codec(self._parameters.get("client_encoding", "UTF8")) or "ascii"

    @property
    def standard_strings(self) -> bool:
        return self._parameters.get("standard_conforming_strings") != "off"

    def decoded(self, text: bytes) -> str | None:
        """Text from the client; None if it cannot be decoded."""
        try:
            return text.decode(self._codec)
        except UnicodeDecodeError:
            return None

    def encoded(self, text: str) -> bytes:
        """A text that came from the client."""
        return text.encode(self._codec)

    def fitted(self, text: str) -> str:
        """Our text, with characters that the client's encoding lacks replaced."""
        try:
            text.encode(self._codec)
        except UnicodeEncodeError:
            text = text.translate(_PLAIN).encode(self._codec, errors="replace").decode(self._codec)
        return text
