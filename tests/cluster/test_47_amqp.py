"""AMQP clients on three nodes of which one is killed: pika with confirms, and the page about Celery."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from ..support.cluster_mesh import ROOT, Cluster
from ..support.cluster_wait import eventually

PAGE = (ROOT / "docs/celery.md").read_text("utf-8")
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
DURABLE = pika.BasicProperties(delivery_mode=2, content_type="text/plain")

GOES_ON_SECONDS = 15.0
"""For a worker and a caller to find another node. Most of it is the start of the caller's Python."""


def port(mesh: Cluster, name: str) -> int:
    peer = mesh.fleet.peers.peer(name)
    assert peer is not None and peer.amqp is not None
    return peer.amqp.port


@contextlib.contextmanager
def channel(mesh: Cluster, name: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port(mesh, name)))
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def take(mesh: Cluster, name: str, queue: str, wanted: set[bytes]) -> list[tuple[bytes, bool]]:
    """Consume on one node until all of `wanted` have come, and acknowledge: bodies, and whether they came again."""
    found: list[tuple[bytes, bool]] = []
    until = time.monotonic() + 30
    with channel(mesh, name) as reader:
        reader.basic_qos(prefetch_count=20)
        for method, _, body in reader.consume(queue, inactivity_timeout=0.2):
            if method is not None:
                found.append((body, method.redelivered))
                reader.basic_ack(method.delivery_tag)
            if wanted <= {one for one, _ in found}:
                break
            assert time.monotonic() < until, f"missing: {sorted(wanted - {one for one, _ in found})[:5]}"
        reader.cancel()
    return found


def is_routed(publisher: Any) -> bool:
    """Whether this node has the binding by now."""
    try:
        publisher.basic_publish("news", "eu.x.y", b"routed", DURABLE, mandatory=True)
    except pika.exceptions.UnroutableError:
        return False
    return True


def test_what_is_declared_and_sent_on_any_node_is_consumed_on_another(mesh: Cluster) -> None:
    with channel(mesh, "a") as one, channel(mesh, "b") as other:
        other.confirm_delivery()
        for number in range(20):
            one.queue_declare(f"fresh.{number}", durable=True)
            other.basic_publish("", f"fresh.{number}", b"%d" % number, DURABLE, mandatory=True)
        one.exchange_declare("news", "topic")
        one.queue_bind("fresh.0", "news", "eu.#")
        eventually(lambda: is_routed(other), lambda: "b does not know the binding of a")

    for number in range(20):
        wanted = {b"%d" % number} | ({b"routed"} if number == 0 else set())
        take(mesh, "c", f"fresh.{number}", wanted)
    with channel(mesh, "b") as one:
        assert one.queue_declare("fresh.3", passive=True).method.message_count == 0


def test_what_was_confirmed_is_consumed_once_and_what_was_exclusive_is_free_when_a_node_is_killed(
    mesh: Cluster,
) -> None:
    sent: set[bytes] = set()
    with channel(mesh, "b") as publisher:
        publisher.queue_declare("jobs", durable=True)
    for name in ("a", "b", "c"):
        with channel(mesh, name) as publisher:
            publisher.confirm_delivery()
            for number in range(50):
                body = f"{name}-{number}".encode()
                publisher.basic_publish("", "jobs", body, DURABLE, mandatory=True)
                sent.add(body)

    owner = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port(mesh, "a")))
    owner.channel().queue_declare("mine", exclusive=True)
    mesh.kill("a")
    first = take(mesh, "b", "jobs", {body for body in sent if not body.startswith(b"a")})
    with channel(mesh, "b") as moved:
        eventually(lambda: is_declared(moved, "mine"), lambda: "the queue of a connection of a is locked")
    mesh.start("a")
    second = take(mesh, "c", "jobs", sent - {body for body, _ in first})

    assert {body for body, _ in first + second} == sent
    assert len(first + second) == len(sent)
    with pytest.raises(pika.exceptions.AMQPError):
        # Reads that its node is gone, and closes its sockets.
        owner.process_data_events(5)


def is_declared(on: Any, name: str) -> bool:
    """Whether this connection has declared an exclusive queue that another one had."""
    with on.connection.channel() as one:
        try:
            one.queue_declare(name, exclusive=True)
        except pika.exceptions.ChannelClosedByBroker as closed:
            assert closed.reply_code == 405
            return False
    return True


def test_a_reply_finds_its_requester_on_another_node(mesh: Cluster) -> None:
    with channel(mesh, "a") as asks, channel(mesh, "c") as answers:
        asks.queue_declare("rpc")
        replies: list[bytes] = []
        asks.basic_consume("amq.rabbitmq.reply-to", lambda *told: replies.append(told[3]), auto_ack=True)
        asks.basic_publish("", "rpc", b"2+2", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        for method, properties, _ in answers.consume("rpc"):
            answers.basic_publish("", properties.reply_to, b"4")
            answers.basic_ack(method.delivery_tag)
            break
        until = time.monotonic() + 10
        while not replies and time.monotonic() < until:
            asks.connection.process_data_events(0.1)
        assert replies == [b"4"]


@pytest.fixture
def celery(mesh: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The worker of the page, and the environment of its caller."""
    tasks, _ = PYTHON_BLOCKS
    for name, fixed in (("a", 61672), ("b", 61673), ("c", 61674)):
        tasks = tasks.replace(str(fixed), str(port(mesh, name)))
    (tmp_path / "tasks.py").write_text(tasks)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = COMMANDS[1].split()
    assert command[0] == "celery"
    with open(tmp_path / "worker.log", "wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield {**environment, "FOLDER": str(tmp_path)}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def call(environment: dict[str, str], script: str) -> list[str]:
    """What a caller prints."""
    folder = environment["FOLDER"]
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stderr}\n{(Path(folder) / 'worker.log').read_text()[-3000:]}"
    return done.stdout.split()


def test_the_page_about_celery_does_what_it_says_and_goes_on_when_a_node_is_killed(
    mesh: Cluster, celery: dict[str, str]
) -> None:
    script = PYTHON_BLOCKS[1]

    assert call(celery, script) == ["5", "2", "42"]
    mesh.kill("a")
    began = time.monotonic()
    assert call(celery, "from tasks import add\nprint(add.delay(1, 1).get(timeout=30))") == ["2"]
    assert time.monotonic() - began < GOES_ON_SECONDS
    inspect = "from tasks import app\nprint(len(app.control.inspect(timeout=3).ping() or {}))"
    assert call(celery, inspect) == ["1"]
