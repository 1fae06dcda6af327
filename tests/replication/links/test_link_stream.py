"""The bytes of one connection, against a pipe of the test."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.errors import MeshError
from qmq.replication.links.link import LinkStream
from qmq.replication.links.outbox import encode_message
from qmq.replication.protocol.frames import Batches

REFUSED = MeshError("bad-frame", "the other side breaks a rule")


class SlowPipe:
    """The other side reads slowly, and breaks a rule at once."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.sleep(0.1)
        return b"?"

    async def send_all(self, data: bytes) -> None:
        await trio.sleep(0.4)
        self.sent.append(data)


async def test_a_link_that_ends_finishes_the_frame_that_it_writes_and_begins_no_other(
    autojump_clock: MockClock,
) -> None:
    pipe: Any = SlowPipe()
    conversation: Any = SimpleNamespace(partner=None, reply=b"", error=REFUSED, receive=lambda data: [])
    settings: Any = SimpleNamespace(beat_seconds=1.0, suspicion_seconds=5.0)

    async def take_frames(frames: list[Any]) -> None:
        pass

    stream = LinkStream(pipe, conversation, encode_message, take_frames=take_frames, settings=settings)
    for number in range(5):
        stream.outbox.put_journal(Batches(number, b"batch"))

    with pytest.RaisesGroup(pytest.RaisesExc(MeshError, match="breaks a rule")):
        await stream.run()

    # The reason can be sent: the other side has no half frame.
    assert not stream.mid_frame
    assert len(pipe.sent) == 1
