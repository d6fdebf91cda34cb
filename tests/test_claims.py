"""Every proof is of code that runs: a `Claim:` that no command, server or driver reaches proves nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.reachability import Source

DPSQL = Path(__file__).parent.parent / "dpsql"
ENTRIES = ("dpsql.cli", "dpsql.server", "dpsql.driver")


def entry_points() -> tuple[str, ...]:
    """The modules of what pyproject.toml names to be used from outside, as in "dpsql.cli"."""
    project = tomllib.loads((DPSQL.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tables = [project["scripts"], *project.get("entry-points", {}).values()]
    return tuple(target.partition(":")[0] for table in tables for target in table.values())


def unreached_claims(folder: Path, entries: tuple[str, ...]) -> list[str]:
    """Entries are packages, modules or functions; what `python -m` runs is one as well."""
    source = Source(folder)
    modules = {found.module for found in source.definitions.values()}
    roots = [module for module in modules if any(f"{module}.".startswith(f"{entry}.") for entry in entries)]
    reached = source.reached_from([*roots, *entries, *(each for each in modules if each.endswith(".__main__"))])
    claims = [name for name, found in source.definitions.items() if "Claim:" in found.docstring]
    assert claims
    return sorted(set(claims) - reached)


def test_every_claim_is_of_code_that_runs() -> None:
    assert unreached_claims(DPSQL, ENTRIES + entry_points()) == []


_LEDGER = '''
from pay.rules import Accountant, admits, free

def charge(price):
    """Claim: nobody overdraws."""
    accountant = Accountant(price)
    return accountant.price() and admits(price)

def _left_over():
    """Claim: nothing."""
    return free(1)
'''
_RULES = '''
def admits(price):
    """Claim: the sum fits."""
    return _fits(price)

def _fits(price):
    """Claim: less is less."""
    return True

def free(price):
    """Claim: only reached by what nothing reaches."""

class Accountant:
    def price(self):
        """Claim: called on a value."""
        return getattr(self, "told")()

    def told(self):
        """Claim: called by its name."""

    def admits(self):
        """Claim: a method that has the name of a function in use."""

    def __repr__(self):
        """Claim: Python calls it."""
'''
_COMMAND = """
import click

@click.command()
def buy():
    from pay import ledger

    ledger.charge(1)
"""


def test_a_claim_that_nothing_reaches_is_found(tmp_path: Path) -> None:
    package = tmp_path / "pay"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in {"ledger": _LEDGER, "rules": _RULES, "command": _COMMAND}.items():
        (package / f"{name}.py").write_text(text)
    assert unreached_claims(package, ("pay.command",)) == [
        "pay.ledger._left_over",
        "pay.rules.Accountant.admits",
        "pay.rules.free",
    ]
