"""The names PostgreSQL has for encodings, and Python's."""

from __future__ import annotations

import codecs

_LATIN = dict(zip(range(1, 11), (1, 2, 3, 4, 9, 10, 13, 14, 15, 16), strict=True))  # to parts of ISO 8859
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
