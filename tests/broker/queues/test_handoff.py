"""Messages of one node pass from one server to another, as one broker sees it."""

from tests.broker.rig import Node


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
