"""TLS: the owner's certificate or a self-signed one, and its hash for channel binding."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dpsql.files import write_private
from dpsql.policy.load_server import certificate_problems, state_folder
from dpsql.policy.model import Policy
from dpsql.policy.problems import PolicyProblems

_DAYS = 3_650


@dataclass(frozen=True, slots=True)
class Tls:
    context: ssl.SSLContext
    end_point: bytes | None  # tls-server-end-point of RFC 5929; None: not defined for this certificate


def open_tls(policy: Policy) -> Tls | None:
    """TLS as the policy configures it; None if it is "off"."""
    if policy.server.tls == "off":
        return None
    problems = certificate_problems(policy)
    if problems:
        raise PolicyProblems(problems)
    certificate, key = policy.server.certificate, policy.server.key
    if certificate is None or key is None:
        certificate, key = own_certificate(state_folder(policy), policy.server.host)
    return load_tls(certificate, key)


def load_tls(certificate: Path, key: Path) -> Tls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["postgresql"])
    context.load_cert_chain(certificate, key, password="")
    # A file may hold a chain; the first certificate is the server's own.
    return Tls(context, _end_point(x509.load_pem_x509_certificates(certificate.read_bytes())[0]))


def _end_point(certificate: x509.Certificate) -> bytes | None:
    algorithm = certificate.signature_hash_algorithm
    if algorithm is None:
        return None  # Ed25519 and similar have none, and RFC 5929 does not cover them
    if isinstance(algorithm, hashes.MD5 | hashes.SHA1):
        algorithm = hashes.SHA256()
    return certificate.fingerprint(algorithm)


def own_certificate(state: Path, host: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key, created once and kept, so that clients can be configured to trust it."""
    certificate, key = state / "certificate.pem", state / "key.pem"
    if not (certificate.exists() and key.exists()):
        secret = ec.generate_private_key(ec.SECP256R1())
        # The key is written first: where the certificate exists, its key does too.
        write_private(key, secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        write_private(certificate, _signed_by_itself(secret, host).public_bytes(Encoding.PEM))
    return certificate, key


def _signed_by_itself(key: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpsql")])
    now = datetime.now(UTC)
    names = dict.fromkeys(["localhost", "127.0.0.1", "::1", host, socket.gethostname()])
    unused = "content_commitment key_encipherment data_encipherment key_agreement crl_sign encipher_only decipher_only"
    usage = dict.fromkeys(unused.split(), False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # allows for clocks that differ
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names if each.isascii()]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
