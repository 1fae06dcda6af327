"""kill -9 in the middle of work: what was receipted is there when the node returns, on every node."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, endless, numbered
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Consumer, Follower, Publisher


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("killed"), node_file=PATIENT_NODE_FILE) as made:
        yield made


def test_nothing_receipted_is_missing_on_any_node_after_kill_and_return(mesh: Cluster) -> None:
    publisher = Publisher([mesh.address("a")], "/fanout/kill", endless("publish"))
    publisher.start()
    publisher.goes_on()

    mesh.kill("a")
    mesh.start("a")
    publisher.goes_on()
    publisher.enough()
    publisher.wait()

    sent = set(publisher.receipted)
    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/kill")
        eventually(
            lambda g=got: len(g) >= len(sent) and set(bodies(g)) >= sent,
            lambda g=got, n=name: f"{n} lacks {len(sent - set(bodies(g)))} of {len(sent)} receipted messages",
        )
    mesh.wait_until_clear()


def test_publishers_fail_over_and_a_reader_that_resumes_sees_everything_once(mesh: Cluster) -> None:
    follower = Follower([mesh.address("b"), mesh.address("c")], "/fanout/failover")
    publisher = Publisher([mesh.address("a"), mesh.address("b")], "/fanout/failover", endless("failover"))
    follower.start()
    publisher.start()
    publisher.goes_on()

    mesh.kill("a")
    publisher.goes_on()  # on b
    mesh.start("a")
    mesh.kill("b")
    publisher.goes_on()  # on a again, and the reader goes on from b to c
    publisher.enough()
    publisher.wait()
    mesh.start("b")

    sent = set(publisher.receipted)
    eventually(
        lambda: len(follower.bodies) >= len(sent) and set(follower.bodies) >= sent,
        lambda: f"the reader lacks {len(sent - set(follower.bodies))} of {len(sent)}",
    )
    follower.finish()
    assert len(follower.ids) == len(set(follower.ids)), "the resumed stream repeated a message"
    assert publisher.connections > 2
    assert follower.connections > 1
    mesh.wait_until_clear()


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
    publisher = Publisher([mesh.address("b")], "/fanout/again", endless("again"))
    queued = Publisher([mesh.address("b")], "/queue/again", endless("again"))
    consumer = Consumer([mesh.address("a")], "/queue/again")
    for worker in (publisher, queued, consumer):
        worker.start()

    for _ in range(3):
        publisher.goes_on()
        queued.goes_on()
        mesh.kill("b")
        mesh.start("b")
    for worker in (publisher, queued):
        worker.enough()
        worker.wait()

    fanned, jobs = set(publisher.receipted), set(queued.receipted)
    got = mesh.client("b").subscribe("/fanout/again")
    eventually(
        lambda: len(got) >= len(fanned) and set(bodies(got)) >= fanned,
        lambda: f"b lacks {len(fanned - set(bodies(got)))} of its own messages",
    )
    eventually(
        lambda: len(consumer.bodies) >= len(jobs) and set(consumer.bodies) >= jobs,
        lambda: f"{len(jobs - set(consumer.bodies))} jobs of {len(jobs)} were never done",
    )
    consumer.finish()
    mesh.wait_until_clear()
