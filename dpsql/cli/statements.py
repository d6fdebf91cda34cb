"""Where one statement ends and the next begins, in what somebody types or pipes into the shell."""

from __future__ import annotations

import re

# Quotes and comments hide the semicolons inside them; one that is still open hides the rest of the text.
_PARTS = re.compile(
    r"""
    (?P<comment> --[^\r\n]* | /\*.*?(?:\*/|\Z) )
    | '[^']*(?:'|\Z) | "[^"]*(?:"|\Z)
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)


def split(text: str) -> tuple[list[str], str]:
    """The statements that a semicolon ends, and the text behind the last one; comments alone are nothing."""
    statements, start = [], 0
    for found in _PARTS.finditer(text):
        if found["end"] is not None:
            statements.append(text[start : found.start()].strip())
            start = found.end()
    rest = text[start:]
    return [statement for statement in statements if statement], rest if _without_comments(rest) else ""


def is_complete(text: str) -> bool:
    """Whether Enter should run the text: a command of the shell, nothing at all, or SQL that a semicolon ends."""
    return is_command(text) or not split(text)[1]


def is_command(text: str) -> bool:
    """Whether the text is for the shell itself: a backslash and a word, or one of the words people try."""
    return text.lstrip().startswith("\\") or text.strip().lower() in ("exit", "quit", "help")


def _without_comments(text: str) -> str:
    return _PARTS.sub(lambda found: "" if found["comment"] is not None else found[0], text).strip()
