"""The location of the grammar cases and the toy data: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).parent / "grammar"
_CHECKOUT = Path(__file__).parents[2] / "grammar_tests"


def data(name: str) -> Path:
    return (_INSTALLED if _INSTALLED.is_dir() else _CHECKOUT) / name
