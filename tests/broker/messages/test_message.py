from qmq.broker.messages.message import Settle
from qmq.model.dots import Dot, Origin

from ..rig import NOW_US, message_of

A = Origin("a", 0xFEED)


def test_message_id_is_the_dot() -> None:
    assert message_of(A, 7).dot == Dot(A, 7)
    assert message_of(A, 7).message_id == str(Dot(A, 7))


def test_memory_only_message_has_an_id_that_no_journalled_message_has() -> None:
    assert message_of(A, -7).message_id == f"{A}-m7"


def test_new_message_is_this_nodes_and_never_delivered() -> None:
    message = message_of(A, 1)

    assert (message.owner, message.attempts, message.settled) == (None, 0, False)


def test_settle_names_the_queue_and_its_dots() -> None:
    settle = Settle("/queue/jobs", [Dot(A, 1)], 2, NOW_US)

    assert (settle.queue, settle.dots, settle.sequence) == ("/queue/jobs", [Dot(A, 1)], 2)
