"""Nodes are killed between ACKs: a message whose ACK is confirmed at `ack-level:quorum` is not delivered again."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

AFTER = 3.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that take over after 3 s, and wait for a majority with the server before they receipt an ACK."""
    made = Cluster(tmp_path_factory.mktemp("quorum"))
    for name, text in made.node_files.items():
        made.node_files[name] = f'{text}takeover_after_seconds = {AFTER}\nack_level = "quorum"\n'
    with made:
        yield made


class Acks:
    """Acknowledges everything that a subscription gets, and knows what was receipted, and how."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self.asked: dict[str, bytes] = {}
        """Receipt → what it is about; a node may die with the settle recorded and the receipt not told."""
        self.got = client.subscribe(queue, ack="client-individual", on_message=self._settle, headers={"prefetch": "20"})

    def _settle(self, client: Client, message: Message) -> None:
        # Before the receipt can come.
        self.asked[client.acknowledge(message, receipt=True)] = message.body

    def receipted(self, level: str | None = None) -> set[bytes]:
        """What was receipted with this mark; without one, for good."""
        answers = dict(self._client.receipts)
        return {
            body
            for receipt, body in dict(self.asked).items()
            if receipt in answers and answers[receipt].get("ack-level") == level
        }


@pytest.mark.parametrize(("place", "victim"), [("a", "a"), ("c", "a"), ("c", "c")])
def test_what_was_receipted_for_good_is_not_delivered_after_a_kill(mesh: Cluster, place: str, victim: str) -> None:
    queue = f"/queue/good-{place}-{victim}"
    sent = numbered("good", 300)
    mesh.client("a").publish(queue, *sent)
    mesh.wait_until_same()
    first = Acks(mesh.client(place), queue)
    eventually(lambda: len(first.receipted()) >= 100, lambda: f"{len(first.receipted())} of 100 ACKs are receipted")

    mesh.kill(victim)
    second = Acks(mesh.client("b"), queue)

    def missing() -> set[bytes]:
        return set(sent) - {*first.asked.values(), *second.asked.values()}

    eventually(lambda: not missing(), lambda: f"{len(missing())} of {len(sent)} were given to nobody")
    assert not first.receipted() & set(bodies(second.got))
    mesh.start(victim)
    mesh.wait_until_same()
    third = mesh.client("a").consume(queue)
    mesh.client("a").publish(queue, b"last")
    eventually(
        lambda: b"last" in bodies(third) + bodies(second.got) + bodies(first.got), "nobody was given the last message"
    )
    assert not (first.receipted() | second.receipted()) & (set(bodies(third)) - {b"last"})


def serves_a(mesh: Cluster, name: str) -> bool:
    return "a" in mesh.status(name).get("takeover", {}).get("serves", ())


def test_while_the_node_of_a_message_is_dead_its_acks_are_receipted_as_edge_until_another_serves_it(
    mesh: Cluster,
) -> None:
    sent = numbered("dead", 600)  # an ACK of its own for each try
    mesh.client("a").publish("/queue/dead", *sent)
    mesh.wait_until_same()
    consumer = mesh.client("c")
    got = consumer.subscribe("/queue/dead", ack="client-individual", headers={"prefetch-count": "600"})
    eventually(lambda: len(got) == 600, lambda: f"{len(got)} of 600 are in hand")

    mesh.kill("a")
    early = consumer.acknowledge(got[0], receipt=True)
    consumer.wait_receipts([early])
    eventually(lambda: any(serves_a(mesh, name) for name in "bc"), "no node serves what the dead node had")
    late = iter(got[1:])

    def is_for_good() -> bool:
        receipt = consumer.acknowledge(next(late), receipt=True)
        consumer.wait_receipts([receipt])
        return "ack-level" not in consumer.receipts[receipt]

    assert consumer.receipts[early]["ack-level"] == "edge"
    eventually(is_for_good, "no ACK is receipted for good")
