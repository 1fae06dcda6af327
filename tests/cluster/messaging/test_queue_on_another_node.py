"""A queue is one queue: what is sent on one node is consumed on any other, once, and comes back when it is not done."""

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


def test_what_is_sent_on_one_node_is_consumed_on_another_each_once(mesh: Cluster) -> None:
    sent = numbered("job", 300)
    got = mesh.client("b").consume("/queue/one")

    mesh.client("a").publish("/queue/one", *sent)

    eventually(lambda: len(got) >= 300, lambda: f"b has {len(got)} of 300")
    eventually(lambda: mesh.depth("a", "/queue/one") == 0, "a still counts settled messages")
    assert bodies(got) == sent
    assert not any(message.is_redelivered for message in got)


def test_a_backlog_waits_for_a_consumer_on_any_node(mesh: Cluster) -> None:
    sent = numbered("job", 200)
    mesh.client("a").publish("/queue/backlog", *sent)
    eventually(lambda: mesh.depth("a", "/queue/backlog") == 200, "a does not count 200 messages")

    got = mesh.client("c").consume("/queue/backlog")

    eventually(lambda: len(got) >= 200, lambda: f"c has {len(got)} of 200")
    assert bodies(got) == sent


def test_consumers_on_two_nodes_share_the_work(mesh: Cluster) -> None:
    sent = numbered("job", 400)
    got = [mesh.client(name).consume("/queue/shared", prefetch=10) for name in "bc"]
    publisher = mesh.client("a")

    def both_known() -> bool:
        """A node takes part once its credit is at a, and one of them may be much later than the other."""
        publisher.publish("/queue/shared", b"probe")
        return all(got)

    eventually(both_known, lambda: f"b and c have {[len(messages) for messages in got]} of the first messages")
    publisher.publish("/queue/shared", *sent)

    def jobs() -> list[list[bytes]]:
        return [[body for body in bodies(messages) if body != b"probe"] for messages in got]

    eventually(lambda: sum(map(len, jobs())) >= 400, lambda: f"b and c have {[len(part) for part in jobs()]} of 400")
    assert sorted(body for part in jobs() for body in part) == sorted(sent)
    assert all(jobs())


def test_messages_of_all_nodes_reach_one_consumer(mesh: Cluster) -> None:
    got = mesh.client("b").consume("/queue/from.all")

    for name in mesh.names:
        mesh.client(name).publish("/queue/from.all", *(f"{name} {number}".encode() for number in range(50)))

    eventually(lambda: len(got) >= 150, lambda: f"b has {len(got)} of 150")
    assert sorted(bodies(got)) == sorted(f"{name} {number}".encode() for name in mesh.names for number in range(50))


@pytest.mark.parametrize("sender", ["a", "b"])
def test_a_consumer_gets_no_more_than_its_prefetch_until_it_acknowledges(mesh: Cluster, sender: str) -> None:
    queue = f"/queue/prefetch.{sender}"
    slow = mesh.client("b")
    held = slow.subscribe(queue, ack="client-individual", headers={"prefetch-count": "3"})
    publisher = mesh.client(sender)
    publisher.publish(queue, *numbered("job", 10))
    eventually(lambda: len(held) == 3, lambda: f"b has {len(held)}, not 3")

    rest = mesh.client("c").consume(queue)
    eventually(lambda: len(rest) >= 7, lambda: f"c has {len(rest)} of 7")
    assert len(held) == 3
    slow.acknowledge(held[0])
    publisher.publish(queue, b"one more", b"and another")
    eventually(lambda: len(rest) + len(held) >= 12, lambda: f"b has {len(held)}, c has {len(rest)}, not 12 in all")

    assert len(held) <= 4
    assert sorted(bodies(held) + bodies(rest)) == sorted([*numbered("job", 10), b"one more", b"and another"])


def test_a_refused_message_comes_again_and_says_so(mesh: Cluster) -> None:
    consumer = mesh.client("b")
    got = consumer.subscribe("/queue/nack", ack="client-individual")
    mesh.client("a").publish("/queue/nack", b"hard")
    eventually(lambda: len(got) == 1, "b got nothing")

    consumer.refuse(got[0])
    eventually(lambda: len(got) == 2, "the refused message did not come again")
    consumer.refuse(got[1])
    eventually(lambda: len(got) == 3, "the message did not come a third time")
    consumer.wait_receipts([consumer.acknowledge(got[2], receipt=True)])

    assert [(m.body, m.is_redelivered, m.delivery_count) for m in got] == [
        (b"hard", False, 1),
        (b"hard", True, 2),
        (b"hard", True, 3),
    ]
    assert len({message.id for message in got}) == 1
    eventually(lambda: mesh.depth("a", "/queue/nack") == 0, "a still counts the settled message")


def test_what_a_lost_consumer_had_goes_to_one_on_another_node(mesh: Cluster) -> None:
    sent = numbered("job", 10)
    doomed = mesh.client("b")
    held = doomed.subscribe("/queue/lost", ack="client-individual")
    mesh.client("a").publish("/queue/lost", *sent)
    eventually(lambda: len(held) == 10, lambda: f"b has {len(held)} of 10")
    doomed.wait_receipts([doomed.acknowledge(message, receipt=True) for message in held[:4]])

    doomed.drop()
    got = mesh.client("c").consume("/queue/lost")

    eventually(lambda: len(got) >= 6, lambda: f"c has {len(got)} of 6")
    assert sorted(bodies(got)) == sorted(sent[4:])
    assert all(message.is_redelivered and message.delivery_count == 2 for message in got)


def test_cumulative_acknowledgement_settles_everything_before_it(mesh: Cluster) -> None:
    consumer = mesh.client("b", "1.1")
    held = consumer.subscribe("/queue/client", ack="client")
    mesh.client("a").publish("/queue/client", *numbered("job", 10))
    eventually(lambda: len(held) == 10, lambda: f"b has {len(held)} of 10")

    consumer.wait_receipts([consumer.acknowledge(held[6], receipt=True)])
    consumer.drop()
    got = mesh.client("c").consume("/queue/client")

    eventually(lambda: len(got) >= 3, lambda: f"c has {len(got)} of 3")
    assert sorted(bodies(got)) == sorted(numbered("job", 10)[7:])


def test_memory_only_messages_cross_the_mesh_too(mesh: Cluster) -> None:
    sent = numbered("job", 100)
    got = mesh.client("b").consume("/queue/memory")

    mesh.client("a").publish("/queue/memory", *sent, persistent="false")

    eventually(lambda: len(got) >= 100, lambda: f"b has {len(got)} of 100")
    assert bodies(got) == sent
    eventually(lambda: mesh.depth("a", "/queue/memory") == 0, "a still counts settled messages")
