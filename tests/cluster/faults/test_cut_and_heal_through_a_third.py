"""The line between a and b is cut while both reach c: c passes on what one has for the other, until it heals."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; between a and b lies a proxy in each direction, which their peers files give as the other's
    address."""
    with Cluster(tmp_path_factory.mktemp("cut"), cuttable=[("a", "b"), ("b", "c")]) as made:
        yield made


def cut_and_noticed(mesh: Cluster, one: str, other: str) -> None:
    mesh.cut(one, other)
    eventually(lambda: mesh.misses(one, other), f"{one} still calls its links with {other} up")
    eventually(lambda: mesh.misses(other, one), f"{other} still calls its links with {one} up")


def test_fanouts_cross_a_cut_through_the_third_node(mesh: Cluster) -> None:
    on_a = mesh.client("a").subscribe("/fanout/cut")
    on_b = mesh.client("b").subscribe("/fanout/cut")
    of_a, of_b = numbered("of a", 300), numbered("of b", 300)
    mesh.client("a").publish("/fanout/cut", *of_a[:100])
    mesh.client("b").publish("/fanout/cut", *of_b[:100])

    mesh.cut("a", "b")
    mesh.client("a").publish("/fanout/cut", *of_a[100:])
    mesh.client("b").publish("/fanout/cut", *of_b[100:])

    for name, got in (("a", on_a), ("b", on_b)):
        eventually(lambda g=got: len(g) >= 600, lambda n=name, g=got: f"{n} has {len(g)} of 600 during the cut")
        assert [body for body in bodies(got) if body in of_a] == of_a
        assert [body for body in bodies(got) if body in of_b] == of_b
        assert len(got) == 600


def test_a_line_that_is_dead_in_one_direction_only_is_gone_round_too(mesh: Cluster) -> None:
    on_a = mesh.client("a").subscribe("/fanout/oneway")
    on_b = mesh.client("b").subscribe("/fanout/oneway")
    mesh.proxies["a", "b"].cut()  # a cannot reach b; b still reaches a
    eventually(lambda: mesh.links("a").get("b", ("up",))[0] != "up", "a still calls its link to b up")

    mesh.client("a").publish("/fanout/oneway", *numbered("of a", 100))
    mesh.client("b").publish("/fanout/oneway", *numbered("of b", 100))

    for name, got in (("a", on_a), ("b", on_b)):
        eventually(lambda g=got: len(g) >= 200, lambda n=name, g=got: f"{n} has {len(g)} of 200")
        assert sorted(bodies(got)) == sorted(numbered("of a", 100) + numbered("of b", 100))
    # Meanwhile b, which still reaches a, dials for both.
    eventually(lambda: mesh.links("a").get("b", ("down",))[0] == "up", "a does not follow b over a line of b's")


def test_after_the_cut_the_link_returns_and_nothing_comes_twice(mesh: Cluster) -> None:
    on_b = mesh.client("b").subscribe("/fanout/heal")
    sent = numbered("message", 300)
    publisher = mesh.client("a")
    cut_and_noticed(mesh, "a", "b")
    publisher.publish("/fanout/heal", *sent[:150])

    mesh.heal("a", "b")
    publisher.publish("/fanout/heal", *sent[150:])
    mesh.wait_for_links()
    mesh.wait_until_same()

    eventually(lambda: len(on_b) >= 300, lambda: f"b has {len(on_b)} of 300")
    assert bodies(on_b) == sent


def test_a_node_cut_off_from_all_takes_messages_and_hands_them_on_when_it_heals(mesh: Cluster) -> None:
    of_a, of_b = numbered("of a", 100), numbered("of b", 100)
    cut_and_noticed(mesh, "a", "b")
    cut_and_noticed(mesh, "b", "c")
    mesh.client("a").publish("/fanout/island", *of_a)
    mesh.client("b").publish("/fanout/island", *of_b)

    mesh.heal("b", "c")  # a and b meet through c only

    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/island")
        eventually(lambda g=got: len(g) >= 200, lambda n=name, g=got: f"{n} has {len(g)} of 200")
        assert sorted(bodies(got)) == sorted(of_a + of_b)


def test_a_queue_goes_on_with_the_consumers_it_can_reach_and_uses_the_others_after_the_cut(mesh: Cluster) -> None:
    cut_and_noticed(mesh, "a", "b")
    on_b = mesh.client("b").consume("/queue/cut")
    consumer = mesh.client("c")
    on_c = consumer.consume("/queue/cut", "during")
    publisher = mesh.client("a")

    publisher.publish("/queue/cut", *numbered("during", 50))
    eventually(lambda: len(on_c) >= 50, lambda: f"c has {len(on_c)} of 50 during the cut")
    consumer.leave()
    publisher.publish("/queue/cut", *numbered("after", 50))
    mesh.heal("a", "b")

    eventually(lambda: len(on_b) >= 50, lambda: f"b has {len(on_b)} of 50 after the cut")
    assert sorted(bodies(on_c)) == sorted(numbered("during", 50))
    assert sorted(bodies(on_b)) == sorted(numbered("after", 50))


def test_an_acknowledgement_during_the_cut_reaches_the_owner_through_the_third_node(mesh: Cluster) -> None:
    consumer = mesh.client("b")
    held = consumer.subscribe("/queue/cut.ack", ack="client-individual")
    mesh.client("a").publish("/queue/cut.ack", *numbered("job", 20))
    eventually(lambda: len(held) == 20, lambda: f"b has {len(held)} of 20")

    mesh.cut("a", "b")
    consumer.wait_receipts([consumer.acknowledge(message, receipt=True) for message in held])

    eventually(
        lambda: mesh.depth("a", "/queue/cut.ack") == 0, lambda: f"a counts {mesh.depth('a', '/queue/cut.ack')} of 0"
    )
    eventually(lambda: mesh.links("a"), "a does not answer")
    assert mesh.links("a").get("b") != ("up", "up")


def test_a_reader_that_has_seen_more_than_its_new_node_gets_nothing_twice(mesh: Cluster) -> None:
    sent = numbered("message", 60)
    publisher = mesh.client("a")
    publisher.publish("/fanout/ahead", *sent[:20])
    mesh.wait_until_same()
    cut_and_noticed(mesh, "a", "b")
    cut_and_noticed(mesh, "b", "c")
    publisher.publish("/fanout/ahead", *sent[20:40])
    before = mesh.client("a").subscribe("/fanout/ahead")
    eventually(lambda: len(before) == 40, lambda: f"the reader on a has {len(before)} of 40")
    origin, _, sequence = before[-1].id.rpartition("-")

    after = mesh.client("b").subscribe("/fanout/ahead", headers={"qmq-resume": f"{origin}={sequence}"})
    mesh.heal("a", "b")
    publisher.publish("/fanout/ahead", *sent[40:])

    eventually(lambda: after and after[-1].body == sent[-1], lambda: f"the reader on b has {bodies(after)}")
    assert bodies(after) == sent[40:]
