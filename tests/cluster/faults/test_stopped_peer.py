"""One node is stopped (SIGSTOP) with its connections open: the others go on, and it catches up when it runs again."""

from tests.support.cluster_bodies import bodies, endless, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Publisher


def test_publishers_and_readers_of_other_nodes_go_on_and_the_stopped_one_catches_up(mesh: Cluster) -> None:
    sent = numbered("meanwhile", 5000)
    on_b = mesh.client("b").subscribe("/fanout/stopped")
    on_c = mesh.client("c").subscribe("/fanout/stopped")
    publisher = mesh.client("a")

    mesh.pause("c")
    publisher.publish("/fanout/stopped", *sent)  # every receipt comes while c stands still
    eventually(lambda: len(on_b) >= 5000, lambda: f"b has {len(on_b)} of 5000 while c is stopped")
    assert on_c == []
    mesh.resume("c")

    eventually(lambda: len(on_c) >= 5000, lambda: f"c caught up with {len(on_c)} of 5000")
    assert bodies(on_b) == sent
    assert bodies(on_c) == sent


def test_more_than_any_buffer_holds_waits_on_disk_for_a_stopped_peer(mesh: Cluster) -> None:
    big = [bytes([number]) * (512 << 10) for number in range(40)]  # 20 MiB; sockets and windows hold a few
    publisher = mesh.client("a")
    mesh.pause("c")

    publisher.publish("/fanout/stopped.big", *big)
    mesh.resume("c")

    got = mesh.client("c").subscribe("/fanout/stopped.big")
    eventually(lambda: len(got) >= 40, lambda: f"c caught up with {len(got)} of 40")
    assert bodies(got) == big


def test_the_others_call_a_stopped_peer_away_and_then_up_again(mesh: Cluster) -> None:
    mesh.pause("c")
    eventually(lambda: mesh.misses("a", "c"), "a still calls its links with the stopped node up")

    mesh.resume("c")

    mesh.wait_for_links()
    mesh.wait_until_clear()


def test_jobs_that_a_stopped_node_s_consumer_had_are_done_elsewhere(mesh: Cluster) -> None:
    sent = numbered("job", 20)
    held = mesh.client("c").subscribe("/queue/stopped", ack="client-individual")
    mesh.client("a").publish("/queue/stopped", *sent)
    eventually(lambda: len(held) == 20, lambda: f"c has {len(held)} of 20")

    mesh.pause("c")
    got = mesh.client("b").consume("/queue/stopped")

    eventually(lambda: len(got) >= 20, lambda: f"b has {len(got)} of the 20 that the stopped node holds")
    assert sorted(bodies(got)) == sorted(sent)
    assert all(message.is_redelivered for message in got)


def test_a_publisher_with_heart_beats_notices_that_its_node_stands_still_and_goes_elsewhere(mesh: Cluster) -> None:
    publisher = Publisher(
        [mesh.address("c"), mesh.address("a")], "/fanout/stopped.beats", endless("beats"), heartbeats=(500, 500)
    )
    publisher.start()
    publisher.goes_on()

    mesh.pause("c")
    publisher.goes_on()  # on a
    mesh.resume("c")
    publisher.enough()
    publisher.wait()

    sent = set(publisher.receipted)
    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/stopped.beats")
        eventually(
            lambda g=got: len(g) >= len(sent) and set(bodies(g)) >= sent,
            lambda n=name, g=got: f"{n} lacks {len(sent - set(bodies(g)))} of {len(sent)}",
        )
