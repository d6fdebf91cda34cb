"""The text of a query as the ledger keeps it: what was asked, without what an analyst may fill a disk with."""

from __future__ import annotations

import hashlib

from dpsql.sql.tokens import tokens

MOST = 8_000  # characters


def kept_text(text: str) -> str:
    """The text without comments and, where it is long, its beginning with length and hash of the whole.

    The hash is that of the text as it was sent: whoever has it can prove that it is the one.
    """
    parts: list[str] = []
    end = 0
    for token in tokens(text):
        between = text[end : token.start]
        parts.append(between if not between.strip() else " " if parts else "")
        parts.append(text[token.start : token.end])
        end = token.end
    plain = "".join(parts).strip()
    if len(plain) <= MOST:
        return plain
    whole = text.encode("utf-8", "surrogatepass")
    return f"{plain[:MOST]}… ({len(whole):,} bytes, SHA-256 {hashlib.sha256(whole).hexdigest()})"
