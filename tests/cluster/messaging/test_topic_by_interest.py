"""Topic messages reach all current subscribers on any node, and only nodes that have some."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.cluster_bodies import bodies
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; the lines from a to b and c lie open, so that what crosses them can be counted."""
    with Cluster(tmp_path_factory.mktemp("counted"), cuttable=[("a", "b"), ("a", "c")]) as made:
        yield made


def heard_by(publisher: Client, topic: str, *subscribers: list[Message]) -> None:
    """Return once what is sent to `topic` reaches all: a topic keeps nothing for those whose interest is still on
    its way. What was heard until then is taken out again."""
    numbers = count()

    def probe() -> bool:
        publisher.send(topic, f"probe {next(numbers)}".encode())
        return all(subscribers)

    eventually(probe, lambda: f"{topic}: heard by {[len(got) for got in subscribers]}")
    publisher.send(topic, b"last probe")
    for got in subscribers:
        eventually(lambda g=got: g[-1].body == b"last probe", f"{topic}: the last probe is missing")
        got.clear()


def test_a_topic_reaches_subscribers_on_all_nodes_in_order(mesh: Cluster) -> None:
    got = [mesh.client(name).subscribe("/topic/news") for name in mesh.names]
    publisher = mesh.client("a")
    heard_by(publisher, "/topic/news", *got)
    sent = [f"news {number}".encode() for number in range(200)]

    publisher.publish("/topic/news", *sent)

    for messages in got:
        eventually(lambda m=messages: len(m) >= 200, lambda m=messages: f"{len(m)} of 200 arrived")
        assert bodies(messages) == sent


def test_only_what_a_subscription_names_reaches_it(mesh: Cluster) -> None:
    publisher = mesh.client("a")
    wanted = mesh.client("b").subscribe("/topic/sport.chess.results")
    prefix = mesh.client("b").subscribe("/topic/sport.chess*")
    word = mesh.client("c").subscribe("/topic/sport.*.results")
    everything = mesh.client("c").subscribe("/topic/sport.#")
    # With these two, b and c get all that any of the four names.
    heard_by(publisher, "/topic/sport.probe", everything)
    heard_by(publisher, "/topic/sport.chess.probe", prefix, everything)

    for name in ("sport.chess.results", "sport.chess.players", "sport.go.results", "sport", "weather", "sport.end"):
        publisher.publish(f"/topic/{name}", name.encode())

    eventually(lambda: everything and everything[-1].body == b"sport.end", "the last message did not reach c")
    eventually(lambda: wanted and len(prefix) >= 2, "not all messages reached b")
    eventually(lambda: len(word) >= 2, "not all messages reached c")
    assert bodies(wanted) == [b"sport.chess.results"]
    assert bodies(prefix) == [b"sport.chess.results", b"sport.chess.players"]
    assert bodies(word) == [b"sport.chess.results", b"sport.go.results"]
    assert bodies(everything)[:3] == [b"sport.chess.results", b"sport.chess.players", b"sport.go.results"]
    assert b"weather" not in bodies(everything)


def test_a_topic_without_subscribers_there_does_not_cross_the_link(mesh: Cluster) -> None:
    publisher = mesh.client("a")
    got = mesh.client("b").subscribe("/topic/here")
    heard_by(publisher, "/topic/here", got)
    before = {name: mesh.bytes_between("a", name) for name in ("b", "c")}

    publisher.publish("/topic/here", *[b"x" * 1000] * 200)

    eventually(lambda: len(got) >= 200, lambda: f"b has {len(got)} of 200")
    crossed = {name: mesh.bytes_between("a", name) - before[name] for name in ("b", "c")}
    assert crossed["b"] > 200_000
    assert crossed["c"] < 20_000, f"{crossed['c']} bytes went to c, where nobody listens"


def test_interest_ends_with_the_subscription(mesh: Cluster) -> None:
    publisher = mesh.client("a")
    subscriber = mesh.client("b")
    got = subscriber.subscribe("/topic/over")
    stays = mesh.client("b").subscribe("/topic/stays")
    heard_by(publisher, "/topic/over", got)

    subscriber.unsubscribe()
    publisher.publish("/topic/over", b"too late")
    heard_by(publisher, "/topic/stays", stays)

    assert got == []


def test_interest_comes_back_with_the_node(mesh: Cluster) -> None:
    mesh.kill("c")
    mesh.start("c")
    mesh.wait_for_links()
    got = mesh.client("c").subscribe("/topic/again")

    heard_by(mesh.client("a"), "/topic/again", got)
    heard_by(mesh.client("b"), "/topic/again", got)
