"""The same with five nodes, from cluster/five.toml."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes a to e."""
    with Cluster(tmp_path_factory.mktemp("five"), "five.toml") as made:
        yield made


def test_five_nodes_have_twenty_links_both_ways(mesh: Cluster) -> None:
    def links() -> list[tuple[str, str]]:
        return [state for name in mesh.names for state in mesh.links(name).values()]

    eventually(lambda: links() == [("up", "up")] * 20, lambda: f"links: {links()}")


def test_a_fanout_reaches_all_five_in_order(mesh: Cluster) -> None:
    sent = numbered("five", 500)
    got = {name: mesh.client(name).subscribe("/fanout/five") for name in mesh.names}

    mesh.client("a").publish("/fanout/five", *sent)

    for name, messages in got.items():
        eventually(lambda m=messages: len(m) >= 500, lambda n=name, m=messages: f"{n} has {len(m)} of 500")
        assert bodies(messages) == sent


def test_work_is_shared_by_consumers_on_all_five(mesh: Cluster) -> None:
    sent = numbered("job", 500)
    got = [mesh.client(name).consume("/queue/five", prefetch=5) for name in mesh.names]

    mesh.client("c").publish("/queue/five", *sent)

    eventually(lambda: sum(map(len, got)) >= 500, lambda: f"{[len(messages) for messages in got]} of 500")
    assert sorted(body for messages in got for body in bodies(messages)) == sorted(sent)


def test_four_go_on_without_the_fifth_and_it_catches_up(mesh: Cluster) -> None:
    sent = numbered("four", 500)
    got = {name: mesh.client(name).subscribe("/fanout/four") for name in "abcd"}
    publisher = mesh.client("a")
    publisher.publish("/fanout/four", *sent[:250])

    mesh.kill("e")
    publisher.publish("/fanout/four", *sent[250:])
    for name, messages in got.items():
        eventually(lambda m=messages: len(m) >= 500, lambda n=name, m=messages: f"{n} has {len(m)} of 500")
    mesh.start("e")

    on_e = mesh.client("e").subscribe("/fanout/four")
    eventually(lambda: len(on_e) >= 500, lambda: f"the returned node has {len(on_e)} of 500")
    assert bodies(on_e) == sent
