"""Subscribers that want a part of a topic or fanout get that part, whichever node the publisher is connected to."""

from itertools import count

import pytest

from tests.support.cluster_bodies import bodies
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

PRICES = [("A", 5), ("B", 7), ("A", 12), ("C", 1), ("B", 30), ("A", 100)]


def publish_prices(publisher: Client, destination: str) -> None:
    for symbol, price in PRICES:
        publisher.publish(destination, f"{symbol} {price}".encode(), symbol=symbol, price=str(price))


def test_a_topic_is_selected_from_on_every_node(mesh: Cluster) -> None:
    everything = {name: mesh.client(name).subscribe("/topic/prices") for name in mesh.names}
    dear = {
        name: mesh.client(name).subscribe("/topic/prices", headers={"selector": "price > 10 AND symbol IN ('A', 'B')"})
        for name in mesh.names
    }
    publisher = mesh.client("a")
    probes = count()

    def probe() -> bool:
        publisher.send("/topic/prices", f"probe {next(probes)}".encode())
        return all(everything.values())

    eventually(probe, "the interest of a node has not reached the publisher's")
    publish_prices(publisher, "/topic/prices")
    publisher.publish("/topic/prices", b"end", symbol="A", price="1e3")

    for name in mesh.names:
        eventually(lambda n=name: dear[n] and dear[n][-1].body == b"end", f"{name}: the last message is missing")
        assert bodies(dear[name]) == [b"A 12", b"B 30", b"A 100", b"end"]
        eventually(lambda n=name: everything[n][-1].body == b"end", f"{name}: not everything came")
        sent = [body for body in bodies(everything[name]) if not body.startswith(b"probe")]
        assert len(sent) == len(PRICES) + 1


def test_a_fanout_is_selected_from_on_another_node_also_later(mesh: Cluster) -> None:
    publish_prices(mesh.client("a"), "/fanout/prices")

    got = mesh.client("c").subscribe("/fanout/prices", headers={"selector": "symbol <> 'A'"})
    eventually(lambda: len(got) >= 3, lambda: f"{len(got)} of 3 arrived")
    mesh.client("b").publish("/fanout/prices", b"unwanted", symbol="A")
    mesh.client("b").publish("/fanout/prices", b"wanted", symbol="D")

    eventually(lambda: len(got) >= 4, lambda: f"{len(got)} of 4 arrived")
    assert bodies(got) == [b"B 7", b"C 1", b"B 30", b"wanted"]


def test_a_selector_that_cannot_be_read_is_refused_by_the_node(mesh: Cluster) -> None:
    client = mesh.client("b")

    with pytest.raises(LostError):
        client.subscribe("/topic/prices", headers={"selector": "price >> 10"})

    eventually(lambda: client.errors, "no ERROR came")
    assert client.errors[0].headers["error-code"] == "bad-selector"
    assert "column 8" in client.errors[0].headers["message"]
