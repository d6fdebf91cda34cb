"""One table of policy keys: the loader knows them, and the model has a field of each."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from dpsql.policy import model
from dpsql.policy.keys import HEADERS, KEYS, SectionName, names
from dpsql.policy.load import load_text
from dpsql.policy.problems import PolicyProblems

# Fields that are no key: the name of a section, lines for messages, and parts that are classes of their own.
_OF_THE_LOADER = {"name", "line", "certificate_line", "statement", "compiling"}
_RENAMED = {"lower": "min", "upper": "max"}
_MODELS: dict[SectionName, tuple[type, ...]] = {
    "database.prepared": (model.PreparedPolicy,),
    "privacy": (model.PrivacyPolicy,),
    "tables": (model.TablePolicy,),
    "tables.unit": (model.UnitReference,),
    "tables.columns": (model.ColumnPolicy,),
    "views": (model.ViewPolicy,),
    "users": (model.UserPolicy,),
    "limits": (model.Limits, model.StatementLimits, model.CompileLimits),
    "server": (model.ServerPolicy,),
}


@pytest.mark.parametrize("section", _MODELS)
def test_every_key_is_a_field_and_every_field_a_key(section: SectionName) -> None:
    held = {field.name for each in _MODELS[section] for field in fields(each)} - _OF_THE_LOADER
    assert {_RENAMED.get(name, name) for name in held} == set(names(section))


def test_every_section_has_a_header() -> None:
    assert HEADERS.keys() == KEYS.keys()


@pytest.mark.parametrize(
    ("section", "written"),
    [
        ("database", "[database]\n"),
        ("privacy", "[privacy]\n"),
        ("limits", "[limits]\n"),
        ("server", "[server]\n"),
        ("tables", "[tables.people]\n"),
        ("tables.columns", "[tables.people.columns.age]\n"),
        ("views", "[views.old]\n"),
        ("users", "[users.alice]\n"),
    ],
)
def test_the_loader_knows_each_key_and_no_other(section: SectionName, written: str) -> None:
    def unknown(name: str) -> bool:
        with pytest.raises(PolicyProblems) as found:
            load_text(Path("dpsql.toml"), f"{written}{name} = 1\n".encode())
        return any("unknown" in problem.message and f'"{name}"' in problem.message for problem in found.value.problems)

    assert [name for name in names(section) if unknown(name)] == []
    assert unknown("nonsense")
