"""What is sent to a fanout on one node reaches every subscriber on every node, also those that come later."""

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


def wait_for(got: list[Message], wanted: list[bytes], who: str) -> None:
    """Until `got` has as many as `wanted`, and then they are the same in the same order."""
    eventually(lambda: len(got) >= len(wanted), lambda: f"{who} has {len(got)} of {len(wanted)} messages")
    assert bodies(got) == wanted


def test_subscribers_on_all_nodes_get_every_message_in_order(mesh: Cluster) -> None:
    sent = numbered("live", 300)
    got = {name: mesh.client(name).subscribe("/fanout/live") for name in mesh.names}

    mesh.client("a").publish("/fanout/live", *sent)

    for name, messages in got.items():
        wait_for(messages, sent, f"the subscriber on {name}")


def test_messages_of_every_node_reach_every_node_in_the_order_of_their_sender(mesh: Cluster) -> None:
    got = {name: mesh.client(name).subscribe("/fanout/all") for name in mesh.names}
    sent = {name: numbered(f"from {name}", 100) for name in mesh.names}
    publishers = {name: mesh.client(name) for name in mesh.names}

    for number in range(100):
        for name, client in publishers.items():
            client.send("/fanout/all", sent[name][number])

    for name, messages in got.items():
        eventually(lambda m=messages: len(m) >= 300, lambda n=name, m=messages: f"{n} has {len(m)} of 300")
        for sender in mesh.names:
            assert [body for body in bodies(messages) if body in sent[sender]] == sent[sender]
        assert len(messages) == 300


def test_a_late_subscriber_gets_what_was_sent_before_it_came_on_any_node(mesh: Cluster) -> None:
    sent = numbered("early", 50)
    mesh.client("a").publish("/fanout/late", *sent)

    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/late", headers={"x-stream-offset": "first"})
        wait_for(got, sent, f"the late subscriber on {name}")


def test_a_subscriber_that_asks_for_what_comes_next_gets_nothing_older(mesh: Cluster) -> None:
    publisher = mesh.client("a")
    publisher.publish("/fanout/next", b"old")
    # What a node has received and not yet on its disk comes next there.
    wait_for(mesh.client("b").subscribe("/fanout/next"), [b"old"], "the first subscriber on b")

    got = mesh.client("b").subscribe("/fanout/next", headers={"x-stream-offset": "next"})
    publisher.publish("/fanout/next", b"new")

    wait_for(got, [b"new"], "the subscriber on b")


def test_past_and_present_join_without_a_skip_or_a_repeat(mesh: Cluster) -> None:
    sent = numbered("both", 2000)
    publisher = mesh.client("a")
    publisher.publish("/fanout/join", *sent[:1000])
    for body in sent[1000:1500]:
        publisher.send("/fanout/join", body)

    got = {name: mesh.client(name).subscribe("/fanout/join") for name in mesh.names}
    for body in sent[1500:]:
        publisher.send("/fanout/join", body)

    for name, messages in got.items():
        wait_for(messages, sent, f"the subscriber on {name}")


def test_a_subscriber_resumes_on_another_node_exactly_where_it_stood(mesh: Cluster) -> None:
    sent = numbered("resumed", 60)
    publisher = mesh.client("a")
    publisher.publish("/fanout/resume", *sent[:20])
    first = mesh.client("b")
    before = first.subscribe("/fanout/resume")
    wait_for(before, sent[:20], "the subscriber on b")
    origin, _, sequence = before[-1].id.rpartition("-")
    first.drop()
    publisher.publish("/fanout/resume", *sent[20:40])

    after = mesh.client("c").subscribe("/fanout/resume", headers={"qmq-resume": f"{origin}={sequence}"})
    publisher.publish("/fanout/resume", *sent[40:])

    wait_for(after, sent[20:], "the subscriber that went on to c")


def test_the_id_of_a_message_is_the_same_on_every_node(mesh: Cluster) -> None:
    got = {name: mesh.client(name).subscribe("/fanout/ids") for name in mesh.names}

    mesh.client("b").publish("/fanout/ids", *numbered("one", 10))

    for name, messages in got.items():
        eventually(lambda m=messages: len(m) >= 10, f"the subscriber on {name} did not get ten messages")
    ids = {name: [message.id for message in messages] for name, messages in got.items()}
    assert ids["a"] == ids["b"] == ids["c"]
    assert len(set(ids["a"])) == 10


def test_headers_and_bodies_of_any_bytes_travel_unchanged(mesh: Cluster) -> None:
    body = bytes(range(256)) * 3
    got = mesh.client("c").subscribe("/fanout/bytes")

    mesh.client("a").publish("/fanout/bytes", body, colour="a:b\\c\nd", **{"content_type": "image/x"})

    eventually(lambda: got, "c got nothing")
    assert got[0].body == body
    assert got[0].headers["colour"] == "a:b\\c\nd"
    assert got[0].headers["content-type"] == "image/x"
