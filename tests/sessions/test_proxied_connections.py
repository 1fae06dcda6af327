"""Connections through a proxy, on real sockets: whose they are, and what becomes of those without a valid header."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import pack
from typing import Any

import argon2
import pytest
import trio

from qmq.config import Address, ListenerSettings, User
from qmq.engine.runtime.sockets import TcpNetwork
from qmq.environment import Pipe
from qmq.wire.proxy_protocol import SIGNATURE
from tests.node.rig import Client, Rig
from tests.sessions.clients.test_tls import HOST, SECONDS_MAX, Papers, papers

assert papers, "a fixture"

LINE = b"PROXY TCP4 203.0.113.7 10.0.0.1 40000 61613\r\n"
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n\0"
NAMELESS = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
HASHER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

Dial = Callable[..., Any]


def named(common_name: bytes) -> bytes:
    """Version 2, from a proxy that has checked a certificate with this name."""
    inner = b"\x22" + pack(">H", len(common_name)) + common_name
    ssl = pack(">BI", 0x03, 0) + inner
    body = bytes([203, 0, 113, 7, 10, 0, 0, 1]) + pack(">HHBH", 40_000, 61613, 0x20, len(ssl)) + ssl
    return SIGNATURE + pack(">BBH", 0x21, 0x11, len(body)) + body


@asynccontextmanager
async def served(*, login_seconds: float = SECONDS_MAX, **settings: Any) -> AsyncIterator[tuple[Rig, Dial]]:
    """A node with the user ann and such a listener, and a function that connects to it and sends bytes."""
    user = User(name="ann", password_hash=HASHER.hash("secret"), groups=("client",))
    rig = Rig(users=(user,))
    async with rig.run():
        node = rig.alive
        node.environment.network = TcpNetwork()
        node.settings = node.settings.replace(
            {"limits": node.settings.limits.replace({"login_seconds": login_seconds})}
        )
        listener = ListenerSettings(**{"address": Address(HOST, 0), "proxied_from": (HOST,), **settings})
        pipes: list[Pipe] = []
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                listen, stomp = node.session_parts.listeners.listen, node.protocols.of("stomp")
                address, stop = await nursery.start(listen, listener, stomp)

                async def dial(*parts: bytes) -> Pipe:
                    pipe = await TcpNetwork().connect(*address, None, "")
                    pipes.append(pipe)
                    for part in parts:
                        await pipe.send_all(part)
                    return pipe

                yield rig, dial
                for pipe in pipes:
                    pipe.close()
                stop()


def addresses(rig: Rig) -> set[str]:
    return {session.peer_address for session in rig.alive.sessions.values()}


async def ended(pipe: Pipe) -> bytes:
    """All that the node sends until it closes the connection."""
    got = b""
    try:
        while data := await pipe.receive_some(65536):
            got += data
    except trio.BrokenResourceError:
        pass
    return got


@pytest.mark.parametrize(
    "parts", [(LINE, CONNECT), (LINE + CONNECT,), (named(b""), CONNECT), (LINE[:7], LINE[7:], CONNECT)]
)
async def test_a_client_behind_a_proxy_has_its_own_address(parts: tuple[bytes, ...]) -> None:
    async with served() as (rig, dial):
        client = Client(await dial(*parts))
        await client.next("CONNECTED")

        assert addresses(rig) == {"203.0.113.7"}


async def test_a_health_check_of_the_proxy_itself_is_its_own_connection() -> None:
    async with served() as (rig, dial):
        await Client(await dial(b"PROXY UNKNOWN\r\n", CONNECT)).next("CONNECTED")

        assert addresses(rig) == {HOST}


async def test_only_the_named_proxies_are_believed() -> None:
    async with served(proxied_from=("127.0.0.2", "10.0.0.0/8")) as (rig, dial):
        direct = Client(await dial(CONNECT))
        await direct.next("CONNECTED")
        got = await ended(await dial(LINE, CONNECT))

        assert got.startswith(b"ERROR\n")
        assert addresses(rig) == {HOST}


@pytest.mark.parametrize("sent", [CONNECT, b"PROXY TCP4 nowhere\r\n" + CONNECT, b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_connection_of_a_proxy_without_a_valid_header_is_closed_without_an_answer(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (rig, dial):
        with caplog.at_level(logging.WARNING, "qmq.login"):
            assert await ended(await dial(sent)) == b""

        assert not rig.alive.sessions
        assert "bad-proxy-header" in caplog.text
        await Client(await dial(LINE, CONNECT)).next("CONNECTED")


async def test_a_header_that_does_not_arrive_ends_its_connection_and_keeps_no_other_from_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(login_seconds=0.5) as (rig, dial):
        slow = await dial(LINE[:20])
        await Client(await dial(LINE, CONNECT)).next("CONNECTED")
        with caplog.at_level(logging.WARNING, "qmq.login"):
            assert await ended(slow) == b""

        assert "is not complete after" in caplog.text


async def test_limits_count_the_clients_and_not_the_proxy() -> None:
    rig_limits = {"connections_per_address_max": 1}
    async with served() as (rig, dial):
        rig.alive.session_parts.login_path.admission.change(rig.alive.settings.limits.replace(rig_limits))
        other = LINE.replace(b"203.0.113.7", b"203.0.113.8")
        await Client(await dial(LINE, CONNECT)).next("CONNECTED")
        await Client(await dial(other, CONNECT)).next("CONNECTED")

        assert b"too-many-connections" in await ended(await dial(LINE, CONNECT))


async def test_tls_begins_behind_the_header(papers: Papers) -> None:
    tls = papers.of("node").replace({"ca": None})
    async with served(tls=tls) as (rig, dial):
        plain = await dial(LINE)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(plain._socket))  # type: ignore[attr-defined]
        async with trio.SSLStream(stream, papers.trusting(), server_hostname="node", https_compatible=True) as secured:
            await secured.send_all(CONNECT)
            assert (await secured.receive_some(4096)).startswith(b"CONNECTED\n")

            assert addresses(rig) == {"203.0.113.7"}


@pytest.mark.parametrize(
    ("header", "said"), [(named(b"ann"), "CONNECTED"), (named(b"eve"), "ERROR"), (named(b""), "ERROR"), (LINE, "ERROR")]
)
async def test_a_proxy_that_has_checked_a_certificate_names_the_user(header: bytes, said: str) -> None:
    async with served(certificate_user="subject") as (rig, dial):
        client = Client(await dial(header, NAMELESS))

        assert (await client.any()).head.command == said
        assert [session.user for session in rig.alive.sessions.values()] == ["ann"] * (said == "CONNECTED")


def test_a_listener_behind_a_proxy_is_reached_from_other_machines() -> None:
    listener = ListenerSettings(address=Address(HOST, 1), proxied_from=(HOST,))

    assert not listener.serves_anonymous(has_users=False)
    with pytest.raises(ValueError, match="can be reached from other machines"):
        ListenerSettings(address=Address(HOST, 1), proxied_from=(HOST,), anonymous=True)


@pytest.mark.parametrize("wrong", ["proxy.example.org", "10.0.0.1/24", "", 7])
def test_a_proxy_is_named_by_its_address_or_network(wrong: object) -> None:
    with pytest.raises(ValueError, match="must be an IP address"):
        ListenerSettings(address=Address(HOST, 1), proxied_from=(wrong,))


@pytest.mark.parametrize("address", ["10.0.0.9", "::ffff:10.0.0.9", "2001:db8::9"])
def test_a_proxy_is_known_in_every_notation_of_its_address(address: str) -> None:
    listener = ListenerSettings(address=Address("::", 1), proxied_from=("10.0.0.0/24", "2001:db8::9"), insecure=True)

    assert listener.is_proxy(address)
    assert not listener.is_proxy("10.0.1.9")
