"""One table of session settings: whatever else speaks of them follows it."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from dpsql.answering.session import SessionSettings
from dpsql.cli.query import explain, query
from dpsql.errors import BadSetting
from dpsql.settings import SETTINGS, Takes


def test_a_session_has_a_field_of_each_setting() -> None:
    assert {field.name for field in fields(SessionSettings)} == {*SETTINGS, "zone"}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_set_shown_and_reset(name: str) -> None:
    setting, session = SETTINGS[name], SessionSettings()
    assert session.show(name) == setting.default
    written = "on" if setting.takes is Takes.SWITCH else "0.75"
    session.set(name, written)
    assert session.show(name) == written
    assert getattr(session, name) != getattr(SessionSettings(), name)
    session.reset(name)
    assert session == SessionSettings()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_refuses_what_it_does_not_take(name: str) -> None:
    for text in ("", "perhaps", "-1", "0x10", "1e999"):
        with pytest.raises(BadSetting, match=f"dpsql.{name}"):
            SessionSettings().set(name, text)


def test_an_unknown_setting_names_all_that_there_are() -> None:
    with pytest.raises(BadSetting) as refused:
        SessionSettings().set("budget", "1")
    assert refused.value.hint is not None
    assert all(name in refused.value.hint for name in SETTINGS)


@pytest.mark.parametrize("command", [query, explain], ids=["query", "explain"])
def test_each_setting_is_an_option(command: click.Command) -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    assert [name for name in SETTINGS if f"--{name}" not in shown] == []
