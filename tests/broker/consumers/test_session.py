import pytest

from qmq.broker.consumers.session import HeldFrame
from qmq.broker.messages.limits import BrokerLimits
from qmq.errors import Refused

from ..rig import Node, envelope


def test_new_session_has_nothing_open() -> None:
    session = Node().broker.open_session(7)

    assert (session.id, session.subscriptions, session.transactions) == (7, {}, {})


def test_held_frames_are_bounded_by_their_bytes_over_all_transactions_of_a_client() -> None:
    node = Node(limits=BrokerLimits(transaction_bytes_max=1000))
    client = node.client()
    client.begin("one")
    client.begin("two")
    client.hold(HeldFrame(envelope=envelope(), body=b"x" * 600), "one")

    with pytest.raises(Refused) as refused:
        client.hold(HeldFrame(envelope=envelope(), body=b"x" * 600), "two")

    assert refused.value.code == "transaction-too-large"
    node.broker.transactions.abort(client.id, "one")
    client.hold(HeldFrame(envelope=envelope(), body=b"x" * 600), "two")
