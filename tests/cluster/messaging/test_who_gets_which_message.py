"""Selectors, groups, exclusive consumers and browsers of queues: every consumer on another node than its publisher."""

from collections import Counter
from itertools import count

from tests.support.cluster_bodies import bodies
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

SELECTED, GROUPED, EXCLUSIVE, BROWSED = (f"/queue/chosen.{name}" for name in ("some", "grouped", "one", "browsed"))
"""A queue a test: what one leaves unacknowledged comes back, and another would get it."""


def working(mesh: Cluster, name: str, queue: str, **headers: str) -> tuple[Client, list[Message]]:
    """A client that acknowledges what it gets of `queue`, and what it got."""
    client = mesh.client(name)
    got = client.subscribe(queue, ack="client-individual", headers=headers, on_message=Client.acknowledge)
    return client, got


def test_a_selector_takes_its_part_of_a_queue_and_leaves_the_rest(mesh: Cluster) -> None:
    _, red = working(mesh, "b", SELECTED, selector="color = 'red'")
    publisher = mesh.client("a")
    for number in range(60):
        publisher.publish(SELECTED, b"%d" % number, color="red" if number % 3 == 0 else "blue")

    eventually(lambda: len(red) == 20, lambda: f"{len(red)} of 20 red ones came")
    _, rest = working(mesh, "c", SELECTED)
    eventually(lambda: len(rest) == 40, lambda: f"{len(rest)} of 40 others came")
    assert all(int(body) % 3 == 0 for body in bodies(red))
    eventually(lambda: mesh.depth("a", SELECTED) == 0, "not everything is settled")


def test_all_messages_of_a_group_go_to_one_consumer_also_after_its_node_was_killed(mesh: Cluster) -> None:
    workers = [working(mesh, name, GROUPED)[1] for name in "bbcc"]
    publisher = mesh.client("a")
    probes = count()

    def all_known() -> bool:
        publisher.publish(GROUPED, b"probe", JMSXGroupID=f"probe{next(probes)}")
        return all(workers)

    eventually(all_known, "some consumer never got a group")
    for number in range(100):
        publisher.publish(GROUPED, b"g%d" % (number % 10), JMSXGroupID=f"g{number % 10}")

    def came() -> int:
        return sum(body.startswith(b"g") for got in workers for body in bodies(got))

    eventually(lambda: came() == 100, lambda: f"{came()} of 100 came")
    for group in range(10):
        assert sorted(bodies(got).count(b"g%d" % group) for got in workers) == [0, 0, 0, 10]

    mesh.kill("c")
    left = workers[:2]
    for number in range(100):
        publisher.publish(GROUPED, b"h%d" % (number % 10), JMSXGroupID=f"h{number % 10}")
    eventually(
        lambda: sum(body.startswith(b"h") for got in left for body in bodies(got)) >= 100,
        "a group waits for the dead node",
    )
    for group in range(10):
        assert min(Counter(bodies(got))[b"h%d" % group] for got in left) == 0


def test_one_exclusive_consumer_in_the_whole_mesh_and_then_the_next(mesh: Cluster) -> None:
    first, one = working(mesh, "b", EXCLUSIVE, exclusive="true")
    publisher = mesh.client("a")
    publisher.publish(EXCLUSIVE, b"0")
    eventually(lambda: one, "the first consumer got nothing")
    _, two = working(mesh, "c", EXCLUSIVE, exclusive="true")
    publisher.publish(EXCLUSIVE, *(b"%d" % number for number in range(1, 50)))
    eventually(lambda: len(one) == 50, lambda: f"{len(one)} of 50 came")
    assert not two

    first.leave()
    publisher.publish(EXCLUSIVE, b"last")

    eventually(lambda: bodies(two) == [b"last"], "the second consumer did not take over")


def test_a_browser_sees_the_messages_of_all_nodes_and_takes_none(mesh: Cluster) -> None:
    for name in mesh.names:
        mesh.client(name).publish(BROWSED, name.encode())
    mesh.wait_until_same()

    seen = mesh.client("c").subscribe(BROWSED, headers={"browser": "true"})

    eventually(lambda: seen and seen[-1].headers.get("browser") == "end", "the end never came")
    assert sorted(bodies(seen)) == [b"", *(name.encode() for name in mesh.names)]
    _, got = working(mesh, "b", BROWSED)
    eventually(lambda: len(got) == len(mesh.names), "the browser has taken something")
