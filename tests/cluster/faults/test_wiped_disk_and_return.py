"""A node loses its disk and comes back empty: the others give it everything, and it is not confused about itself."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("wiped"), node_file=PATIENT_NODE_FILE) as made:
        yield made


def test_a_wiped_node_gets_every_fanout_back(mesh: Cluster) -> None:
    of_a, of_c = numbered("of a", 300), numbered("of c", 300)
    mesh.client("a").publish("/fanout/wipe", *of_a)
    mesh.client("c").publish("/fanout/wipe", *of_c)
    mesh.wait_until_same()

    mesh.kill("c")
    mesh.wipe("c")
    mesh.start("c")

    got = mesh.client("c").subscribe("/fanout/wipe")
    eventually(lambda: len(got) >= 600, lambda: f"the wiped node has {len(got)} of 600 messages")
    assert [body for body in bodies(got) if body in of_a] == of_a
    assert [body for body in bodies(got) if body in of_c] == of_c
    assert len(got) == 600


def test_what_a_wiped_node_sends_afterwards_reaches_all(mesh: Cluster) -> None:
    got = {name: mesh.client(name).subscribe("/fanout/wipe.after") for name in ("a", "b")}
    mesh.client("c").publish("/fanout/wipe.after", b"before")

    mesh.wait_until_same()
    mesh.kill("c")
    mesh.wipe("c")
    mesh.start("c")
    mesh.client("c").publish("/fanout/wipe.after", b"after")

    for name, messages in got.items():
        eventually(lambda m=messages: len(m) >= 2, f"{name} lacks what the wiped node sent")
        assert bodies(messages) == [b"before", b"after"]


def test_queue_messages_of_a_wiped_node_are_kept_by_its_peers(mesh: Cluster) -> None:
    sent = numbered("job", 100)
    mesh.client("c").publish("/queue/wipe", *sent)
    mesh.wait_until_same()

    mesh.kill("c")
    mesh.wipe("c")
    mesh.start("c")

    got = mesh.client("a").consume("/queue/wipe")
    eventually(lambda: len(got) >= 100, lambda: f"a has {len(got)} of 100 jobs of the wiped node")
    assert sorted(bodies(got)) == sorted(sent)


def test_what_was_settled_before_the_wipe_does_not_come_back(mesh: Cluster) -> None:
    sent = numbered("job", 100)
    consumer = mesh.client("b")
    held = consumer.subscribe("/queue/wipe.settled", ack="client-individual")
    mesh.client("c").publish("/queue/wipe.settled", *sent)
    eventually(lambda: len(held) == 100, lambda: f"b has {len(held)} of 100")
    consumer.wait_receipts([consumer.acknowledge(message, receipt=True) for message in held[:70]])
    consumer.drop()
    mesh.wait_until_same()

    mesh.kill("c")
    mesh.wipe("c")
    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    got = mesh.client("a").consume("/queue/wipe.settled")
    eventually(lambda: len(got) >= 30, lambda: f"a has {len(got)} of 30")
    eventually(lambda: mesh.depth("c", "/queue/wipe.settled") == 0, "c still counts messages")
    assert sorted(bodies(got)) == sorted(sent[70:])


def test_two_of_three_disks_lost_are_filled_again_from_the_third(mesh: Cluster) -> None:
    of_b, of_c = numbered("of b", 200), numbered("of c", 200)
    mesh.client("b").publish("/fanout/wipe.two", *of_b)
    mesh.client("c").publish("/fanout/wipe.two", *of_c)
    mesh.wait_until_same()

    mesh.kill("b", "c")
    mesh.wipe("b")
    mesh.wipe("c")
    mesh.start("b", "c")

    for name in ("b", "c"):
        got = mesh.client(name).subscribe("/fanout/wipe.two")
        eventually(lambda g=got: len(g) >= 400, lambda n=name, g=got: f"{n} has {len(g)} of 400")
        assert [body for body in bodies(got) if body in of_b] == of_b
        assert [body for body in bodies(got) if body in of_c] == of_c


def test_a_reader_resumes_on_a_wiped_node_where_it_stood(mesh: Cluster) -> None:
    sent = numbered("resumed", 100)
    publisher = mesh.client("a")
    publisher.publish("/fanout/wipe.resume", *sent[:50])
    before = mesh.client("c").subscribe("/fanout/wipe.resume")
    eventually(lambda: len(before) >= 50, lambda: f"c has {len(before)} of 50")
    origin, _, sequence = before[-1].id.rpartition("-")

    mesh.kill("c")
    mesh.wipe("c")
    publisher.publish("/fanout/wipe.resume", *sent[50:])
    mesh.start("c")

    after = mesh.client("c").subscribe("/fanout/wipe.resume", headers={"qmq-resume": f"{origin}={sequence}"})
    eventually(lambda: len(after) >= 50, lambda: f"the reader on the wiped node has {len(after)} of 50")
    assert bodies(after) == sent[50:]
