"""From three empty directories to a mesh that is watched, restarted under load, restored elsewhere and repaired.

An operator has at most 25 commands for it, all from the pages. They run here as they are written, with Prometheus
itself and its rules as `qmq init` writes them. What applications do meanwhile is done by `qmq.client`.
"""

import json
import shutil
import ssl
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

import qmq.client.blocking
from qmq.client.blocking import BlockingConnecting
from tests.support.cluster_wait import PATIENCE_SECONDS, eventually
from tests.support.page_hosts import PageHosts, section, typed

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="prometheus is not installed (make deploy-test)"
)

FIRST = "first-mesh.md"
BEGIN = [section(FIRST, name) for name in ("Write the files", "Start", "Users")]
WATCH = section(FIRST, "Metrics and alerts")
RESTART = section(FIRST, "Upgrade")
RESTORE = section(FIRST, "Back up, and restore elsewhere")
REPAIR = [section("howto-poisoned-queue.md", step) for step in ("2. ", "4. ", "6. ")]
COMMANDS_MAX = 25

OLD = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
NEW = ("10.0.1.1", "10.0.1.2", "10.0.1.3")


def client(machines: PageHosts, folder: str, hosts: tuple[str, ...]) -> BlockingConnecting:
    """Of an application that knows all nodes of a mesh, and its authority."""
    tls = ssl.create_default_context(cafile=machines.operator / folder / "a" / "ca.pem")
    addresses = [machines.address(host) for host in hosts]
    return qmq.client.blocking.connect(addresses, login="app", passcode="password of the application", tls=tls)


def taken(machines: PageHosts, folder: str, hosts: tuple[str, ...], queue: str, count: int) -> list[bytes]:
    """So many messages of the queue, settled."""
    found: list[bytes] = []
    with client(machines, folder, hosts) as reader, reader.subscribe(queue, prefetch=10) as messages:
        while len(found) < count:
            with messages.receive(timeout_seconds=PATIENCE_SECONDS) as message:
                found.append(message.body)
    return found


class Load:
    """A thread that sends numbered messages, and one that takes them, until the end of the `with`."""

    def __init__(self, machines: PageHosts) -> None:
        self._machines = machines
        self._enough = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[work], daemon=True) for work in (self._send, self._take)
        ]
        self.sent = 0
        self.taken: list[int] = []
        self.failure = ""

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _run(self, work: Callable[[qmq.client.blocking.Client], None]) -> None:
        try:
            with client(self._machines, "mesh", OLD) as connected:
                work(connected)
        except Exception:
            self.failure += traceback.format_exc()

    def _send(self, sender: qmq.client.blocking.Client) -> None:
        while not self._enough.is_set():
            sender.send("/queue/load", str(self.sent).encode())
            self.sent += 1

    def _take(self, taker: qmq.client.blocking.Client) -> None:
        with taker.subscribe("/queue/load", prefetch=10) as messages:
            while not self._enough.is_set() or len(self.taken) < self.sent:
                with suppress(TimeoutError), messages.receive(timeout_seconds=1.0) as message:
                    self.taken.append(int(message.body))


def scraped(machines: PageHosts) -> int:
    """How many nodes Prometheus has reached at its last attempt."""
    query = quote('up{job="qmq"} == 1')
    with urlopen(f"http://127.0.0.1:{machines.prometheus_port}/api/v1/query?query={query}", timeout=10) as reply:
        return len(json.load(reply)["data"]["result"])


def test_the_hour_has_at_most_25_commands() -> None:
    commands = typed("".join([*BEGIN, WATCH, RESTART, RESTORE, *REPAIR]))

    assert len(commands) <= COMMANDS_MAX, "\n".join(commands)


@pytest.mark.timeout(1200)
def test_an_operator_needs_no_more_than_the_pages(tmp_path: Path) -> None:
    with PageHosts(tmp_path) as machines:
        machines.run(BEGIN)
        assert "QmqNodeDown" in machines.run([WATCH])
        eventually(lambda: scraped(machines) == 3, lambda: f"{scraped(machines)} of 3 nodes are scraped")

        with Load(machines) as load:
            eventually(lambda: len(load.taken) > 10, lambda: load.failure)
            machines.run([RESTART])
            moved = len(load.taken)
            eventually(lambda: len(load.taken) > moved + 10, lambda: load.failure)
        assert not load.failure
        assert sorted(load.taken) == list(range(load.sent))

        kept = [f"kept {number}".encode() for number in range(50)]
        with client(machines, "mesh", OLD) as sender:
            for body in kept:
                sender.send("/queue/kept", body)
        machines.run([RESTORE])
        assert sorted(taken(machines, "elsewhere", NEW, "/queue/kept", 50)) == sorted(kept)

        with client(machines, "mesh", OLD) as application:
            for number in range(30):
                version = "7" if number % 3 == 0 else "6"
                application.send("/queue/orders", str(number).encode(), {"version": version})
            with application.subscribe("/queue/orders", prefetch=1) as orders:
                for _ in range(6):  # No attempt of this consumer succeeds.
                    orders.receive(timeout_seconds=PATIENCE_SECONDS).nack(requeue=False)
        machines.run(REPAIR)
        # Dead letters of version 7 are back in their queue; those that waited are out of the way.
        good = taken(machines, "mesh", OLD, "/queue/orders", 22)
        bad = taken(machines, "mesh", OLD, "/queue/quarantine", 8)
        assert sorted(map(int, good + bad)) == list(range(30))
        assert {int(body) % 3 for body in bad} == {0}
