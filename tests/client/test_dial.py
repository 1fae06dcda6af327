"""The client over real sockets: plain and TLS, and what a certificate must say."""

import ssl

import pytest
import trio
import trustme

import qmq.client
from qmq.client.on_trio import dial
from qmq.errors import TlsFailed
from tests.client.rig import client_context, doorway, running, server_context


async def test_a_message_travels_over_tcp() -> None:
    async with running() as mesh, doorway(mesh, None) as address, qmq.client.connect(address) as client:
        async with client.subscribe("/queue/q") as messages:
            await client.send("/queue/q", bytes(200_000))

            async with await anext(messages) as message:
                assert message.body == bytes(200_000)


async def test_a_message_travels_over_tls() -> None:
    authority = trustme.CA()
    async with running() as mesh, doorway(mesh, server_context(authority, "127.0.0.1")) as address:
        async with qmq.client.connect([address], tls=client_context(authority)) as client:
            async with client.subscribe("/queue/q") as messages:
                await client.send("/queue/q", bytes(200_000))

                async with await anext(messages) as message:
                    assert message.body == bytes(200_000)


@pytest.mark.parametrize("known", [True, False])
async def test_a_certificate_of_another_name_or_another_authority_is_an_error(known: bool) -> None:
    authority, other = trustme.CA(), trustme.CA()
    named = server_context(authority, "elsewhere.example" if known else "127.0.0.1")
    async with running() as mesh, doorway(mesh, named) as address:
        host, _, port = address.rpartition(":")
        with pytest.raises(TlsFailed, match="its certificate is not trusted"):
            await dial(host, int(port), client_context(authority if known else other), host)


async def test_an_address_without_a_listener_is_an_os_error() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()

    with pytest.raises(OSError):
        await dial("127.0.0.1", port, None, "127.0.0.1")


async def test_a_cancelled_handshake_leaves_no_socket_open() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:

        async def say_nothing_until_the_other_side_is_gone() -> None:
            stream = await listener.accept()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                async with stream:
                    while await stream.receive_some():
                        pass

        nursery.start_soon(say_nothing_until_the_other_side_is_gone)
        port = listener.socket.getsockname()[1]
        await dial("127.0.0.1", port, ssl.create_default_context(), "127.0.0.1")
    await listener.aclose()
