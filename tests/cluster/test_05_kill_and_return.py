"""kill -9 in the middle of work: what was receipted is there when the node returns, on every node."""

from collections import Counter

from ..support.cluster_client import Message
from ..support.cluster_mesh import Cluster
from ..support.cluster_wait import eventually
from ..support.cluster_work import Consumer, Follower, Publisher


def numbered(text: str, count: int) -> list[bytes]:
    return [f"{text} {number}".encode() for number in range(count)]


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_nothing_receipted_is_missing_on_any_node_after_kill_and_return(mesh: Cluster) -> None:
    sent = numbered("publish", 3000)
    publisher = Publisher([mesh.address("a")], "/fanout/kill", sent)
    publisher.start()
    eventually(lambda: len(publisher.receipted) > 500, lambda: f"{len(publisher.receipted)} receipts")

    mesh.kill("a")
    assert len(publisher.receipted) < len(sent), "the node was killed too late for this test to mean anything"
    mesh.start("a")
    publisher.wait()

    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/kill")
        eventually(
            lambda g=got: set(bodies(g)) >= set(sent),
            lambda g=got, n=name: f"{n} lacks {len(set(sent) - set(bodies(g)))} of {len(sent)} receipted messages",
        )


def test_publishers_fail_over_and_a_reader_that_resumes_sees_everything(mesh: Cluster) -> None:
    sent = numbered("failover", 3000)
    follower = Follower([mesh.address("c"), mesh.address("b")], "/fanout/failover")
    publisher = Publisher([mesh.address("a"), mesh.address("b")], "/fanout/failover", sent)
    follower.start()
    publisher.start()
    eventually(lambda: len(publisher.receipted) > 500, lambda: f"{len(publisher.receipted)} receipts")

    mesh.kill("a")
    publisher.wait()
    mesh.start("a")

    eventually(lambda: set(follower.bodies) >= set(sent), lambda: f"{len(set(follower.bodies))} of {len(sent)} seen")
    follower.finish()
    assert len(follower.ids) == len(set(follower.ids)), "the resumed stream repeated a message"
    assert publisher.connections > 1


def test_queue_messages_of_a_killed_node_wait_for_its_return(mesh: Cluster) -> None:
    sent = numbered("job", 200)
    mesh.client("a").publish("/queue/kill.owner", *sent)

    mesh.kill("a")
    got = mesh.client("b").consume("/queue/kill.owner")
    mesh.start("a")

    eventually(lambda: len(got) >= 200, lambda: f"b has {len(got)} of 200")
    assert bodies(got) == sent


def test_what_was_acknowledged_is_not_delivered_again_after_the_owner_was_killed(mesh: Cluster) -> None:
    sent = numbered("job", 100)
    mesh.client("a").publish("/queue/kill.acked", *sent)
    consumer = mesh.client("b")
    held = consumer.subscribe("/queue/kill.acked", ack="client-individual")
    eventually(lambda: len(held) == 100, lambda: f"b has {len(held)} of 100")

    mesh.kill("a")
    consumer.wait_receipts([consumer.acknowledge(message, receipt=True) for message in held[:60]])
    mesh.start("a")
    mesh.wait_until_same()
    consumer.drop()
    got = mesh.client("c").consume("/queue/kill.acked")

    eventually(lambda: len(got) >= 40, lambda: f"c has {len(got)} of 40")
    eventually(lambda: mesh.depth("a", "/queue/kill.acked") == 0, "a still counts messages")
    assert sorted(bodies(got)) == sorted(sent[60:])


def test_what_a_killed_node_s_consumer_had_goes_to_another(mesh: Cluster) -> None:
    sent = numbered("job", 50)
    held = mesh.client("b").subscribe("/queue/kill.consumer", ack="client-individual")
    mesh.client("a").publish("/queue/kill.consumer", *sent)
    eventually(lambda: len(held) == 50, lambda: f"b has {len(held)} of 50")

    mesh.kill("b")
    got = mesh.client("c").consume("/queue/kill.consumer")

    eventually(lambda: len(got) >= 50, lambda: f"c has {len(got)} of 50")
    assert sorted(bodies(got)) == sorted(sent)
    assert all(message.is_redelivered for message in got)


def test_a_node_killed_again_and_again_returns_with_everything(mesh: Cluster) -> None:
    publisher = Publisher([mesh.address("b")], "/fanout/again", numbered("again", 2000))
    queued = Publisher([mesh.address("b")], "/queue/again", numbered("again", 1000))
    consumer = Consumer([mesh.address("a")], "/queue/again")
    for worker in (publisher, queued, consumer):
        worker.start()

    for enough in (300, 700, 1100):
        eventually(lambda n=enough: len(publisher.receipted) > n, lambda: f"{len(publisher.receipted)} receipts")
        mesh.kill("b")
        mesh.start("b")
    publisher.wait()
    queued.wait()

    got = mesh.client("b").subscribe("/fanout/again")
    eventually(
        lambda: Counter(bodies(got)).keys() >= set(publisher.receipted), lambda: f"b has {len(got)} of its own messages"
    )
    eventually(
        lambda: set(consumer.bodies) >= set(queued.receipted), lambda: f"{len(set(consumer.bodies))} jobs of 1000 done"
    )
    consumer.finish()
