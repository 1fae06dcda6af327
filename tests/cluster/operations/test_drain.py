"""Three nodes are drained and restarted one after the other, under load: each client moves, and nothing is lost.

Each client has the addresses of all nodes. It sends a message to a queue of its own, waits until that is confirmed,
takes it and settles it, and so on. The longest time between two such rounds is its time without service, which is
printed for each protocol.
"""

import http.client
import json
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import greenstalk
import pika
import pytest
from click.testing import CliRunner

import qmq.client.blocking
from qmq.cli import main
from qmq.errors import ClientError
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import PATIENCE_SECONDS, eventually

DURABLE = pika.BasicProperties(delivery_mode=2)
CLIENTS_OF_EACH = 2
ROUNDS_BETWEEN = 10


class LeftError(Exception):
    """The node serves this client no more."""


ENDS = (
    LeftError,
    LostError,
    OSError,
    http.client.HTTPException,
    pika.exceptions.AMQPError,
    greenstalk.Error,
    ClientError,
)
"""How a connection ends; the client goes to the next node then."""


class Session(Protocol):
    """One connection of a client, with a queue of its own."""

    def send(self, body: bytes) -> None:
        """Return when the message is confirmed."""

    def take(self) -> bytes:
        """The next message, settled."""

    def close(self) -> None: ...


class Stomp:
    def __init__(self, address: tuple[str, int], queue: str) -> None:
        self._queue = f"/queue/{queue}"
        self._client = Client(address)
        self._messages = self._client.subscribe(self._queue, ack="client-individual", headers={"prefetch-count": "1"})

    def send(self, body: bytes) -> None:
        self._client.publish(self._queue, body)

    def take(self) -> bytes:
        while not self._messages:
            if self._client.ended.wait(0.001):
                raise LeftError
        message = self._messages.pop(0)
        self._client.wait_receipts([self._client.acknowledge(message, receipt=True)])
        return message.body

    def close(self) -> None:
        self._client.drop()


class Amqp:
    def __init__(self, address: tuple[str, int], queue: str) -> None:
        self._queue = queue
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(*address))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.queue_declare(queue, durable=True)
        self._channel.basic_qos(prefetch_count=1)
        self._coming = self._channel.consume(queue)

    def send(self, body: bytes) -> None:
        self._channel.basic_publish("", self._queue, body, DURABLE)

    def take(self) -> bytes:
        method, _, body = next(self._coming)
        self._channel.basic_ack(method.delivery_tag)
        return bytes(body)

    def close(self) -> None:
        self._connection.close()


class Beanstalk:
    def __init__(self, address: tuple[str, int], queue: str) -> None:
        self._client = greenstalk.Client(address, use=queue, watch=queue, encoding=None)

    def send(self, body: bytes) -> None:
        self._client.put(body)

    def take(self) -> bytes:
        job = self._client.reserve()
        self._client.delete(job)
        assert isinstance(job.body, bytes)
        return job.body

    def close(self) -> None:
        self._client.close()


class Http:
    def __init__(self, address: tuple[str, int], queue: str) -> None:
        self._path = f"/v1/queues/{queue}"
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)

    def _post(self, path: str, facts: object) -> Any:
        self._connection.request("POST", path, json.dumps(facts), {"content-type": "application/json"})
        response = self._connection.getresponse()
        body = json.loads(response.read())
        if response.status == 503:
            raise LeftError(body)
        assert response.status in (200, 201), body
        return body

    def send(self, body: bytes) -> None:
        self._post(f"{self._path}/messages", {"messages": [{"body": body.decode()}]})

    def take(self) -> bytes:
        while not (found := self._post(f"{self._path}/receive", {"max": 1, "wait_seconds": 10})["messages"]):
            pass
        acks = [{"ack_token": found[0]["ack_token"]}]
        assert self._post("/v1/acks", {"acks": acks})["acks"][0]["result"] == "acknowledged"
        return str(found[0]["body"]).encode()

    def close(self) -> None:
        self._connection.close()


class Own:
    """The client of this project, which goes to another node by itself."""

    def __init__(self, addresses: Sequence[str], queue: str) -> None:
        self._queue = f"/queue/{queue}"
        self._opened = qmq.client.blocking.connect(addresses)
        self.client = self._opened.__enter__()
        self._reading = self.client.subscribe(self._queue, prefetch=1)
        self._messages = self._reading.__enter__()

    def send(self, body: bytes) -> None:
        self.client.send(self._queue, body)

    def take(self) -> bytes:
        message = self._messages.receive()
        message.ack()
        return message.body

    def close(self) -> None:
        self._reading.__exit__(None, None, None)
        self._opened.__exit__(None, None, None)


