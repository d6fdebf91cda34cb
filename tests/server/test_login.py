"""Real clients log in: the right password is accepted, any other refused, and the client gets the reason."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from dpsql.errors import PolicyError
from dpsql.policy.load import load
from dpsql.server.auth.login import CancelCall, Client, is_local, login_rules
from tests import toy
from tests.server import raw
from tests.server.hall import DATABASE, PASSWORD, READY, Hall, make_door, opened, own_tls, running, verifier
from tests.server.process import eventually

WRONG = "wrong"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def hall(state: Path) -> Iterator[Hall]:
    """Offers TLS, and does not ask it of this machine."""
    with running(make_door(own_tls(state)[0])) as hall:
        yield hall


@pytest.fixture
def strict(state: Path) -> Iterator[Hall]:
    with running(make_door(own_tls(state)[0], "required")) as hall:
        yield hall


def libpq(hall: Hall, **options: Any) -> psycopg.Connection:
    given = {"user": "alice", "password": PASSWORD, "dbname": DATABASE, "sslmode": "disable", **options}
    return psycopg.connect(host="127.0.0.1", port=hall.port, autocommit=True, connect_timeout=30, **given)


def refused(hall: Hall, **options: Any) -> str:
    with pytest.raises(psycopg.OperationalError) as caught:
        libpq(hall, **options)
    return str(caught.value)


def entered(hall: Hall) -> Client:
    client = hall.outcomes[-1]
    assert isinstance(client, Client)
    return client


# --- passwords ---


def test_the_right_password_opens(hall: Hall) -> None:
    with libpq(hall, options="-c dpsql.epsilon=0.5", application_name="report") as connection:
        assert connection.pgconn.used_password
    client = entered(hall)
    assert (client.user, client.database, client.address) == ("alice", DATABASE, "127.0.0.1")
    assert (client.tls, client.protocol) == (False, (3, 0))
    assert client.parameters["options"] == "-c dpsql.epsilon=0.5"
    assert client.parameters["application_name"] == "report"


@pytest.mark.parametrize("user", ["alice", "mallory", "jürgen", 'x"; DROP TABLE y'])
def test_a_wrong_password_and_an_unknown_user_hear_the_same(hall: Hall, user: str) -> None:
    assert f'FATAL:  password authentication failed for user "{user}"' in refused(hall, user=user, password=WRONG)


def test_an_unknown_user_with_somebody_elses_password_is_refused(hall: Hall) -> None:
    assert "password authentication failed" in refused(hall, user="mallory")


def test_a_known_and_an_unknown_name_get_messages_of_one_shape(hall: Hall) -> None:
    shapes = []
    for user in ("alice", "mallory"):
        with raw.connected(hall) as client:
            client.send(raw.startup(user=user))
            offer = client.message()
            kind, challenge = client.answer_offer()
            client.send(raw.message(b"p", client.scram.proof(challenge)[:-4] + b"AAA="))
            shapes.append((offer, kind, len(challenge), client.error()["C"]))
    assert shapes[0] == shapes[1]


def test_asyncpg_comes_in_and_is_refused(hall: Hall, state: Path) -> None:
    async def scenario() -> None:
        context = ssl.create_default_context(cafile=str(own_tls(state)[1]))
        where: dict[str, Any] = {"host": "127.0.0.1", "port": hall.port, "user": "alice", "database": DATABASE}
        for channel in (False, context):
            connection = await asyncpg.connect(password=PASSWORD, ssl=channel, **where)
            connection.terminate()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(password=WRONG, ssl=False, **where)
        await asyncio.sleep(0.1)  # asyncpg closes its sockets later than it says

    asyncio.run(scenario())


def test_psql_comes_in(hall: Hall) -> None:
    address = f"host=127.0.0.1 port={hall.port} user=alice dbname={DATABASE} sslmode=require"
    said = subprocess.run(
        ["psql", address, "-c", r"\conninfo"],
        env={"PGPASSWORD": PASSWORD, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert 'as user "alice"' in said.stdout and "TLSv1.3" in said.stdout


# --- databases and protocols ---


def test_the_database_may_be_left_out(hall: Hall) -> None:
    with libpq(hall, dbname="alice"):  # what libpq sends if none is given
        pass
    assert entered(hall).database == DATABASE
    with raw.connected(hall) as client:
        client.log_in(raw.startup(user="alice"))


def test_another_database_does_not_exist_but_only_for_those_who_are_in(hall: Hall) -> None:
    assert f'FATAL:  database "postgres" does not exist\nHINT:  Connect to database "{DATABASE}".' in refused(
        hall, dbname="postgres"
    )
    assert "password authentication failed" in refused(hall, dbname="postgres", password=WRONG)


def test_newer_protocols_are_negotiated(hall: Hall) -> None:
    with libpq(hall, max_protocol_version="latest"):
        pass
    assert entered(hall).protocol == (3, 2)
    with raw.connected(hall) as client:
        client.send(raw.startup(minor=9, user="alice", **{"_pq_.zip": "on"}))
        assert client.message() == (b"v", b"\0\x03\0\x02\0\0\0\x01_pq_.zip\0")
        client.finish_login()


def test_replication_and_old_protocols_are_refused(hall: Hall) -> None:
    for packet in (raw.startup(user="alice", replication="database"), raw.packet(2 << 16, b"alice\0")):
        with raw.connected(hall) as client:
            client.send(packet)
            assert client.error()["C"] == "0A000"


# --- TLS ---


@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_tls_is_used_where_it_is_asked_for(hall: Hall, mode: str) -> None:
    with libpq(hall, sslmode=mode) as connection:
        assert connection.pgconn.ssl_in_use
    assert entered(hall).tls


def test_a_client_can_verify_our_own_certificate_and_bind_to_it(hall: Hall, state: Path) -> None:
    certificate = str(own_tls(state)[1])
    with libpq(hall, sslmode="verify-full", sslrootcert=certificate, channel_binding="require"):
        pass
    assert "certificate verify failed" in refused(
        hall, sslmode="verify-full", sslrootcert=_another_certificate(state), sslnegotiation="postgres"
    )


def _another_certificate(state: Path) -> str:
    return str(own_tls(state / "another")[1])


def test_channel_binding_needs_tls(hall: Hall) -> None:
    assert "channel binding required" in refused(hall, channel_binding="require")


def test_without_tls_nobody_comes_in_where_it_is_required(strict: Hall) -> None:
    assert "FATAL:  connection requires TLS\nHINT:  Connect with sslmode=require." in refused(strict)
    with libpq(strict, sslmode="require"):
        pass
    # The answer does not depend on the name, and comes before any password.
    assert "connection requires TLS" in refused(strict, user="mallory")


def test_tls_that_is_off_is_declined() -> None:
    with running(make_door(None, "off")) as hall:
        with libpq(hall, sslmode="prefer") as connection:
            assert not connection.pgconn.ssl_in_use
        assert "server does not support SSL" in refused(hall, sslmode="require")


def test_another_machine_must_encrypt(state: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; only asks which address would be used
        except OSError:
            pytest.skip("this machine has no address that others could reach")
        here = probe.getsockname()[0]
    with running(make_door(own_tls(state)[0]), host="0.0.0.0") as hall:  # noqa: S104
        given: dict[str, Any] = {"port": hall.port, "user": "alice", "password": PASSWORD, "dbname": DATABASE}
        with pytest.raises(psycopg.OperationalError, match="connection requires TLS"):
            psycopg.connect(host=here, sslmode="disable", **given)
        psycopg.connect(host=here, sslmode="require", **given).close()


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("local", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("unknown", False),
    ],
)
def test_what_stays_on_this_machine(address: str, local: bool) -> None:
    assert is_local(address) == local


def test_old_tls_is_refused_and_openssl_trusts_ours(hall: Hall, state: Path) -> None:
    def openssl(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["openssl", "s_client", "-starttls", "postgres", "-connect", f"127.0.0.1:{hall.port}", *words]
        return subprocess.run(command, input="", capture_output=True, text=True, check=False, timeout=60)

    trusted = openssl("-CAfile", str(own_tls(state)[1]), "-verify_ip", "127.0.0.1", "-alpn", "postgresql")
    assert "Verify return code: 0 (ok)" in trusted.stdout and "ALPN protocol: postgresql" in trusted.stdout
    assert "Cipher is (NONE)" not in openssl("-tls1_2").stdout
    assert "Cipher is (NONE)" in openssl("-tls1_1", "-cipher", "ALL@SECLEVEL=0").stdout


def test_bytes_behind_a_request_for_tls_are_refused(hall: Hall) -> None:
    """They would be read as if they had come through the encrypted channel."""
    with raw.connected(hall) as client:
        client.send(raw.SSL_REQUEST + raw.startup(user="alice"))
        assert client.error()["C"] == "08P01"


def test_a_changed_offer_is_noticed(hall: Hall) -> None:
    """Somebody on the way strikes out PLUS: the client says that it could have bound, and the server knows better."""
    with raw.connected(hall) as client:
        client.encrypt()
        client.send(raw.startup(user="alice"))
        assert client.message() == (b"R", b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")
        client.send(raw.choice("SCRAM-SHA-256", b"y,,n=,r=abc"))
        assert client.error()["C"] == "28000"


def test_after_gssapi_was_declined_tls_can_be_asked_for_but_nothing_twice(hall: Hall) -> None:
    with raw.connected(hall) as client:
        client.send(raw.GSS_REQUEST)
        assert client.receive(1) == b"N"
        client.encrypt()
        client.log_in(raw.startup(user="alice"))
    for encrypted in (False, True):
        with raw.connected(hall) as client:
            client.send(raw.GSS_REQUEST)
            assert client.receive(1) == b"N"
            if encrypted:
                client.encrypt()
            client.send(raw.GSS_REQUEST)
            assert client.error()["C"] == "08P01"


def test_what_follows_the_password_is_not_lost(hall: Hall) -> None:
    """A client that does not wait finds its next bytes with the relay, with and without TLS; also many of them."""
    for encrypted in (False, True):
        with raw.connected(hall) as client:
            if encrypted:
                client.encrypt()
            client.log_in(raw.startup(user="alice"), behind=b"x" * 1_000_000)
            assert client.receive(len(READY)) == READY


# --- cancel ---


@pytest.mark.parametrize("mode", ["disable", "require"])
def test_cancel_requests_are_taken(hall: Hall, mode: str) -> None:
    with libpq(hall, sslmode=mode) as connection:
        connection.cancel_safe(timeout=30)  # over a channel like that of the connection
        assert hall.outcomes[-1] == CancelCall(77, (4711).to_bytes(4, "big"))


def test_a_cancel_request_needs_no_tls(strict: Hall) -> None:
    with raw.connected(strict) as client:
        client.send(raw.cancel(5, b"k" * 32))
        assert client.rest() == b""
    assert strict.outcomes[-1] == CancelCall(5, b"k" * 32)


# --- time ---


# Some answers have to come before the time is over, also on a busy machine.
@pytest.mark.parametrize(("sent", "seconds"), [(b"", 0.3), (b"\0\0", 0.3), (raw.startup(user="alice"), 3)])
def test_who_does_not_finish_is_sent_away(sent: bytes, seconds: float) -> None:
    with running(make_door(login_timeout=seconds)) as hall, raw.connected(hall) as client:
        client.send(sent)
        if len(sent) > 4:
            client.message()
        error = client.error()
        assert (error["C"], error["M"]) == ("57014", f"the login took longer than {seconds:g} seconds")


def test_who_does_not_finish_a_handshake_is_sent_away(state: Path) -> None:
    with running(make_door(own_tls(state)[0], login_timeout=3)) as hall, raw.connected(hall) as client:
        client.send(raw.SSL_REQUEST)
        assert client.receive(1) == b"S"
        assert client.rest() == b""
        eventually(lambda: hall.outcomes)  # the client may see the end a moment earlier
    assert hall.outcomes == [None]


def test_a_slow_drip_does_not_win_time() -> None:
    with running(make_door(login_timeout=0.5)) as hall, raw.connected(hall) as client:
        for byte in raw.startup(user="alice", application_name="x" * 10_000)[:4] * 100:
            client.send(bytes([byte]))
        assert client.error()["C"] in ("57014", "08P01")


# --- from a policy ---


def test_a_door_is_opened_as_the_policy_says(clinic: Path) -> None:
    text = f'[users.carol]\npassword = "{verifier()}"\n[users.dave]\n[server]\nlogin_timeout = 5\n'
    clinic.write_text(clinic.read_text() + text)
    rules = login_rules(load(clinic), DATABASE)
    assert (rules.login_timeout, rules.tls_rule, rules.database) == (5, "remote", DATABASE)
    assert rules.verifiers.of("carol") == (verifier(), True)
    unknown = rules.verifiers.of("dave")
    assert not unknown[1]
    again = login_rules(load(clinic), DATABASE, rules.throttle)
    assert again.verifiers.of("dave") == unknown and again.throttle is rules.throttle
    with running(again) as hall:
        libpq(hall, user="carol", sslmode="require").close()
        assert "password authentication failed" in refused(hall, user="dave")


def test_a_state_folder_that_cannot_be_used_is_told(clinic: Path) -> None:
    (clinic.parent / "file").write_text("")
    clinic.write_text(clinic.read_text() + '[server]\nstate = "file/inside"\n')
    with pytest.raises(PolicyError, match="cannot be used") as caught:
        login_rules(load(clinic), DATABASE)
    assert caught.value.hint is not None
    assert toy.DATABASE in {file.name for file in clinic.parent.iterdir()}


def test_a_unix_socket_is_local(tmp_path: Path, state: Path) -> None:
    path = tmp_path / ".s.PGSQL.5437"

    async def scenario() -> None:
        async with opened(make_door(own_tls(state)[0]), path=path) as hall:
            connection = await asyncpg.connect(
                host=str(tmp_path), port=5437, user="alice", password=PASSWORD, database=DATABASE
            )
            connection.terminate()
            assert entered(hall).address == "local"

    asyncio.run(scenario())
