"""Edits of the users: comments and layout stay, the meaning is exactly what was asked for, or nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import OperationalError, PolicyError, UnknownUser
from dpsql.policy import edit
from dpsql.policy.load import load
from dpsql.policy.passwords import Verifier
from dpsql.policy.problems import PolicyProblems

HEAD = """\
# The clinic's policy.
[database]
url = "duckdb:///clinic.duckdb"

[privacy]
epsilon = 4.0   # all answers ever given
"""
TABLES = """
[tables.people]
unit = "id"
"""
SECTIONS = """
# --- users ---

# Alice is from finance.
[users.alice]   # since May
epsilon = 1.0   # a ration
# no password yet

# Bob is new.
[users.bob]
"""
PASSWORD = Verifier.derived("pencil", b"salt", 4096)


def written(folder: Path, text: str) -> Path:
    file = folder / "dpsql.toml"
    file.write_bytes(text.encode())
    return file


def test_a_user_is_added_behind_the_others(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + SECTIONS + TABLES)
    policy = edit.add_user(file, "carol", Decimal("0.50"), PASSWORD)
    added = f'\n[users.carol]\nepsilon = 0.50\npassword = "{PASSWORD}"\n'
    assert file.read_text() == HEAD + SECTIONS + added + TABLES
    assert policy == load(file)
    assert (policy.users["carol"].epsilon, policy.users["carol"].password) == (Fraction(1, 2), str(PASSWORD))


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_the_first_user_is_added_at_the_end(tmp_path: Path, end: str) -> None:
    file = written(tmp_path, (HEAD + TABLES).rstrip() + end)
    edit.add_user(file, "alice", None, None)
    assert file.read_text() == (HEAD + TABLES).rstrip() + "\n\n[users.alice]\n"


@pytest.mark.parametrize("name", ["anna lee", "ü", 'a"b', "a.b", "a\\b", "名前", "-x", "o'neil"])
def test_odd_names_are_quoted(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, HEAD + TABLES + SECTIONS)
    edit.add_user(file, name, Decimal(1), None)
    edit.set_password(file, name, PASSWORD)
    assert edit.set_allowance(file, name, Decimal(2)).users[name].epsilon == 2
    edit.remove_user(file, name)
    assert file.read_text() == HEAD + TABLES + SECTIONS


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\x7f", "\x00"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, HEAD + TABLES)
    with pytest.raises(PolicyError, match="is not a valid user name"):
        edit.add_user(file, name, None, None)
    assert file.read_text() == HEAD + TABLES


def test_settings_are_changed_in_place(tmp_path: Path) -> None:
    text = HEAD + TABLES + SECTIONS
    file = written(tmp_path, text)
    edit.set_allowance(file, "alice", Decimal("2.5"))
    text = text.replace("epsilon = 1.0 ", "epsilon = 2.5 ")
    assert file.read_text() == text
    edit.set_password(file, "alice", PASSWORD)
    text = text.replace("# a ration\n", f'# a ration\npassword = "{PASSWORD}"\n')
    assert file.read_text() == text
    edit.set_allowance(file, "alice", None)
    text = text.replace("epsilon = 2.5   # a ration\n", "")
    assert file.read_text() == text
    edit.set_allowance(file, "bob", Decimal("1E-3"))
    assert file.read_text() == text + "epsilon = 0.001\n"
    edit.set_allowance(file, "bob", None)
    edit.set_allowance(file, "bob", None)
    assert file.read_text() == text


def test_only_the_users_own_lines_are_removed(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + SECTIONS + TABLES)
    policy = edit.remove_user(file, "alice")
    assert list(policy.users) == ["bob"]
    gone = "[users.alice]   # since May\nepsilon = 1.0   # a ration\n"
    assert file.read_text() == HEAD + SECTIONS.replace(gone, "") + TABLES
    assert not edit.remove_user(file, "bob").users


INLINE = """
[users]
alice = { epsilon = 1 }  # finance
bob = {}
carol = {epsilon=2,password="%s"}
""" % Verifier.derived("crayon", b"salt", 4096)  # noqa: UP031 - braces are the subject here


def test_tables_in_braces_are_edited_too(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + TABLES + INLINE)
    edit.set_password(file, "alice", PASSWORD)
    assert f'\nalice = {{ epsilon = 1, password = "{PASSWORD}" }}  # finance\n' in file.read_text()
    edit.set_allowance(file, "alice", None)
    assert f'\nalice = {{ password = "{PASSWORD}" }}  # finance\n' in file.read_text()
    edit.set_allowance(file, "bob", Decimal(3))
    assert "\nbob = { epsilon = 3 }\n" in file.read_text()
    edit.set_allowance(file, "bob", None)
    assert "\nbob = {}\n" in file.read_text()
    edit.set_allowance(file, "carol", Decimal(1))
    assert "\ncarol = {epsilon=1,password=" in file.read_text()
    edit.remove_user(file, "carol")
    edit.remove_user(file, "bob")
    edit.add_user(file, "dan", None, None)
    assert file.read_text().endswith("  # finance\n\n[users.dan]\n")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("users.alice.epsilon = 1\n" + HEAD + TABLES, lambda f: edit.set_password(f, "alice", PASSWORD)),
        ("users.alice.epsilon = 1\n" + HEAD + TABLES, lambda f: edit.remove_user(f, "alice")),
        ("users = { alice = {} }\n" + HEAD + TABLES, lambda f: edit.add_user(f, "bob", None, None)),
        ("users = { alice = {}, bob = {} }\n" + HEAD + TABLES, lambda f: edit.remove_user(f, "alice")),
        (HEAD + TABLES + "[users]\nalice.epsilon = 1\n", lambda f: edit.set_password(f, "alice", PASSWORD)),
    ],
)
def test_what_is_not_understood_is_left_alone(tmp_path: Path, text: str, change: Callable[[Path], object]) -> None:
    file = written(tmp_path, text)
    load(file)
    with pytest.raises(PolicyError, match="in a way that dpsql cannot edit"):
        change(file)
    assert file.read_text() == text
    assert os.listdir(tmp_path) == ["dpsql.toml"]


def test_newlines_of_windows_stay(tmp_path: Path) -> None:
    file = written(tmp_path, (HEAD + TABLES + SECTIONS).replace("\n", "\r\n"))
    edit.add_user(file, "carol", Decimal(1), None)
    edit.set_allowance(file, "carol", Decimal(2))
    text = file.read_bytes().decode()
    assert text == (HEAD + TABLES + SECTIONS + "\n[users.carol]\nepsilon = 2\n").replace("\n", "\r\n")


def test_a_user_who_is_not_there_or_there_already(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + TABLES + SECTIONS)
    with pytest.raises(UnknownUser):
        edit.remove_user(file, "carol")
    with pytest.raises(UnknownUser):
        edit.set_allowance(file, "carol", None)
    with pytest.raises(UnknownUser):
        edit.set_password(file, "Alice", PASSWORD)
    with pytest.raises(PolicyError, match='user "alice" already exists'):
        edit.add_user(file, "alice", None, None)
    assert file.read_text() == HEAD + TABLES + SECTIONS


def test_a_file_that_would_not_load_is_not_written(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + TABLES + SECTIONS)
    with pytest.raises(PolicyProblems, match="more than the dataset's total"):
        edit.set_allowance(file, "alice", Decimal(5))
    assert file.read_text() == HEAD + TABLES + SECTIONS
    for broken in ("[users", HEAD, HEAD + TABLES + "users = 3\n", HEAD + TABLES + "[users]\nalice = 3\n"):
        written(tmp_path, broken)
        with pytest.raises(PolicyProblems):
            edit.set_password(file, "alice", PASSWORD)
        assert file.read_text() == broken


def test_a_password_in_clear_can_be_replaced(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + TABLES + '[users.alice]\npassword = "hunter2"\n')
    with pytest.raises(PolicyProblems) as problems:
        load(file)
    assert "dpsql user password alice" in str(problems.value) and "hunter2" not in str(problems.value)
    assert edit.set_password(file, "alice", PASSWORD) == load(file)


def test_the_file_keeps_its_rights_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text(HEAD + TABLES)
    real.chmod(0o640)
    link = tmp_path / "dpsql.toml"
    link.symlink_to(real)
    edit.add_user(link, "alice", None, None)
    assert link.is_symlink() and real.read_text().endswith("[users.alice]\n")
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["dpsql.toml", "real.toml"]


def test_a_failing_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = written(tmp_path, HEAD + TABLES)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OperationalError, match="cannot be written: no space left on device"):
        edit.add_user(file, "alice", None, None)
    assert file.read_text() == HEAD + TABLES
    assert os.listdir(tmp_path) == ["dpsql.toml"]


def test_a_change_at_the_same_time_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, HEAD + TABLES)
    sync = os.fsync

    def interfere(descriptor: int) -> None:
        sync(descriptor)
        file.write_text(HEAD + TABLES + "# by hand\n")

    monkeypatch.setattr(os, "fsync", interfere)
    with pytest.raises(OperationalError, match="changed by another process"):
        edit.add_user(file, "alice", None, None)
    assert file.read_text() == HEAD + TABLES + "# by hand\n"
