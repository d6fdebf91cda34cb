"""The [server] section: read, checked with its lines, and with defaults that are safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsql.policy.load_server import state_folder
from dpsql.policy.model import ServerPolicy
from tests.policy.test_loader import HEAD, TABLE, found, loaded, the_problem


def test_without_a_section_only_this_machine_is_listened_to(tmp_path: Path) -> None:
    assert loaded(tmp_path, HEAD + TABLE).server == ServerPolicy()
    assert ServerPolicy().host == "127.0.0.1" and ServerPolicy().tls == "remote"


def test_a_whole_section_is_read(tmp_path: Path) -> None:
    section = """[server]
host = "0.0.0.0"
port = 6000
tls = "required"
certificate = "tls/server.crt"
key = "/etc/server.key"
max_connections = 20
login_timeout = 2.5
metrics_port = 9100
twin = "postgresql://dpsql:secret@localhost/empty"
state = "kept"
"""
    server = loaded(tmp_path, HEAD + TABLE + section).server
    assert server == ServerPolicy(
        host="0.0.0.0",  # noqa: S104
        port=6000,
        tls="required",
        certificate=tmp_path / "tls/server.crt",
        key=Path("/etc/server.key"),
        max_connections=20,
        login_timeout=2.5,
        metrics_port=9100,
        twin="postgresql://dpsql:secret@localhost/empty",
        state=tmp_path / "kept",
        certificate_line=11,
    )
    assert "secret" not in repr(server)


def test_two_policies_in_one_folder_keep_their_state_apart(tmp_path: Path) -> None:
    assert state_folder(loaded(tmp_path, HEAD + TABLE)) == tmp_path / ".dpsql" / "dpsql"
    assert state_folder(loaded(tmp_path, HEAD + TABLE + '[server]\nstate = "x"')) == tmp_path / "x"


@pytest.mark.parametrize(
    ("line", "message", "fix"),
    [
        ("port = 65536", '"port" in [server] is not a port', "write a number from 1 to 65535"),
        ("port = 0", '"port" in [server] must be 1 or more', None),
        ('port = "5432"', '"port" in [server] must be an integer, not a string', None),
        ("prot = 1", 'unknown key "prot" in [server]', "write: port"),
        ('host = ""', '"host" in [server] must be a string that is not empty and holds no NUL character', None),
        ('tls = "of"', '"tls" in [server] is "of"', 'write: tls = "off"'),
        ('tls = "maybe"', '"tls" in [server] is "maybe"', 'write: tls = "required"'),
        ("tls = false", '"tls" in [server] must be a string, not a boolean', None),
        ('key = "k"', '[server] has "key" without "certificate"', "write both, or neither"),
        ('certificate = "c"', '[server] has "certificate" without "key"', "write both, or neither"),
        ("max_connections = 0", '"max_connections" in [server] must be 1 or more', None),
        ("login_timeout = 0.5", '"login_timeout" in [server] must be at least 1 and at most 600 seconds', None),
        ("metrics_port = 5437", '"metrics_port" in [server] is the port of the server', "write another one"),
        (
            'twin = "mysql://me:secret@host/db"',
            '"twin" in [server] is not the address of a PostgreSQL database',
            'write: twin = "postgresql://USER@HOST/DATABASE"',
        ),
    ],
)
def test_each_mistake_has_its_line_and_a_way_out(tmp_path: Path, line: str, message: str, fix: str | None) -> None:
    problem = the_problem(tmp_path, f"{HEAD}{TABLE}[server]\n{line}\n")
    assert (problem.line, problem.message, problem.fix) == (8, message, fix)


def test_a_certificate_without_tls_is_a_contradiction(tmp_path: Path) -> None:
    lines = '[server]\ntls = "off"\ncertificate = "c"\nkey = "k"\n'
    assert found(tmp_path, HEAD + TABLE + lines) == [
        (9, '"certificate" in [server] has no meaning if tls is "off"'),
    ]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    assert len(found(tmp_path, HEAD + TABLE + '[server]\nport = -1\ntls = "x"\nhost = 3\ntwin = "y"\n')) == 4
