"""Reads the [server] section of the policy file: where `dpsql serve` listens, and who may connect."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import get_args

from dpsql.policy.keys import names
from dpsql.policy.model import Policy, ServerPolicy, TlsRule
from dpsql.policy.problems import Problem, nearest, quoted
from dpsql.policy.sections import Rule, Section

_TLS: tuple[TlsRule, ...] = get_args(TlsRule)
_LAST_PORT = 65_535
_LOGIN_TIMEOUT = Rule("at least 1 and at most 600 seconds", lambda seconds: 1 <= seconds <= 600)
_TWIN = ("postgresql://", "postgres://")


def read_server(root: Section, path: Path) -> ServerPolicy:
    section = root.section("server", names("server"))
    if section is None:
        return ServerPolicy()
    defaults = ServerPolicy()
    certificate, key = _file(section, "certificate", path), _file(section, "key", path)
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if name in section.content and other not in section.content:
            section.problem(name, f'[server] has "{name}" without "{other}"', "write both, or neither")
    timeout = section.number("login_timeout", _LOGIN_TIMEOUT)
    port, metrics_port = _port(section, "port"), _port(section, "metrics_port")
    if metrics_port is not None and metrics_port == (port or defaults.port):
        section.problem("metrics_port", '"metrics_port" in [server] is the port of the server', "write another one")
    return ServerPolicy(
        host=section.text("host") or defaults.host,
        port=port or defaults.port,
        tls=_tls(section) or defaults.tls,
        certificate=certificate,
        key=key,
        max_connections=section.integer("max_connections") or defaults.max_connections,
        max_connections_per_user=section.integer("max_connections_per_user"),
        login_timeout=defaults.login_timeout if timeout is None else float(timeout),
        metrics_port=metrics_port,
        twin=_twin(section),
        state=_file(section, "state", path),
        certificate_line=None if certificate is None else section.line("certificate"),
    )


def _file(section: Section, key: str, path: Path) -> Path | None:
    """A path, relative to the folder of the policy file."""
    text = section.text(key)
    return None if text is None else path.parent / text


def _port(section: Section, key: str) -> int | None:
    port = section.integer(key)
    if port is not None and port > _LAST_PORT:
        section.problem(key, f"{quoted(key)} in [server] is not a port", f"write a number from 1 to {_LAST_PORT}")
        return None
    return port


def _tls(section: Section) -> TlsRule | None:
    text = section.text("tls")
    for rule in _TLS:
        if text == rule:
            if rule == "off" and "certificate" in section.content:
                section.problem("certificate", '"certificate" in [server] has no meaning if tls is "off"', "remove it")
            return rule
    if text is not None:
        section.problem(
            "tls", f'"tls" in [server] is {quoted(text)}', f'write: tls = "{nearest(text, _TLS) or "required"}"'
        )
    return None


def _twin(section: Section) -> str | None:
    twin = section.text("twin")
    if twin is not None and not twin.startswith(_TWIN):
        # The address itself is not repeated: it may hold a password.
        section.problem(
            "twin",
            '"twin" in [server] is not the address of a PostgreSQL database',
            'write: twin = "postgresql://USER@HOST/DATABASE"',
        )
        return None
    return twin


def state_folder(policy: Policy) -> Path:
    """The folder for server state between runs, beside the policy file; policies in one folder do not share it."""
    return policy.server.state or policy.path.parent / ".dpsql" / policy.path.stem


def certificate_problems(policy: Policy) -> list[Problem]:
    """Problems with the owner's certificate and key. They are read only where they are needed."""
    certificate, key = policy.server.certificate, policy.server.key
    if certificate is None or key is None:
        return []

    def problem(message: str, fix: str | None = None) -> Problem:
        return Problem(str(policy.path), policy.server.certificate_line, message, fix)

    for name, file in (("certificate", certificate), ("key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            return [problem(f'"{name}" in [server] cannot be read: {error.strerror}')]
    try:
        # An encrypted key would prompt for its password on a terminal, which a server lacks.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError):
        fix = "write the paths of two PEM files; the key is not encrypted"
        return [problem('"certificate" and "key" in [server] do not match', fix)]
    return []
