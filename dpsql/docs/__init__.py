"""Reference pages, made of the tables in code: `python -m dpsql.docs` writes them anew.

A page is a function that returns Markdown, in a module of its own and in PAGES under the name of its file. A test fails
where a page in `reference/` is not what its function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from dpsql.docs import errors, functions, policy, rules, settings

REFERENCE = Path(__file__).parent / "reference"

PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "functions.md": functions.page,
        "errors.md": errors.page,
        "policy.md": policy.page,
        "rules.md": rules.page,
        "settings.md": settings.page,
    }
)
