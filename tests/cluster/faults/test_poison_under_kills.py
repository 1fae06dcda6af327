"""Messages that no consumer can process, between good ones, while their owner and their borrowers are killed."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_client import Client, LostError, Message
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

DEAD = "/queue/dead-letters"
LIMIT = 6
POISON = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("poison"), node_file=PATIENT_NODE_FILE) as made:
        yield made


class Works:
    """Consumers that process what is good and refuse what is poison, on any node."""

    def __init__(self, mesh: Cluster, queue: str) -> None:
        self.mesh = mesh
        self.queue = queue
        self.done: list[bytes] = []
        self.counts: dict[bytes, list[int]] = {}

    def begin(self, name: str) -> Client:
        client = self.mesh.client(name)
        limits = {"delivery-limit": str(LIMIT), "redelivery-delay": "0.2", "prefetch-count": "3"}
        client.subscribe(self.queue, ack="client-individual", on_message=self._take, headers=limits)
        return client

    def _take(self, client: Client, message: Message) -> None:
        try:
            if message.body.startswith(b"poison"):
                self.counts.setdefault(message.body, []).append(message.delivery_count)
                client.refuse(message)
            else:
                client.acknowledge(message)
                self.done.append(message.body)
        except LostError:
            pass  # its node was killed


@pytest.mark.parametrize("killed", [["a"], ["b"], ["a", "b"]], ids=["owner", "borrower", "both"])
def test_poison_reaches_its_limit_whichever_node_is_killed_meanwhile(mesh: Cluster, killed: list[str]) -> None:
    queue = f"/queue/poison.{'.'.join(killed)}"
    poison = [b"poison %d" % number for number in range(POISON)]
    good = [b"good %d" % number for number in range(20)]
    mesh.client("a").publish(queue, *poison, *good)
    letters = mesh.client("c").subscribe(DEAD)
    works = Works(mesh, queue)
    works.begin("b")

    kills = 2
    for kill in range(1, kills + 1):
        eventually(
            lambda kill=kill: all(max(works.counts.get(body, [0])) >= 2 * kill for body in poison),
            lambda: f"the counts did not grow: {works.counts}",
        )
        mesh.kill(*killed)
        mesh.start(*killed)
        works.begin("b")

    def buried() -> set[bytes]:
        return {letter.body for letter in letters if letter.headers["dead-letter-from"] == queue}

    eventually(lambda: buried() == set(poison), lambda: f"c has the letters {buried()}; deliveries {works.counts}")
    eventually(lambda: set(works.done) >= set(good), lambda: f"{len(set(works.done))} of {len(good)} were processed")
    eventually(lambda: mesh.depth("a", queue) == 0, "a still counts messages")
    for body in poison:
        (said,) = {m.headers["dead-letter-deliveries"] for m in letters if m.body == body}
        assert LIMIT <= int(said)
        assert len(works.counts[body]) <= LIMIT + kills * len(killed), f"{body!r} was tried too often"
    ids = {letter.id for letter in letters if letter.headers["dead-letter-from"] == queue}
    assert len(ids) == POISON, "a letter was made twice"
