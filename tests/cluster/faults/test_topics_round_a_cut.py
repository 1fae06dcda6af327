"""Topics when a and b have no line to each other while both reach c: c passes them on, until the line is back."""

import time
from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("round"), cuttable=[("a", "b")]) as made:
        yield made


def via(mesh: Cluster, name: str, peer: str) -> str | None:
    """Through whom node `name` sends topic messages to `peer`."""
    found = [row["topics_via"] for row in mesh.status(name).get("peers", ()) if row["name"] == peer]
    return found[0] if found else ""


def cut_and_gone_round(mesh: Cluster) -> None:
    mesh.cut("a", "b")
    eventually(
        lambda: via(mesh, "a", "b") == via(mesh, "b", "a") == "c",
        lambda: f"a reaches b through {via(mesh, 'a', 'b')}, b reaches a through {via(mesh, 'b', 'a')}",
    )


def test_what_a_subscriber_has_its_receipt_for_reaches_it_from_every_node(mesh: Cluster) -> None:
    for name in mesh.names:
        topic = f"/topic/receipted.{name}"
        got = mesh.client(name).subscribe(topic)
        for publisher in mesh.names:
            mesh.client(publisher).publish(topic, publisher.encode())

        eventually(lambda g=got: len(g) == 3, lambda g=got, n=name: f"{n} heard {bodies(g)} of a, b and c")


def test_topics_go_both_ways_round_a_cut_in_order_and_none_twice(mesh: Cluster) -> None:
    cut_and_gone_round(mesh)
    on_a = mesh.client("a").subscribe("/topic/round")
    on_b = mesh.client("b").subscribe("/topic/round")
    of_a, of_b = numbered("of a", 300), numbered("of b", 300)

    mesh.client("a").publish("/topic/round", *of_a)
    mesh.client("b").publish("/topic/round", *of_b)

    for name, got in (("a", on_a), ("b", on_b)):
        eventually(lambda g=got: len(g) >= 600, lambda n=name, g=got: f"{n} heard {len(g)} of 600")
        assert [body for body in bodies(got) if body in of_a] == of_a
        assert [body for body in bodies(got) if body in of_b] == of_b
        assert len(got) == 600
    eventually(lambda: mesh.status("c").get("topics", {}).get("relayed", 0) >= 600, "c has passed on fewer than 600")


def test_a_stream_that_is_cut_and_healed_goes_on_in_order_and_none_of_it_comes_twice(mesh: Cluster) -> None:
    got = mesh.client("b").subscribe("/topic/stream")
    publisher = mesh.client("a")
    numbers = iter(range(1_000_000))

    def publish_for(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            publisher.publish("/topic/stream", *[str(next(numbers)).encode() for _ in range(20)])

    publish_for(0.3)
    mesh.cut("a", "b")
    eventually(lambda: publish_for(0.1) is None and via(mesh, "a", "b") == "c", "a finds no way round the cut")
    during = next(numbers)
    publish_for(0.5)
    mesh.heal("a", "b")
    eventually(lambda: publish_for(0.1) is None and via(mesh, "a", "b") == "b", "a does not go straight again")
    publisher.publish("/topic/stream", b"last")

    eventually(lambda: bodies(got)[-1:] == [b"last"], "the last one is missing")
    heard = [int(body) for body in bodies(got)[:-1]]
    assert heard == sorted(set(heard))
    assert any(number > during for number in heard)
