"""A message that is confirmed on two disks survives the loss of either. With too few nodes, the RECEIPT says so."""

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


def publish_on_two_disks(mesh: Cluster, destination: str, sent: list[bytes]) -> None:
    """Send to a. If other nodes were late, so that a RECEIPT promises less, what it does not promise is waited for."""
    client = mesh.client("a")
    client.publish(destination, *sent)
    if any("copies" in headers for headers in client.receipts.values()):
        mesh.wait_until_same()


def test_what_was_receipted_survives_the_disk_that_took_it(mesh: Cluster) -> None:
    sent = numbered("copied", 200)
    publish_on_two_disks(mesh, "/fanout/copied", sent)
    mesh.kill("a")
    mesh.wipe("a")

    got = mesh.client("b").subscribe("/fanout/copied")

    # From b's own log, or from c's over their link: a has nothing that it could add.
    eventually(lambda: len(got) >= 200, lambda: f"b has {len(got)} of 200 receipted messages")
    assert bodies(got) == sent


def test_a_receipted_queue_message_survives_the_disk_that_took_it(mesh: Cluster) -> None:
    sent = numbered("job", 100)
    publish_on_two_disks(mesh, "/queue/copied", sent)
    mesh.kill("a")
    mesh.wipe("a")
    mesh.start("a")

    got = mesh.client("c").consume("/queue/copied")

    eventually(lambda: len(got) >= 100, lambda: f"c has {len(got)} of 100 jobs")
    assert sorted(bodies(got)) == sorted(sent)


def test_receipts_of_a_node_alone_say_so_and_are_whole_again_when_the_others_are_back(mesh: Cluster) -> None:
    mesh.kill("b", "c")
    client = mesh.client("a")
    for number in range(50):
        client.publish("/queue/alone", b"job %d" % number)
    assert {(of["receipt-level"], of["copies"]) for of in client.receipts.values()} == {("fsync", "1")}

    mesh.start("b", "c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    def is_whole() -> bool:
        receipt = client.send("/queue/alone", b"after", receipt=True)
        client.wait_receipts([receipt])
        return "copies" not in client.receipts[receipt]

    eventually(is_whole, "receipts still say that there are too few copies")


def test_a_consumer_elsewhere_gets_what_waits_for_its_receipt(mesh: Cluster) -> None:
    got = mesh.client("b").consume("/queue/elsewhere")

    mesh.client("a").publish("/queue/elsewhere", b"one", receipt_level="replicas=2")

    eventually(lambda: bodies(got) == [b"one"], lambda: f"b has {bodies(got)}")
