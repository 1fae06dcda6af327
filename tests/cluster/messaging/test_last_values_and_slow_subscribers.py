"""Topics that keep their last value, and subscribers that may miss what they do not read."""

import threading
from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; the line between a and b lies open."""
    with Cluster(tmp_path_factory.mktemp("values"), cuttable=[("a", "b")]) as made:
        yield made


def values(mesh: Cluster, name: str) -> int:
    """How many topics have a value on this node."""
    return int(mesh.status(name).get("retained", {}).get("topics", -1))


def marks(messages: list[Message]) -> list[bool]:
    return [message.headers.get("retained") == "true" for message in messages]


def late(mesh: Cluster, name: str, topic: str) -> list[Message]:
    """What a subscriber that comes now is told at once."""
    got = mesh.client(name).subscribe(topic)
    eventually(lambda: got, f"{name}: nothing is retained of {topic}")
    return got


def test_a_late_subscriber_on_any_node_hears_the_last_value_first(mesh: Cluster) -> None:
    heard = {name: mesh.client(name).subscribe("/topic/price.x") for name in mesh.names}
    publisher = mesh.client("a")
    publisher.publish("/topic/price.x", b"1", b"2", b"3", retain="set")

    for name in mesh.names:
        eventually(lambda n=name: b"3" in bodies(heard[n]), f"the last value has not reached {name}")
        for pattern in ("/topic/price.x", "/topic/price.*", "/topic/pr*"):
            got = late(mesh, name, pattern)
            assert (bodies(got), marks(got)) == ([b"3"], [True])

    publisher.publish("/topic/price.x", b"", retain="remove")
    for name in mesh.names:
        eventually(lambda n=name: values(mesh, n) == 0, f"the value is still on {name}")


def test_values_survive_the_death_of_the_node_that_took_them_and_come_back_to_it(mesh: Cluster) -> None:
    publisher = mesh.client("c")
    for number in range(300):
        publisher.send(f"/topic/kept.{number}", b"%d" % number, retain="set")
    publisher.publish("/topic/kept.last", b"last", retain="set")
    for name in mesh.names:
        eventually(lambda n=name: values(mesh, n) == 301, lambda n=name: f"{n} has {values(mesh, n)} of 301 values")

    mesh.kill("c")
    mesh.wipe("c")
    mesh.start("c")
    mesh.wait_for_links()

    eventually(lambda: values(mesh, "c") == 301, lambda: f"c has {values(mesh, 'c')} of 301 values")
    got = mesh.client("c").subscribe("/topic/kept.#")
    eventually(lambda: len(got) == 301, lambda: f"{len(got)} of 301 arrived")
    assert sorted(bodies(got)) == sorted([b"last", *[b"%d" % number for number in range(300)]])
    assert all(marks(got))


def test_a_value_reaches_the_other_side_of_a_cut_through_a_third_node(mesh: Cluster) -> None:
    got = mesh.client("b").subscribe("/topic/round")
    mesh.cut("a", "b")

    mesh.client("a").publish("/topic/round", b"about", retain="set")

    eventually(lambda: got, "the value has not come through c", seconds=60)
    assert bodies(got)[-1] == b"about"
    mesh.heal("a", "b")


def test_a_subscriber_that_does_not_keep_up_misses_the_oldest_and_learns_how_many(mesh: Cluster) -> None:
    publisher, body = mesh.client("a"), b"x" * 20_000
    got: list[Message] = []
    reads_on = threading.Event()

    def slowly(client: Client, message: Message) -> None:
        got.append(message)
        reads_on.wait(60)

    mesh.client("b").subscribe(
        "/topic/flood", on_message=slowly, headers={"buffer-messages": "5", "overflow": "drop-oldest"}
    )
    quick = mesh.client("b").subscribe("/topic/flood")

    def probed() -> bool:
        publisher.send("/topic/flood", b"probe")
        return bool(quick) and bool(got)

    eventually(probed, "the interest of b has not reached a")
    for number in range(30):
        publisher.publish("/topic/flood", *[body] * 50, b"%d" % number)
        eventually(lambda n=number: quick[-1].body == b"%d" % n, "the other subscriber does not get all")
    publisher.publish("/topic/flood", b"end")
    reads_on.set()

    eventually(lambda: got[-1].body == b"end", "the newest message did not come")
    eventually(lambda: quick[-1].body == b"end", "the other subscriber did not get all")
    dropped = sum(int(message.headers.get("dropped", "0")) for message in got)
    assert len(got) + dropped == len(quick)
    assert dropped
    eventually(lambda: mesh.status("b").get("dropped") == dropped, "the node counts otherwise")
