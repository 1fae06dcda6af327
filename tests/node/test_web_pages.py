"""What a web page can make a browser send to each listener: requests of HTTP, with commands in their bodies."""

import pytest
import trio
from trio.testing import MockClock

from qmq.config import Address
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from qmq.protocols.http.listener import HttpListenerSettings
from tests.node.mesh_rig import MeshRig, host_of
from tests.node.rig import ANSWER_SECONDS, HOST, PORT, Rig
from tests.protocols.amqp.rig import AMQP_PORT
from tests.protocols.amqp.rig import LISTENER as AMQP_LISTENER
from tests.protocols.beanstalk.rig import BEANSTALK_PORT
from tests.protocols.http.rig import WEB_PORT, dial
from tests.support.depths import depths

ADDRESS = "127.0.0.1"

STOMP = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0SEND\ndestination:/queue/pwned\n\nevil\0"
BEANSTALK = b"use pwned\r\nput 0 0 60 4\r\nevil\r\n"
AMQP = b"AMQP\0\0\x09\x01"
HTTP = b"POST /v1/queues/pwned/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\nevil"
CLIENT_HELLO = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(range(32, 64)) + b"\x20"

PORTS = {"stomp": PORT, "beanstalkd": BEANSTALK_PORT, "amqp": AMQP_PORT, "http": WEB_PORT}
LISTENERS = {
    "beanstalk": (BeanstalkListenerSettings(address=Address(HOST, BEANSTALK_PORT)),),
    "amqp": (AMQP_LISTENER,),
    "http": (HttpListenerSettings(address=Address(HOST, WEB_PORT)),),
}
PATHS = {"short": "/", "of a message": "/v1/queues/pwned/messages", "longer than a line of beanstalkd": f"/{'a' * 400}"}


def page_request(body: bytes, path: str, method: str = "POST") -> bytes:
    """What a browser sends for `fetch(…, {mode: "no-cors"})` in a page of another site."""
    lines = (
        f"{method} {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: keep-alive\r\nContent-Length: {len(body)}\r\n"
        "User-Agent: Mozilla/5.0\r\nContent-Type: text/plain;charset=UTF-8\r\nAccept: */*\r\n"
        "Origin: http://evil.test\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n\r\n"
    )
    return lines.encode() + body


async def answer_of(rig: Rig | MeshRig, host: str, port: int, data: bytes) -> bytes:
    """What the node answers until it ends the connection."""
    pipe = await rig.fabric.dial("10.0.0.1", host, port)
    answer = b""
    with trio.fail_after(ANSWER_SECONDS):
        await pipe.send_all(data)
        while received := await pipe.receive_some(65536):
            answer += received
    pipe.close()
    return answer


@pytest.mark.parametrize("body", [STOMP, BEANSTALK, AMQP, HTTP], ids=["stomp", "beanstalkd", "amqp", "http"])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("port", PORTS.values(), ids=PORTS)
async def test_nothing_in_the_body_of_a_page_is_obeyed(
    port: int, path: str, body: bytes, autojump_clock: MockClock
) -> None:
    async with Rig(**LISTENERS).run() as rig:
        answer = await answer_of(rig, HOST, port, page_request(body, path))

        assert not depths(rig.alive)
        assert b"INSERTED" not in answer and b"CONNECTED" not in answer and b"201" not in answer


@pytest.mark.parametrize("body", [STOMP, BEANSTALK], ids=["stomp", "beanstalkd"])
async def test_nothing_in_the_body_of_a_page_is_obeyed_at_the_listener_of_peers(
    body: bytes, autojump_clock: MockClock
) -> None:
    async with MeshRig().run() as rig:
        peer = rig.peers_file(*rig.names).peer("a")
        assert peer is not None
        answer = await answer_of(rig, host_of(0), peer.mesh.port, page_request(body, "/"))

        assert not depths(rig.nodes["a"])
        assert b"CONNECTED" not in answer


@pytest.mark.parametrize(
    "before", [b"GET / HTTP/1.1", b"hello", b"x" * 300, b"POST x", b"stats / HTTP/1.1", b"put 1 2 3 x"]
)
async def test_beanstalkd_obeys_nothing_behind_a_first_line_that_is_no_command(
    before: bytes, autojump_clock: MockClock
) -> None:
    async with Rig(**LISTENERS).run() as rig:
        answer = await answer_of(rig, HOST, BEANSTALK_PORT, before + b"\r\n" + BEANSTALK)

        assert answer in (b"UNKNOWN_COMMAND\r\n", b"BAD_FORMAT\r\n")
        assert not depths(rig.alive)


@pytest.mark.parametrize("body", [STOMP, BEANSTALK, AMQP, HTTP], ids=["stomp", "beanstalkd", "amqp", "http"])
@pytest.mark.parametrize("port", PORTS.values(), ids=PORTS)
async def test_nothing_behind_the_beginning_of_a_tls_client_hello_is_obeyed(
    port: int, body: bytes, autojump_clock: MockClock
) -> None:
    """A page chooses the name of its host, the ticket of its session, and other parts of it."""
    async with Rig(**LISTENERS).run() as rig:
        await answer_of(rig, HOST, port, CLIENT_HELLO + b"\r\n" + body)

        assert not depths(rig.alive)


async def test_beanstalkd_obeys_nothing_behind_a_request_line(autojump_clock: MockClock) -> None:
    async with Rig(**LISTENERS).run() as rig:
        answer = await answer_of(rig, HOST, BEANSTALK_PORT, b"use a\r\n" + page_request(BEANSTALK, "/"))

        assert answer == b"USING a\r\nUNKNOWN_COMMAND\r\n"
        assert not depths(rig.alive)


@pytest.mark.parametrize(
    ("path", "is_open"),
    [
        ("/v1/control/definitions/export", False),
        ("/v1/control/list/queue", False),
        ("/metrics", False),
        ("/api/queues", False),
        ("/v1/topics/t/events", False),
        ("/", True),
        ("/qmq.js", True),
        ("/livez", True),
    ],
)
async def test_a_page_of_another_site_makes_the_node_do_nothing_by_get(
    path: str, is_open: bool, autojump_clock: MockClock
) -> None:
    async with Rig(**LISTENERS).run() as rig:
        client = await dial(rig)

        other = await client.get(path, Sec_Fetch_Site="cross-site")

        assert (other.status, other.headers["cross-origin-resource-policy"]) == (200 if is_open else 403, "same-origin")
        if not is_open:
            assert other.code == "bad-origin"


async def test_a_page_of_another_site_cannot_embed_what_the_node_responds(autojump_clock: MockClock) -> None:
    async with Rig(**LISTENERS).run() as rig:
        client = await dial(rig)

        for path in ("/v1/control/list/queue", "/metrics", "/api/overview", "/v1/openapi.json", "/nothing"):
            response = await client.get(path)
            assert response.headers["cross-origin-resource-policy"] == "same-origin", path
