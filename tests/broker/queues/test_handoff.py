"""Messages of one node pass from one server to another, as one broker sees it."""

from collections.abc import Iterator
from typing import Any

import pytest

from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.model.dots import Dot, Origin
from tests.broker.rig import JOBS, SECOND_US, Node, message_of

B = Origin("b", 1)


def test_what_an_owner_accepts_while_its_messages_come_back_is_among_them() -> None:
    node = Node()
    handoff = node.queues.handoff
    handoff.cede("a", "b")
    node.send(b"its server has it by the journal")
    handoff.gather("a")
    node.send(b"meanwhile")

    node.decide(lambda out: handoff.adopt("a", (), out))

    assert [
        message.body for by_sequence in node.queues.owned.by_origin.values() for message in by_sequence.values()
    ] == [b"meanwhile"]
    assert node.depth() == 1


@pytest.mark.parametrize("headers", [b"", b"priority:6\nbeanstalk-priority:20\n"])
def test_what_was_borrowed_and_is_taken_over_may_fail_all_at_once(headers: bytes) -> None:
    node = Node()
    worker = node.client()
    worker.subscribe()
    node.borrowing.owner_connected("b")
    node.borrow(*[message_of(B, number, b"%d" % number, owner="b", headers=headers) for number in (1, 2, 3)])
    node.queues.handoff.gather("b")
    node.decide(lambda out: node.queues.handoff.adopt("b", (), out))
    node.queues.by_name[JOBS].is_counted = True
    held = list(worker.inbox)

    node.decide(lambda out: node.queues.redelivery.give_back(held, Back.FAILED, out))
    node.later(60 * SECOND_US)

    assert worker.bodies == [b"1", b"2", b"3", b"1", b"2", b"3"]


class CountedTable(dict[Dot, Message]):
    """Counts how often it is walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Dot]:
        self.walks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_what_peers_have_is_looked_through_once_for_all_queues_that_another_node_serves() -> None:
    node = Node()
    for number in range(10):
        node.send(b"x", f"/queue/{number}")
    (messages,) = node.queues.owned.by_origin.values()
    for message in list(messages.values()):
        node.queues.get(message.envelope.destination).take_out(message)
        node.queues.count_as_lent(message, "p")
    lent = node.queues.owned.lent["p"] = CountedTable(node.queues.owned.lent["p"])
    assert len(lent) == len(node.queues.by_name) == 10

    node.queues.handoff.cede("a", "b")

    assert lent.walks == 1
    assert not lent and not node.queues.by_name
