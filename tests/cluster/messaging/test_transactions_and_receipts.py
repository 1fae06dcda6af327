"""Receipts come once and in order; what a transaction holds happens at COMMIT as one, or never."""

import pytest

from tests.support.cluster_bodies import bodies
from tests.support.cluster_client import LostError
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


def test_every_receipt_comes_once_and_in_the_order_of_sending(mesh: Cluster) -> None:
    client = mesh.client("a")

    asked = [client.send("/queue/receipts", b"x" * 100, receipt=True) for _ in range(500)]
    client.wait_receipts(asked)

    assert list(client.receipts) == asked


def test_a_transaction_is_seen_on_other_nodes_only_after_commit_and_whole(mesh: Cluster) -> None:
    got = mesh.client("b").subscribe("/fanout/commit")
    client = mesh.client("a")
    client.begin("t")
    for body in (b"one", b"two", b"three"):
        client.send("/fanout/commit", body, transaction="t")
    mesh.client("a").publish("/fanout/commit", b"from outside")
    eventually(lambda: got, "b did not hear the message from outside the transaction")

    client.commit("t")

    eventually(lambda: len(got) >= 4, lambda: f"b has {bodies(got)}")
    assert bodies(got) == [b"from outside", b"one", b"two", b"three"]


def test_an_aborted_transaction_leaves_nothing(mesh: Cluster) -> None:
    got = mesh.client("b").subscribe("/fanout/abort")
    client = mesh.client("a")
    client.begin("t")
    client.send("/fanout/abort", b"never", transaction="t")

    client.abort("t")
    client.publish("/fanout/abort", b"after")

    eventually(lambda: got, "b heard nothing")
    assert bodies(got) == [b"after"]


def test_a_transaction_ends_with_its_connection(mesh: Cluster) -> None:
    got = mesh.client("b").subscribe("/fanout/gone")
    client = mesh.client("a")
    client.begin("t")
    client.send("/fanout/gone", b"never", transaction="t")
    client.publish("/fanout/gone", b"before")

    client.drop()
    mesh.client("a").publish("/fanout/gone", b"after")

    eventually(lambda: len(got) >= 2, lambda: f"b has {bodies(got)}")
    assert bodies(got) == [b"before", b"after"]


def test_an_acknowledgement_in_an_aborted_transaction_settles_nothing(mesh: Cluster) -> None:
    mesh.client("a").publish("/queue/tx.ack", b"one", b"two")
    consumer = mesh.client("b")
    held = consumer.subscribe("/queue/tx.ack", ack="client-individual")
    eventually(lambda: len(held) == 2, lambda: f"b has {len(held)} of 2")
    for transaction in ("kept", "dropped"):
        consumer.begin(transaction)
    consumer.acknowledge(held[0], transaction="kept")
    consumer.acknowledge(held[1], transaction="dropped")

    consumer.commit("kept")
    consumer.abort("dropped")
    consumer.drop()

    again = mesh.client("c").consume("/queue/tx.ack")
    eventually(lambda: again, "the message of the aborted transaction did not come again")
    assert bodies(again) == [held[1].body]
    eventually(lambda: mesh.depth("a", "/queue/tx.ack") == 0, "a still counts messages")


def test_a_wrong_frame_is_answered_with_its_receipt_and_harms_no_other_client(mesh: Cluster) -> None:
    other = mesh.client("a")
    got = other.subscribe("/fanout/wrong")
    client = mesh.client("a")

    with pytest.raises(LostError):
        client.publish("/nowhere/at-all", b"x")

    assert client.errors[0].headers["receipt-id"] == "r1"
    assert "/queue/" in client.errors[0].headers["message"] + client.errors[0].body.decode()
    other.publish("/fanout/wrong", b"still here")
    eventually(lambda: bodies(got) == [b"still here"], lambda: f"the other client has {bodies(got)}")
