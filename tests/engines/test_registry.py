"""Engines are found by the scheme of an address: dpsql's own are its own, others load only when they are named."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpsql.cli import commands
from dpsql.engines.registry import dialect_named, engine_kind
from dpsql.errors import PolicyError
from dpsql.policy.load import load
from dpsql.policy.schemes import BUILT_IN, GROUP, address_of, kind_named, known_schemes
from tests import toy
from tests.engines.distribution import install

_EXPLODES = "raise RuntimeError('the module was loaded')"
_HALF = """
class Kind:
    schemes = ("half",)
    title = "Half"
    keys = ()
    def address(self, url, folder, keys): ...
KIND = Kind()
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of `sys.path`, for the packages of a test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    kind_named.cache_clear()
    yield folder
    kind_named.cache_clear()
    for module in [name for name, each in sys.modules.items() if str(folder) in str(getattr(each, "__file__", ""))]:
        del sys.modules[module]


def test_our_engines_are_registered_as_others_are() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == dict(BUILT_IN)
    for scheme in BUILT_IN:
        kind = engine_kind(f"{scheme}:///clinic")
        assert scheme in kind.schemes and kind.dialect.name in kind.schemes
        assert dialect_named(kind.dialect.name) is kind.dialect


@pytest.mark.parametrize("scheme", BUILT_IN)
def test_no_package_may_replace_an_engine_of_ours(path: Path, clinic: Path, scheme: str) -> None:
    install(path, "dpsql-evil", {scheme: "dpsql_evil:KIND"}, _EXPLODES)
    with pytest.raises(PolicyError, match=r'"dpsql-evil".*which is a scheme of dpsql itself') as refusal:
        engine_kind(f"{scheme}:///clinic.duckdb")
    assert refusal.value.hint is not None and "Uninstall it" in refusal.value.hint
    assert "dpsql_evil" not in sys.modules
    if scheme == "duckdb":
        policy = toy.write_policy(clinic.parent)
        checked = CliRunner().invoke(commands, ["check", str(policy)])
        assert checked.exit_code == 1 and "dpsql-evil" in checked.stderr


def test_a_package_may_name_our_own_engine(path: Path) -> None:
    """As dpsql itself does, which may be installed twice: in an environment, and as a checkout on the path."""
    install(path, "dpsql-again", {"duckdb": BUILT_IN["duckdb"]})
    assert engine_kind("duckdb:///clinic.duckdb").title == "DuckDB"


def test_two_packages_with_one_scheme(path: Path) -> None:
    install(path, "one", {"lake": "one:KIND"}, _EXPLODES)
    install(path, "other", {"lake": "other:KIND"}, _EXPLODES)
    with pytest.raises(PolicyError, match=r'"one".* and .*"other".* register an engine for "lake://"'):
        engine_kind("lake://somewhere")


def test_an_engine_is_loaded_only_when_its_scheme_is_named(path: Path, clinic: Path) -> None:
    install(path, "heavy", {"heavy": "heavy:KIND"}, _EXPLODES)
    assert "heavy" in known_schemes()
    load(toy.write_policy(clinic.parent))
    assert "heavy" not in sys.modules
    with pytest.raises(PolicyError, match=r'"heavy" .* cannot be loaded .* the module was loaded'):
        engine_kind("heavy://somewhere")


def test_an_engine_for_another_version_of_dpsql(path: Path) -> None:
    install(path, "half", {"half": "half:KIND", "whole": "half:KIND"}, _HALF)
    with pytest.raises(PolicyError, match="lacks what this version of dpsql requires: dialect"):
        engine_kind("half://somewhere")
    with pytest.raises(PolicyError, match=r'does not say that it knows "whole://"'):
        engine_kind("whole://somewhere")


def test_an_engine_takes_no_key_of_dpsql(path: Path) -> None:
    key = 'type("Key", (), {"name": "ledger"})()'
    install(path, "half", {"half": "half:KIND"}, _HALF.replace("keys = ()", f"keys = ({key},)"))
    with pytest.raises(PolicyError, match='"ledger" is a key of dpsql'):
        engine_kind("half://somewhere")


def test_an_address_is_never_repeated(tmp_path: Path) -> None:
    for url in ("lake://me:secret@somewhere", "secret", "duckdb://secret"):
        with pytest.raises(PolicyError) as refusal:
            address_of(url, tmp_path)
        assert "secret" not in f"{refusal.value} {refusal.value.hint}"
