"""HTTP clients of the standard library use any of three nodes, and go on when one is killed."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.cluster_mesh import QUICK_TAKEOVER, Cluster
from tests.support.cluster_wait import PATIENCE_SECONDS, eventually

Q = "/v1/queues/jobs"
F = "/v1/fanouts/news"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with web ports, which take over after 3 s."""
    with Cluster(tmp_path_factory.mktemp("web"), node_files=dict.fromkeys("abc", QUICK_TAKEOVER)) as made:
        yield made


class Web:
    """A connection to one node, closed at the end of `closing`."""

    def __init__(self, mesh: Cluster, name: str, closing: ExitStack) -> None:
        self._connection = http.client.HTTPConnection(*mesh.web_address(name), timeout=PATIENCE_SECONDS)
        closing.callback(self._connection.close)

    def post(self, path: str, facts: object, status: int) -> Any:
        """The facts in a response of this status."""
        self._connection.request("POST", path, json.dumps(facts), {"content-type": "application/json"})
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == status, f"{response.status} {body!r}"
        return json.loads(body)

    def send(self, path: str, *bodies: str, **options: Any) -> list[dict[str, Any]]:
        batch = {"messages": [{"body": body, **options} for body in bodies]}
        rows: list[dict[str, Any]] = self.post(f"{path}/messages", batch, 201)["messages"]
        return rows

    def receive(self, count: int, **more: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.post(f"{Q}/receive", {"max": count, "wait_seconds": 1, **more}, 200)[
            "messages"
        ]
        return rows

    def settle(self, messages: list[dict[str, Any]], action: str = "ack") -> list[str]:
        acks = [{"ack_token": one["ack_token"], "action": action} for one in messages]
        return [row["result"] for row in self.post("/v1/acks", {"acks": acks}, 200)["acks"]]


class Stream:
    """A stream of events; `last_id` is where another one continues."""

    def __init__(self, mesh: Cluster, name: str, closing: ExitStack, last_id: str | None = None) -> None:
        connection = http.client.HTTPConnection(*mesh.web_address(name), timeout=PATIENCE_SECONDS)
        closing.callback(connection.close)
        connection.request("GET", f"{F}/events", headers={} if last_id is None else {"last-event-id": last_id})
        self._response = connection.getresponse()
        closing.callback(self._response.close)
        assert self._response.status == 200
        self.last_id = last_id

    def read(self, count: int) -> list[str]:
        """The bodies of the next events."""
        bodies: list[str] = []
        while len(bodies) < count:
            line = self._response.readline().decode().rstrip("\n")
            if line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                bodies.append(json.loads(line.removeprefix("data: "))["body"])
        return bodies


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_clients_send_receive_and_follow_while_a_node_is_killed(mesh: Cluster, closing: ExitStack) -> None:
    at = {name: Web(mesh, name, closing) for name in "abc"}
    stream = Stream(mesh, "a", closing)
    at["a"].send(Q, *map(str, range(60)))
    # A response waits for one second; on a busy machine it may say that there is one copy so far.
    eventually(lambda: at["a"].send("/v1/queues/other", "x")[0]["copies"] == 2, "there is never a second copy")
    at["b"].send(F, *map(str, range(30)))
    seen = stream.read(20)
    # Received at one node, acknowledged at another.
    first = at["a"].receive(20)
    assert at["b"].settle(first[:10]) == ["acknowledged"] * 10
    assert at["c"].settle(first[10:15], "extend") == ["extended"] * 5
    done = {one["body"] for one in first[:10]}
    mesh.wait_until_same()

    mesh.kill("a")
    assert at["b"].settle(first[10:]) == ["unreachable"] * 10
    at["c"].send(F, *map(str, range(30, 60)))
    resumed = Stream(mesh, "c", closing, stream.last_id)
    seen += resumed.read(40)
    assert seen == list(map(str, range(60))), "the stream has a gap or repeats an event"
    retried = at["b"].send(Q, "60", dedup_id="60")
    again = at["c"].send(Q, "60", dedup_id="60", retry=True)
    assert (retried[0]["duplicate"], again[0]["duplicate"]) == (False, True)

    def drained() -> bool:
        for node in "bc":
            if messages := at[node].receive(50):
                other = at["c" if node == "b" else "b"]
                assert set(other.settle(messages)) == {"acknowledged"}
                done.update(one["body"] for one in messages)
        return len(done) == 61

    eventually(drained, lambda: f"{len(done)} of 61 messages were received")
    mesh.start("a")
    mesh.wait_for_links()
    assert Web(mesh, "a", closing).receive(10) == []
    assert set(at["b"].settle(first[10:])) == {"expired"}


def test_a_client_of_the_standard_library_speaks_stomp_by_long_poll(mesh: Cluster, closing: ExitStack) -> None:
    sends, receives = (http.client.HTTPConnection(*mesh.web_address("a"), timeout=PATIENCE_SECONDS) for _ in range(2))
    closing.callback(sends.close)
    closing.callback(receives.close)

    def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
        connection.request(method, f"/v1/stomp{path}", body, {"content-type": "application/octet-stream"})
        response = connection.getresponse()
        data = response.read()
        assert response.status in (200, 201, 204), (response.status, data)
        return data

    at = f"/{json.loads(ask(sends, 'POST', ''))['session']}"
    ask(sends, "POST", at, b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
    ask(sends, "POST", at, b"SUBSCRIBE\nid:1\ndestination:/queue/polled\nack:client-individual\n\n\0")
    bodies = [b"%d" % number for number in range(100)]
    mesh.client("b").publish("/queue/polled", *bodies)
    got = b""
    while got.count(b"\0") < 101:
        got += ask(receives, "GET", f"{at}?wait_seconds=20")
    assert got.startswith(b"CONNECTED\n")
    assert [frame.rpartition(b"\n\n")[2] for frame in got.split(b"\0")[1:-1]] == bodies

    ask(sends, "DELETE", at)
    again = mesh.client("c").consume("/queue/polled")
    eventually(lambda: len(again) == 100, lambda: f"c has {len(again)} of 100")
    assert all(message.is_redelivered for message in again)