class Worker(threading.Thread):
    """One client: `begin` opens a connection to its present node."""

    def __init__(self, protocol: str, number: int, begin: Callable[[int, str], Session]) -> None:
        super().__init__(daemon=True)
        self.protocol = protocol
        self._number = number
        self._begin = begin
        self.queue = f"rolled.{protocol}.{number}"
        self.confirmed: list[bytes] = []
        self.taken: list[bytes] = []
        self.connections = 0
        self.longest = 0.0
        self.failure = ""
        self._at = 0.0
        self._enough = False

    def run(self) -> None:
        place = self._number
        try:
            while not self._enough:
                session: Session | None = None
                try:
                    session = self._begin(place, self.queue)
                    self.connections += 1
                    while not self._enough:
                        self._round(session)
                except ENDS:
                    place += 1
                finally:
                    if session is not None:
                        _close(session)
        except Exception:
            self.failure = traceback.format_exc()

    def _round(self, session: Session) -> None:
        if not set(self.confirmed) - set(self.taken):
            # A body of its own for each attempt: what is not confirmed may be in the queue all the same.
            body = f"{len(self.confirmed)} of connection {self.connections}".encode()
            session.send(body)
            self.confirmed.append(body)
        self.taken.append(session.take())
        now = time.monotonic()
        self.longest = max(self.longest, now - self._at if self._at else 0.0)
        self._at = now

    def enough(self) -> None:
        self._enough = True


def go_on(workers: Sequence[Worker]) -> None:
    """Wait until each of them has done more rounds."""
    wanted = {one: len(one.taken) + ROUNDS_BETWEEN for one in workers}

    def late() -> list[str]:
        return [f"{one.queue}: {len(one.taken)}" for one in workers if len(one.taken) < wanted[one]]

    eventually(lambda: not late() or any(one.failure for one in workers), lambda: f"these stand still: {late()}")
    assert not [one.failure for one in workers if one.failure]


def _close(session: Session) -> None:
    try:
        session.close()
    except ENDS:
        pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("drain"), node_file=PATIENT_NODE_FILE) as made:
        yield made


def workers(mesh: Cluster) -> list[Worker]:
    def at(address: Callable[[str], tuple[str, int]], session: Callable[..., Session]) -> Callable[..., Session]:
        return lambda place, queue: session(address(mesh.names[place % 3]), queue)

    def own(place: int, queue: str) -> Session:
        turned = mesh.names[place % 3 :] + mesh.names[: place % 3]
        return Own([mesh.at(name) for name in turned], queue)

    begins = {
        "stomp": at(mesh.address, Stomp),
        "amqp": at(lambda name: ("127.0.0.1", mesh.amqp_port(name)), Amqp),
        "beanstalk": at(mesh.beanstalk_address, Beanstalk),
        "http": at(mesh.web_address, Http),
        "qmq.client": own,
    }
    return [Worker(protocol, number, one) for protocol, one in begins.items() for number in range(CLIENTS_OF_EACH)]


def run(mesh: Cluster, *words: str) -> str:
    result = CliRunner().invoke(main, [*words, "--at", mesh.at(mesh.names[0]), "--at", mesh.at(mesh.names[1])])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.timeout(300)
def test_a_rolling_restart_loses_nothing_and_each_client_moves(
    mesh: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = workers(mesh)
    for one in loads:
        one.start()
    go_on(loads)

    for name in mesh.names:
        assert f"{name} is drained; 0 connections" in run(mesh, "drain", name, "--reason", "upgrade")
        go_on(loads)
        assert mesh.stop(name) == 0
        mesh.start(name)
        mesh.make_healthy()
        go_on(loads)

    for one in loads:
        one.enough()
    for one in loads:
        one.join(PATIENCE_SECONDS)
        assert not one.failure, one.failure
        assert set(one.confirmed) <= set(one.taken), f"{one.protocol}: lost"
        assert not [body for body, times in Counter(one.taken).items() if times > 1], f"{one.protocol}: twice"
    with capsys.disabled():
        print()
        for protocol in dict.fromkeys(one.protocol for one in loads):
            those = [one for one in loads if one.protocol == protocol]
            rounds, longest = sum(len(one.taken) for one in those), max(one.longest for one in those)
            print(f"{protocol:12} {rounds:6} rounds, {longest:5.2f} s without service at most")


def test_a_drained_node_serves_again_without_a_restart(mesh: Cluster) -> None:
    run(mesh, "drain", "c")
    with pytest.raises(LostError):
        mesh.client("c")

    assert "c is serving" in run(mesh, "undrain", "c")

    mesh.client("c").publish("/queue/again", b"one")
