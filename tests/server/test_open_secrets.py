"""What the owner is told at the start about certificate, key and policy."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dpsql.errors import PolicyError
from dpsql.policy.load import load
from dpsql.policy.load_server import state_folder
from dpsql.server import serve as serving
from dpsql.server.auth.tls import own_certificate
from tests.server.process import Serving, home, write_clinic


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
        serving._login_rules(policy, "clinic")
    assert "new ones are then created" in str(caught.value.hint)


def write_expired(certificate: Path, key: Path) -> None:
    """A certificate of yesterday, and its key."""
    made, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clinic")])
    signed = (
        x509.CertificateBuilder(name, name, made.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1))
        .sign(made, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_a_server_that_starts_tells_of_an_expired_certificate_and_of_open_secrets() -> None:
    with home() as folder:
        certificate, key = folder / "server.pem", folder / "server.key"
        write_expired(certificate, key)
        key.chmod(0o644)
        policy = write_clinic(folder, server=f'certificate = "{certificate}"\nkey = "{key}"')
        policy.chmod(0o644)
        with Serving(policy) as serving:
            assert serving.events("certificate_expired")[0]["level"] == "warning"
            assert serving.events("key_open_to_others") and serving.events("policy_open_to_others")
            with serving.connect(sslmode="require") as connection:  # it is the client's to trust it or not
                assert connection.execute("SELECT 1").fetchone() == (1,)
