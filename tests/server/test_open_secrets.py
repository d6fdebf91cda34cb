"""What the owner is told at the start about certificate, key and policy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dpsql.errors import PolicyError
from dpsql.policy.load import load
from dpsql.policy.load_server import state_folder
from dpsql.server import serve as serving
from dpsql.server.auth.tls import own_certificate
from tests.server.process import write_clinic


def test_secrets_that_others_may_read_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = load(write_clinic(tmp_path))
    _, key = own_certificate(state_folder(policy), "127.0.0.1")
    policy.path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        serving._warn_of_files(policy)
        assert caplog.records == []
        policy.path.chmod(0o644)
        key.chmod(0o644)
        serving._warn_of_files(policy)
    assert [record.message for record in caplog.records] == ["key_open_to_others", "policy_open_to_others"]


def test_a_damaged_certificate_is_named(tmp_path: Path) -> None:
    policy = load(write_clinic(tmp_path))
    certificate, _ = own_certificate(state_folder(policy), "127.0.0.1")
    certificate.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    with pytest.raises(PolicyError, match="the certificate in the state folder") as caught:
        serving._open_door(policy, "clinic")
    assert "made anew" in str(caught.value.hint)
