"""The path of one durable SEND, traced, is the list on the page of the architecture, and short enough.

Two whole nodes are linked. A publisher and a consumer are clients of the first. One message is sent, and every call of
a function of `qmq` is seen until the consumer has the message, the publisher has its receipt, and the peer has taken
the message into its journal. The same SEND was made before, so that what happens once (a header block is parsed, a
queue is made) is not on the path.

**What counts**: a module of the first node counts if one of its functions gets the message, hands it to another module,
or returns it: the bytes read from the socket, the frame, the message, its delivery, the `Outcome` that has it, its
record, its batch, the frame of a link. These are the modules that a reader opens who follows the message.

What does not count: methods of the values themselves, because a value is what passes; a module that is only asked
something on the way, such as a clock, a limit, or whether a checkpoint is due; a module that runs a call it was given,
such as the thread of the commits; the sockets and the disk, the ends of the path, which are doubles here. The modules
of which any function is entered at all have a bound of their own.
"""

import re
import sys
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

import trio
from trio.testing import MockClock

import qmq
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.message import Message
from qmq.storage.format.record import Record
from qmq.wire.stomp import Frame
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually, send, subscribe

PACKAGE = Path(qmq.__file__).parent
PAGE = PACKAGE.parent / "docs/architecture.md"

MODULES_MAX = 26
ENTERED_MAX = 78
"""A few of them by chance: what other tasks of the node do meanwhile is among them."""

QUEUE = "/queue/jobs"
BODY = "the one message that is followed"
VALUES = (Frame, Message, Delivery, Outcome, Record)


def has_message(value: Any, depth: int = 6) -> bool:
    """Whether `value` is the message, or is made of it."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BODY.encode() in bytes(value)
    if not depth:
        return False
    if isinstance(value, (tuple, list, deque)):
        return any(has_message(one, depth - 1) for one in value)
    if isinstance(value, dict):
        return any(has_message(one, depth - 1) for one in value.values())
    if isinstance(value, VALUES):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        return any(has_message(getattr(value, name, None), depth - 1) for name in slots)
    return False


class Tracer:
    """The modules whose functions one node calls, and which of them get the message."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._nodes: dict[trio.lowlevel.Task, str | None] = {}
        self.entered: set[str] = set()
        self.passed: set[str] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        if event not in {"call", "return"}:
            return
        module = self._module(frame)
        if module is None or self._node_of(trio.lowlevel.current_task()) != self._node:
            return
        self.entered.add(module)
        if has_message(list(frame.f_locals.values()) if event == "call" else result):
            self._note(frame)
            if frame.f_back is not None:
                self._note(frame.f_back)

    def _note(self, frame: FrameType) -> None:
        module = self._module(frame)
        if module is not None and not isinstance(frame.f_locals.get("self"), VALUES):
            self.passed.add(module)

    def _module(self, frame: FrameType) -> str | None:
        path = Path(frame.f_code.co_filename)
        return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None

    def _node_of(self, task: trio.lowlevel.Task) -> str | None:
        """The node that the task belongs to; None for a client."""
        if task not in self._nodes:
            above: trio.lowlevel.Task | None = task
            while above is not None and not above.name.endswith("MeshRig._live"):
                above = above.parent_nursery.parent_task if above.parent_nursery is not None else None
            frame = None if above is None else above.coro.cr_frame
            self._nodes[task] = None if frame is None else frame.f_locals["node"].origin.node
        return self._nodes[task]


async def trace() -> Tracer:
    async with MeshRig("a", "b").run() as rig:
        consumer = await rig.connect("a")
        await consumer.send(subscribe(QUEUE, ack="client-individual", prefetch="9"))
        await consumer.receipt()
        publisher = await rig.connect("a")
        for _ in range(2):
            await publisher.send(send(QUEUE, "a message before it", "r"))
            await publisher.receipt()
            await consumer.next("MESSAGE")
        origin = rig.nodes["a"].origin
        tracer = Tracer("a")

        sys.setprofile(tracer)
        try:
            await publisher.send(send(QUEUE, BODY, "r"))
            await publisher.receipt()
            await consumer.next("MESSAGE")
            await eventually(
                lambda: (
                    rig.nodes["b"].engine.path.durable_vector().get(origin)
                    == rig.nodes["a"].engine.path.durable_vector()[origin]
                )
            )
        finally:
            sys.setprofile(None)
    return tracer


async def test_path_of_a_send_is_the_list_on_the_page(autojump_clock: MockClock) -> None:
    _, listed, _ = PAGE.read_text().split("<!-- path of a SEND -->")

    tracer = await trace()

    assert set(re.findall(r"`([a-z_/]+\.py)`", listed)) == tracer.passed
    assert len(tracer.passed) <= MODULES_MAX
    assert len(tracer.entered) <= ENTERED_MAX
