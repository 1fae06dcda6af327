"""Durable subscriptions of fanouts with a stock client: kill -9 of the node, another node, and the words of others."""

import pytest

from tests.support.cluster_bodies import bodies, endless, numbered
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Publisher

RABBIT = {"durable": "true"}

ROUND = 1000
"""Messages of a publisher for each life of a node."""


def acknowledge(client: Client, messages: list[Message]) -> None:
    client.wait_receipts([client.acknowledge(message, receipt=True) for message in messages])


def test_after_kill_9_it_goes_on_with_what_was_not_acknowledged(mesh: Cluster) -> None:
    subscriber = mesh.client("a")
    got = subscriber.subscribe("/fanout/dur.kill", "mail", ack="client-individual", headers=RABBIT)
    sent = numbered("event", 100)
    mesh.client("b").publish("/fanout/dur.kill", *sent)
    eventually(lambda: len(got) >= 100, lambda: f"{len(got)} of 100")
    done = got[10:40] + got[70:80]
    acknowledge(subscriber, done)

    mesh.kill("a")
    mesh.start("a")

    client = mesh.client("a")
    again = client.subscribe("/fanout/dur.kill", "mail", ack="client-individual", headers=RABBIT)
    eventually(lambda: len(again) >= 60, lambda: f"{len(again)} of 60")
    assert sorted(bodies(again)) == sorted(set(sent) - set(bodies(done)))
    assert all(message.is_redelivered for message in again)
    acknowledge(client, again)
    client.leave()
    late = mesh.client("a").subscribe("/fanout/dur.kill", "mail", ack="client-individual", headers=RABBIT)
    mesh.client("c").publish("/fanout/dur.kill", b"last")
    eventually(lambda: late, "nothing comes any more")
    assert bodies(late) == [b"last"]


def test_it_goes_on_at_any_node(mesh: Cluster) -> None:
    seen: list[bytes] = []
    sent = numbered("event", 90)
    for number, name in enumerate(("a", "b", "c")):
        client = mesh.client(name)
        got = client.subscribe("/fanout/dur.any", "mail", ack="client", headers=RABBIT)
        part = sent[30 * number : 30 * number + 30]
        mesh.client("b").publish("/fanout/dur.any", *part)
        eventually(lambda g=got: len(g) >= 30, lambda g=got, n=name: f"{n} told {len(g)} of 30")
        acknowledge(client, got[-1:])
        seen += bodies(got)
        client.leave()
        mesh.wait_until_same()

    assert seen == sent


def test_nothing_receipted_is_lost_while_the_node_dies_again_and_again(mesh: Cluster) -> None:
    # No more than the subscriber, which waits for a node to start, reads afterwards.
    publisher = Publisher([mesh.address("b")], "/fanout/dur.again", endless("again"), allowed=ROUND)
    subscriber = mesh.client("a")
    seen: list[bytes] = []

    def attach() -> Client:
        client = mesh.client("a")
        client.subscribe(
            "/fanout/dur.again",
            "mail",
            ack="client-individual",
            headers={**RABBIT, "prefetch-count": "20"},
            on_message=take,
        )
        return client

    def take(client: Client, message: Message) -> None:
        seen.append(message.body)
        client.acknowledge(message)

    subscriber.leave()
    attach()
    publisher.start()
    for _ in range(3):
        publisher.goes_on()
        mesh.kill("a")
        mesh.start("a")
        attach()
        publisher.allowed += ROUND
    publisher.goes_on()
    publisher.enough()
    publisher.wait()

    sent = set(publisher.receipted)
    eventually(lambda: set(seen) >= sent, lambda: f"{len(sent - set(seen))} of {len(sent)} are missing")


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_every_version_of_stomp_in_the_words_of_activemq(mesh: Cluster, version: str) -> None:
    name = {"activemq.subscriptionName": "mail"}
    destination = f"/fanout/dur.{version}"

    def attach() -> tuple[Client, list[Message]]:
        client = mesh.client("c", version, headers={"client-id": "ann"})
        return client, client.subscribe(destination, "1", ack="client", headers=name)

    client, got = attach()
    mesh.client("a").publish(destination, b"1", b"2", b"3")
    eventually(lambda: len(got) >= 3, lambda: f"{len(got)} of 3")
    acknowledge(client, got[1:2])
    client.leave()

    _, again = attach()

    eventually(lambda: again, "nothing comes again")
    assert bodies(again) == [b"3"]


def test_status_lists_the_one_without_a_client(mesh: Cluster) -> None:
    client = mesh.client("a")
    client.subscribe("/fanout/dur.listed", "left", headers=RABBIT)
    client.leave()
    mesh.wait_until_same()

    def listed(name: str) -> bool:
        rows = mesh.status(name).get("durables", ())
        return any((row["name"], row["in_use"]) == ("left", False) for row in rows)

    eventually(lambda: all(listed(name) for name in mesh.names), "a node does not list it")
