"""HTTP clients for the rigs of whole nodes: requests, responses and streams of events over one pipe."""

import base64
import json
from typing import Any, NamedTuple

import trio

from qmq.config import Address
from qmq.environment import Pipe
from qmq.protocols.http.listener import HttpListenerSettings
from tests.node.mesh_rig import MeshRig, host_of
from tests.node.rig import ANSWER_SECONDS, HOST, Rig

WEB_PORT = 61680
JSON = "application/json"
RAW = "application/octet-stream"


class Response(NamedTuple):
    """One response. `headers` has lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def facts(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """That of an error."""
        return str(self.facts["code"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The messages that were sent or received."""
        assert self.status in (200, 201), (self.status, self.body)
        rows: list[dict[str, Any]] = self.facts["messages"]
        return rows

    @property
    def results(self) -> list[str]:
        """Those of a request about deliveries."""
        assert self.status == 200, (self.status, self.body)
        return [row["result"] for row in self.facts["acks"]]


class Event(NamedTuple):
    """One server-sent event, as a browser has it."""

    kind: str
    id: str
    facts: Any


class WebClient:
    """One connection to a web port."""

    def __init__(self, pipe: Pipe, user: str | None = None) -> None:
        self.pipe = pipe
        self.user = user
        self.ended = False
        self._buffer = bytearray()
        self.last_id = ""

    # Requests

    def bytes_of(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """A request. Names of headers have underscores for hyphens."""
        lines = {"host": f"localhost:{WEB_PORT}"}
        if method == "POST":
            is_raw = path.endswith("/messages") and not body.startswith(b"{")
            lines |= {"content-type": RAW if is_raw else JSON, "content-length": str(len(body))}
        if self.user is not None:
            lines["authorization"] = basic(self.user)
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return head.encode() + b"\r\n" + body

    async def write(self, data: bytes) -> None:
        await self.pipe.send_all(data)

    async def ask(self, method: str, path: str, body: object = b"", **headers: str) -> Response:
        """The response to one request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.write(self.bytes_of(method, path, data, **headers))
        return await self.response(method)

    async def post(self, path: str, body: object = b"", **headers: str) -> Response:
        return await self.ask("POST", path, body, **headers)

    async def get(self, path: str, **headers: str) -> Response:
        return await self.ask("GET", path, **headers)

    async def send(self, path: str, body: bytes, **headers: str) -> Response:
        """Send one message; its body is sent as it is."""
        return await self.post(f"{path}/messages", body, **{"content_type": RAW, **headers})

    async def receive(self, queue: str, count: int = 1, wait: float = 5, **more: Any) -> list[dict[str, Any]]:
        wanted = {"max": count, "wait_seconds": wait, **more}
        return (await self.post(f"/v1/queues/{queue}/receive", wanted)).rows

    async def settle(self, *tokens: str, action: str = "ack", **more: Any) -> list[str]:
        """The results of one action with these tokens."""
        acks = [{"ack_token": token, "action": action, **more} for token in tokens]
        return (await self.post("/v1/acks", {"acks": acks})).results

    # Responses

    async def _read(self) -> None:
        data = await self.pipe.receive_some(65536)
        self.ended = not data
        self._buffer += data

    async def head(self) -> tuple[int, dict[str, str]]:
        with trio.fail_after(ANSWER_SECONDS * 3):
            while b"\r\n\r\n" not in self._buffer:
                assert not self.ended, f"the node closed the connection after {bytes(self._buffer)!r}"
                await self._read()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer[:] = rest
        first, *lines = head.decode().split("\r\n")
        pairs = [line.partition(": ") for line in lines]
        return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}

    async def response(self, method: str = "GET") -> Response:
        status, headers = await self.head()
        size = 0 if method == "HEAD" else int(headers.get("content-length", "0"))
        with trio.fail_after(ANSWER_SECONDS):
            while len(self._buffer) < size:
                assert not self.ended
                await self._read()
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        return Response(status, headers, body)

    async def until_closed(self) -> bytes:
        """Everything that still comes."""
        with trio.fail_after(ANSWER_SECONDS):
            while not self.ended:
                await self._read()
        self.pipe.close()
        return bytes(self._buffer)

    # Events

    async def follow(self, path: str, **headers: str) -> "WebClient":
        """Begin a stream of events."""
        await self.write(self.bytes_of("GET", path, **headers))
        status, said = await self.head()
        assert status == 200, (status, await self.until_closed())
        assert said["content-type"] == "text/event-stream"
        return self

    async def event(self, within: float = ANSWER_SECONDS) -> Event:
        """The next event; comments are skipped."""
        with trio.fail_after(within):
            while True:
                while b"\n\n" not in self._buffer:
                    assert not self.ended, "the stream has ended"
                    await self._read()
                text, _, rest = bytes(self._buffer).partition(b"\n\n")
                self._buffer[:] = rest
                fields = dict(line.split(": ", 1) for line in text.decode().split("\n") if ": " in line)
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    return Event(fields.get("event", "message"), self.last_id, json.loads(fields["data"]))

    async def events(self, count: int) -> list[str]:
        """The bodies of the next events."""
        return [(await self.event()).facts["body"] for _ in range(count)]


def basic(user: str, passcode: str = "secret") -> str:
    return "Basic " + base64.b64encode(f"{user}:{passcode}".encode()).decode()


def web_rig(**settings: Any) -> Rig:
    """A node with a web port."""
    listener = {"address": Address(HOST, WEB_PORT), **settings.pop("listener", {})}
    return Rig(http=(HttpListenerSettings(**listener),), **settings)


async def dial(rig: Rig, host: str = "10.0.0.1", user: str | None = None) -> WebClient:
    """A connection to the web port of the node."""
    return WebClient(await rig.fabric.dial(host, HOST, WEB_PORT), user)


async def dial_node(rig: MeshRig, name: str, user: str | None = None) -> WebClient:
    """A connection to the web port of one node of a mesh."""
    return WebClient(await rig.fabric.dial("10.0.0.1", host_of(rig.names.index(name)), WEB_PORT), user)


def batch(*bodies: str, **options: Any) -> dict[str, Any]:
    """The body of a request that sends these bodies, all with the same options."""
    return {"messages": [{"body": body, **options} for body in bodies]}
