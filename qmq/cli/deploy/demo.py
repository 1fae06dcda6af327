"""`qmq demo`: three nodes in a temporary directory, with traffic. One is killed and comes back, and nothing is lost.

The sender and the consumer are programs as a user would write them, on the blocking client. Each is a thread with a
connection of its own, to whatever node responds.
"""

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from ...client.blocking import connect
from ..launch import LocalMesh
from ..mesh import stop_signals
from ..output import counted
from ..throwaway import throwaway_mesh

QUEUE: Final = "/queue/demo"
SEND_SECONDS: Final = 0.02
"""Between a confirmation and the next message."""
RECEIVE_SECONDS: Final = 0.5
"""How often an idle consumer looks whether it should stop."""
LAST_SECONDS: Final = 30.0
"""At the end, for what is confirmed and not yet received."""
VICTIM: Final = "a"
QUICK_TAKEOVER: Final = """\
[mesh]
beat_seconds = 0.5
suspicion_seconds = 2
takeover_after_seconds = 3
"""


class DemoPrograms:
    """Sends numbers and receives them, from `with` until `stop`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._lock = threading.Lock()
        self._sending, self._receiving, self._all_received = threading.Event(), threading.Event(), threading.Event()
        self.sent = self.received = self.again = 0
        self.missing: set[int] = set()
        """Sent, and not received. So many are in flight, or lost."""
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._send, self._receive)]

    def __enter__(self) -> "DemoPrograms":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.set()
        self._receiving.set()
        for thread in self._threads:
            thread.join(LAST_SECONDS)

    def stop(self) -> None:
        """Stop sending, and wait for the last messages, so long at most."""
        self._sending.set()
        self._threads[0].join(LAST_SECONDS)
        with self._lock:
            is_over = not self.missing
        if not is_over:
            self._all_received.wait(LAST_SECONDS)

    def line(self) -> str:
        """The state, for people."""
        with self._lock:
            waiting = len(self.missing)
        return f"sent and confirmed {self.sent:6,}   received {self.received:6,}   in flight {waiting:4,}"

    def _send(self) -> None:
        with connect(self._addresses) as client:
            while not self._sending.wait(SEND_SECONDS):
                with self._lock:
                    self.missing.add(self.sent)
                client.send(QUEUE, b"%d" % self.sent)
                self.sent += 1

    def _receive(self) -> None:
        with connect(self._addresses) as client, client.subscribe(QUEUE, prefetch=10) as messages:
            while not self._receiving.is_set():
                with suppress(TimeoutError), messages.receive(timeout_seconds=RECEIVE_SECONDS) as message:
                    self._take(int(message.body))

    def _take(self, number: int) -> None:
        with self._lock:
            if number in self.missing:
                self.missing.remove(number)
                self.received += 1
            else:
                self.again += 1
            if self._sending.is_set() and not self.missing:
                self._all_received.set()


@click.command
@click.option(
    "--seconds",
    type=click.IntRange(1, 600),
    default=10,
    show_default=True,
    help="How long to watch before the kill, without the node, and after its return.",
)
@click.option("--once", is_flag=True, help="Stop after that. Otherwise traffic goes on until Ctrl-C.")
def demo(seconds: int, once: bool) -> None:
    """Show a mesh: three nodes with traffic, the console, a kill and a return.

    All is in a temporary directory, which is removed at the end. Exit code 1 if a message was lost.
    """
    click.echo("starting three nodes …")
    with (
        stop_signals() as stopping,
        throwaway_mesh(None, {}, None, 3, has_web=True, sections=QUICK_TAKEOVER) as mesh,
        DemoPrograms([str(peer.client) for peer in mesh.peers.nodes]) as programs,
    ):
        pages = {peer.name: f"http://{peer.served['http']}/" for peer in mesh.peers.nodes}
        click.echo(f"console: {pages['b']}   (nodes: {', '.join(f'{name} {page}' for name, page in pages.items())})")

        def watch(title: str) -> None:
            click.echo(title)
            for _ in range(seconds):
                if not stopping.wait(1):
                    click.echo(f"  {programs.line()}")

        watch("a program sends to a queue, another one receives")
        if not stopping.is_set():
            mesh.kill(VICTIM)
            watch(f"kill -9 of node {VICTIM}: the programs go on at the others, which serve its messages after 3 s")
        if not stopping.is_set():
            _bring_back(mesh)
            watch(f"node {VICTIM} is back, and gets what it has missed")
        if not once and not stopping.is_set():
            click.echo("traffic goes on until Ctrl-C")
            stopping.wait()
        programs.stop()
        lost = len(programs.missing)
        click.echo(
            f"{counted(programs.sent, 'message')} confirmed, {programs.received} received, {lost} lost, "
            f"{programs.again} delivered twice"
        )
    if lost:
        sys.exit(1)


def _bring_back(mesh: LocalMesh) -> None:
    mesh.start(VICTIM)
    mesh.wait_until_ready([VICTIM])
