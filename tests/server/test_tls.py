"""Certificates: one of our own that clients can be told to trust, or the owner's; and what a login is bound to."""

from __future__ import annotations

import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from dpsql.policy.load import load
from dpsql.policy.problems import PolicyProblems
from dpsql.server.auth.tls import load_tls, open_tls, own_certificate

HEAD = '[database]\nurl = "duckdb:///clinic.duckdb"\n[privacy]\nepsilon = 4\n[tables.people]\nunit = "id"\n[server]\n'


def openssl(*words: str | Path) -> str:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True).stdout


def certificate(folder: Path, *key: str) -> tuple[Path, Path]:
    """Made by OpenSSL, as an owner's would be."""
    files = folder / "owner.crt", folder / "owner.key"
    openssl("req", "-x509", "-nodes", "-subj", "/CN=db", "-out", files[0], "-keyout", files[1], *key)
    return files


def test_our_own_is_made_once_and_nobody_else_can_read_the_key(tmp_path: Path) -> None:
    state = tmp_path / "state" / "clinic"
    first = own_certificate(state, "db.example.org")
    texts = [file.read_bytes() for file in first]
    assert own_certificate(state, "db.example.org") == first
    assert [file.read_bytes() for file in first] == texts
    assert stat.S_IMODE(first[1].stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert sorted(file.name for file in state.iterdir()) == ["certificate.pem", "key.pem"]


def test_our_own_names_this_machine_and_the_declared_host(tmp_path: Path) -> None:
    made = x509.load_pem_x509_certificate(own_certificate(tmp_path, "db.example.org")[0].read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "db.example.org"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "::1"} <= set(map(str, names.get_values_for_type(x509.IPAddress)))
    assert made.not_valid_before_utc < datetime.now(UTC) < made.not_valid_after_utc


def test_a_lost_key_is_replaced_with_its_certificate(tmp_path: Path) -> None:
    _, key = own_certificate(tmp_path, "localhost")
    key.unlink()
    load_tls(*own_certificate(tmp_path, "localhost"))


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (["-newkey", "rsa:2048", "-sha256"], "sha256"),
        (["-newkey", "rsa:2048", "-sha384"], "sha384"),
        (["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-sha512"], "sha512"),
        (["-newkey", "rsa:2048", "-sha1"], "sha256"),  # too weak to bind to, so RFC 5929 names another
        (["-newkey", "rsa:2048", "-sha256", "-sigopt", "rsa_padding_mode:pss"], "sha256"),
    ],
)
def test_a_login_is_bound_to_the_hash_that_openssl_computes(tmp_path: Path, key: list[str], digest: str) -> None:
    files = certificate(tmp_path, *key)
    hashed = openssl("x509", "-in", files[0], "-noout", "-fingerprint", f"-{digest}").strip().partition("=")[2]
    assert load_tls(*files).end_point == bytes.fromhex(hashed.replace(":", ""))


def test_a_certificate_without_a_hash_cannot_be_bound_to(tmp_path: Path) -> None:
    assert load_tls(*certificate(tmp_path, "-newkey", "ed25519")).end_point is None


def test_of_a_chain_the_first_is_the_servers_own(tmp_path: Path) -> None:
    files = certificate(tmp_path, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    alone = load_tls(*files).end_point
    with files[0].open("ab") as chain:
        chain.write(own_certificate(tmp_path, "localhost")[0].read_bytes())
    assert load_tls(*files).end_point == alone


# --- as the policy says ---


def policy(folder: Path, lines: str) -> Path:
    file = folder / "dpsql.toml"
    file.write_text(HEAD + lines)
    return file


def test_the_policy_decides(tmp_path: Path) -> None:
    assert open_tls(load(policy(tmp_path, 'tls = "off"'))) is None
    ours = open_tls(load(policy(tmp_path, "")))
    assert ours is not None and ours.end_point is not None
    assert (tmp_path / ".dpsql" / "dpsql" / "certificate.pem").exists()
    files = certificate(tmp_path, "-newkey", "rsa:2048")
    owners = open_tls(load(policy(tmp_path, 'certificate = "owner.crt"\nkey = "owner.key"')))
    assert owners is not None and owners.end_point == load_tls(*files).end_point


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("rm owner.crt", '"certificate" in [server] cannot be read: No such file'),
        ("rm owner.key", '"key" in [server] cannot be read: No such file'),
        ("echo x > owner.crt", "do not match"),
        ("openssl genrsa -out owner.key 2048", "do not match"),
        ("openssl rsa -aes128 -passout pass:secret -in owner.key -out owner.key", "do not match"),
    ],
)
def test_files_that_cannot_be_used_are_a_problem_of_the_policy(tmp_path: Path, damage: str, text: str) -> None:
    certificate(tmp_path, "-newkey", "rsa:2048")
    subprocess.run(["sh", "-c", damage], cwd=tmp_path, check=True, capture_output=True)
    loaded = load(policy(tmp_path, 'certificate = "owner.crt"\nkey = "owner.key"'))
    with pytest.raises(PolicyProblems) as caught:
        open_tls(loaded)
    (problem,) = caught.value.problems
    assert text in problem.message and problem.line == 8
