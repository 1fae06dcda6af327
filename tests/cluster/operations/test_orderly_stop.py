"""SIGTERM: a node sends what it has decided, closes its clients, and exits with code 0; no message is lost."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, endless, numbered
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Consumer, Publisher


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("stop"), node_file=PATIENT_NODE_FILE) as made:
        yield made


def test_a_node_that_is_asked_to_stop_ends_in_order_and_its_publishers_go_elsewhere(mesh: Cluster) -> None:
    publisher = Publisher([mesh.address("a"), mesh.address("b")], "/fanout/drain", endless("drained"))
    publisher.start()
    publisher.goes_on()

    code = mesh.stop("a")
    publisher.goes_on()  # on b
    publisher.enough()
    publisher.wait()

    assert code == 0
    sent = set(publisher.receipted)
    got = mesh.client("c").subscribe("/fanout/drain")
    mesh.start("a")
    eventually(lambda: set(bodies(got)) >= sent, lambda: f"c lacks {len(sent - set(bodies(got)))} messages")
    back = mesh.client("a").subscribe("/fanout/drain")
    eventually(lambda: set(bodies(back)) >= sent, lambda: f"a lacks {len(sent - set(bodies(back)))} messages")


def test_clients_of_a_stopping_node_are_closed(mesh: Cluster) -> None:
    client = mesh.client("a")
    client.subscribe("/topic/stop")

    assert mesh.stop("a") == 0

    eventually(client.ended.is_set, "the client's connection still stands")


def test_a_mesh_that_was_stopped_whole_has_everything_when_it_starts_again(mesh: Cluster) -> None:
    fanned, queued = numbered("fanned", 300), numbered("queued", 300)
    mesh.client("a").publish("/fanout/whole", *fanned)
    mesh.client("b").publish("/queue/whole", *queued)
    consumer = mesh.client("c")
    held = consumer.subscribe("/queue/whole", ack="client-individual", headers={"prefetch-count": "100"})
    eventually(lambda: len(held) >= 100, lambda: f"c has {len(held)} of 100")
    consumer.wait_receipts([consumer.acknowledge(message, receipt=True) for message in held[:50]])

    assert [mesh.stop(name) for name in mesh.names] == [0, 0, 0]
    mesh.start(*mesh.names)

    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/whole")
        eventually(lambda g=got: len(g) >= 300, lambda n=name, g=got: f"{n} has {len(g)} of 300")
        assert bodies(got) == fanned
    rest = mesh.client("a").consume("/queue/whole")
    eventually(lambda: len(rest) >= 250, lambda: f"a has {len(rest)} of 250 jobs")
    eventually(lambda: mesh.depth("b", "/queue/whole") == 0, "b still counts jobs")
    assert sorted(bodies(rest)) == sorted({*queued} - {message.body for message in held[:50]})


def test_a_node_killed_whole_with_all_others_has_everything_receipted_too(mesh: Cluster) -> None:
    sent = numbered("dark", 500)
    mesh.client("a").publish("/fanout/dark", *sent)

    mesh.kill(*mesh.names)
    mesh.start(*mesh.names)

    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/dark")
        eventually(lambda g=got: len(g) >= 500, lambda n=name, g=got: f"{n} has {len(g)} of 500")
        assert bodies(got) == sent


class Watcher(Consumer):
    """A consumer that notes what came to it as a second delivery, and how its connections ended."""

    def __init__(self, addresses: list[tuple[str, int]], destination: str) -> None:
        super().__init__(addresses, destination)
        self.marked: list[bytes] = []
        self.ids: list[str] = []
        self.errors: list[str] = []

    def serve(self, client: Client) -> None:
        super().serve(client)
        self.errors += [error.headers["error-code"] for error in client.errors]

    def _take(self, client: Client, message: Message) -> None:
        self.ids.append(message.id)
        if message.is_redelivered:
            self.marked.append(message.body)
        super()._take(client, message)


def test_a_rolling_restart_delivers_nothing_twice_to_consumers_that_answer(mesh: Cluster) -> None:
    places = [mesh.address(name) for name in mesh.names]
    turned = [places[index:] + places[:index] for index in range(len(places))]
    watchers = [Watcher(list(addresses), "/queue/rolled") for addresses in turned for _ in range(2)]
    publisher = Publisher(list(places[::-1]), "/queue/rolled", endless("rolled"))
    for worker in (*watchers, publisher):
        worker.start()
    publisher.goes_on()

    for name in mesh.names:
        assert mesh.stop(name) == 0
        publisher.goes_on()
        mesh.start(name)
        mesh.wait_for_links()
        publisher.goes_on()
    publisher.enough()
    publisher.wait()

    def taken() -> set[bytes]:
        return {body for watcher in watchers for body in watcher.bodies}

    sent = set(publisher.receipted)
    eventually(lambda: taken() >= sent, lambda: f"{len(sent - taken())} of {len(sent)} messages did not come")
    for watcher in watchers:
        watcher.finish()
    assert not [body for watcher in watchers for body in watcher.marked]
    ids = [id for watcher in watchers for id in watcher.ids]
    assert len(ids) == len(set(ids))
    assert {error for watcher in watchers for error in watcher.errors} == {"stopping"}
