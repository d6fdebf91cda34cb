"""The rules of the guarantee: every docstring with a Claim, by module."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from dpsql.docs.markdown import page as whole

_PACKAGE = Path(__file__).parent.parent

# In the order of an audit: what is proved, what noise does, how it is enforced, and the books.
_ORDER = ("privacy", "release", "lowering", "noise", "ledger", "answering", "policy")

_INTRODUCTION = """\
Each rule is one function or class whose docstring is its proof: what it claims, why that is so, and what it needs.
Tests remove units from data and look whether a claim fails; a claim that nothing reaches fails a test. What they carry
together is the [guarantee](../../privacy/GUARANTEE.md)."""

_PART = re.compile(r"^(Claim|Because|Needs)\b:?", re.MULTILINE)


def page() -> str:
    return whole("Rules", "docstrings", _INTRODUCTION, *_modules())


def _modules() -> Iterator[str]:
    for path in sorted(_PACKAGE.rglob("*.py"), key=_rank):
        rules = list(_rules(path))
        if rules:
            yield "\n\n".join([f"## {path.relative_to(_PACKAGE).as_posix()}", *rules])


def _rank(path: Path) -> tuple[int, str]:
    package = path.relative_to(_PACKAGE).parts[0]
    return (_ORDER.index(package) if package in _ORDER else len(_ORDER)), path.as_posix()


def _rules(path: Path) -> Iterator[str]:
    for name, docstring in _documented(ast.parse(path.read_text(encoding="utf-8")), ""):
        if "Claim:" in docstring:
            proof = _PART.sub(r"**\1.**", inspect.cleandoc(docstring))
            yield f"### `{name}`\n\n{proof}"


def _documented(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}{child.name}"
            yield name, ast.get_docstring(child, clean=False) or ""
            yield from _documented(child, f"{name}.")
