"""Repair with real processes: away for too long, wiped behind dropped journals, and rotten bits under load."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Client, LostError, Message
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

STORAGE = """
[storage]
segment_bytes_max = 65536
journal_keep_bytes = 1
journal_bytes_max = 262144
checkpoint_bytes = 65536
"""
"""Journals that are short for a test, and that stores take over from soon."""

NOISE = b"x" * 20_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    files = dict.fromkeys("abc", STORAGE)
    with Cluster(tmp_path_factory.mktemp("repair"), node_files=files, node_file=PATIENT_NODE_FILE) as made:
        yield made


def journal_of(mesh: Cluster, name: str) -> list[Path]:
    return sorted((mesh.fleet.nodes[name].data / "journal").glob("*.qmq"))


def forget_the_past(mesh: Cluster, *names: str) -> None:
    """Let these nodes write until what stands in their journals now is dropped."""
    old = {path for name in names for path in journal_of(mesh, name)}
    for name in names:
        client = mesh.client(name)
        taken = client.consume(f"/queue/noise.{name}")

        def is_forgotten(name: str = name, client: Client = client, taken: list[Message] = taken) -> bool:
            wanted = len(taken) + 20
            client.publish(f"/queue/noise.{name}", *[NOISE] * 20)
            eventually(lambda: len(taken) >= wanted, "noise does not come back")
            return old.isdisjoint(journal_of(mesh, name))

        eventually(is_forgotten, f"{name} keeps its journal")
        client.drop()


def flip_bits_of_a_journal(mesh: Cluster, name: str, rng: random.Random, number: int) -> None:
    """In one that the node drops at this moment, or has not begun to fill, there are none."""

    def is_done() -> bool:
        with contextlib.suppress(FileNotFoundError, ValueError):
            flip_bits(rng.choice(journal_of(mesh, name)), rng, number)
            return True
        return False

    eventually(is_done, f"{name} has no journal")


def flip_bits(path: Path, rng: random.Random, number: int) -> None:
    """Change single bits anywhere in the file, as a bad disk would; a running node sees it at its next read."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        for _ in range(number):
            place = rng.randrange(size)
            file.seek(place)
            (value,) = file.read(1)
            file.seek(place)
            file.write(bytes([value ^ 1 << rng.randrange(8)]))


def test_a_node_that_comes_back_too_late_gets_what_is_left_and_hands_out_nothing_twice(mesh: Cluster) -> None:
    sent, told = numbered("job", 60), numbered("told", 120)
    consumer = mesh.client("a")
    held = consumer.subscribe("/queue/late", ack="client-individual")
    mesh.client("c").publish("/queue/late", *sent[:30])
    eventually(lambda: len(held) == 30, lambda: f"a has {len(held)} of 30 jobs")
    mesh.client("b").publish("/fanout/late", *told[:20])
    mesh.wait_until_same()

    mesh.kill("c")
    consumer.wait_receipts([consumer.acknowledge(message, receipt=True) for message in held[:20]])
    consumer.drop()
    mesh.client("b").publish("/fanout/late", *told[20:])
    mesh.client("b").publish("/queue/late", *sent[30:])
    forget_the_past(mesh, "a", "b")
    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    reader = mesh.client("c").subscribe("/fanout/late")
    eventually(lambda: len(reader) >= 120, lambda: f"c has {len(reader)} of 120 messages")
    assert bodies(reader) == told
    left = mesh.client("c").consume("/queue/late")
    eventually(lambda: len(left) >= 40, lambda: f"c hands out {len(left)} of 40 jobs")
    mesh.wait_until_same()
    assert sorted(bodies(left)) == sorted(sent[20:])
    assert "gap" not in mesh.reported("c")


def test_a_wiped_node_gets_everything_back_behind_dropped_journals(mesh: Cluster) -> None:
    sent, told = numbered("job", 50), numbered("told", 50)
    mesh.client("c").publish("/queue/wiped.late", *sent)
    mesh.client("c").publish("/fanout/wiped.late", *told)
    mesh.wait_until_same()
    mesh.kill("c")
    mesh.wipe("c")
    forget_the_past(mesh, "a", "b")

    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    reader = mesh.client("c").subscribe("/fanout/wiped.late")
    eventually(lambda: len(reader) >= 50, lambda: f"c has {len(reader)} of 50 messages")
    assert bodies(reader) == told
    got = mesh.client("b").consume("/queue/wiped.late")
    eventually(lambda: len(got) >= 50, lambda: f"b has {len(got)} of 50 jobs")
    assert sorted(bodies(got)) == sorted(sent)


def test_bits_that_flip_on_one_node_under_load_lose_nothing(mesh: Cluster) -> None:
    rng = random.Random("rot")
    sent: list[bytes] = []
    jobs: list[bytes] = []
    perhaps: list[bytes] = []
    reader = mesh.client("a").subscribe("/fanout/rot")
    for round_ in range(12):
        for name in ("a", "b", "c"):
            if not mesh.fleet.nodes[name].is_alive:
                continue
            told, work = numbered(f"told {round_} {name}", 20), numbered(f"job {round_} {name}", 5)
            try:
                client = mesh.client(name)
                client.publish("/fanout/rot", *told)
                client.publish("/queue/rot", *work)
                client.drop()
            except LostError:
                assert name == "c"
                eventually(lambda: not mesh.fleet.nodes["c"].is_alive, "c does not answer, and does not end")
                perhaps += told
                continue
            sent += told
            jobs += work
        flip_bits_of_a_journal(mesh, "c", rng, 3)
        if round_ % 4 == 3:
            # A node that meets damage in what its stores have not taken stops by itself; others are killed.
            mesh.kill("c")
            mesh.start("c")
    mesh.kill("c")
    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    eventually(lambda: set(bodies(reader)) >= set(sent), lambda: f"a has {len(reader)} of {len(sent)}")
    told = bodies(reader)
    assert len(told) == len(set(told))
    assert set(told) <= {*sent, *perhaps}
    got = mesh.client("b").consume("/queue/rot")
    eventually(lambda: set(bodies(got)) >= set(jobs), lambda: f"{len(set(jobs) - set(bodies(got)))} jobs are missing")


def test_readers_of_a_rotten_fanout_log_are_sent_elsewhere(mesh: Cluster) -> None:
    told = numbered("told", 40)
    mesh.client("a").publish("/fanout/rotten", *told)
    mesh.wait_until_same()
    forget_the_past(mesh, "a", "b", "c")
    (path,) = (mesh.fleet.nodes["c"].data / "fanout").glob("fanout_rotten-*/*.qmq")
    with path.open("r+b") as file:
        file.seek(file.read().index(b"told 20"))
        file.write(b"tolD")

    refused = mesh.client("c")
    refused.subscribe("/fanout/rotten")
    eventually(refused.ended.is_set, "a reader of a damaged log is not told so")
    reader = mesh.client("b").subscribe("/fanout/rotten")
    eventually(lambda: len(reader) >= 40, lambda: f"b has {len(reader)} of 40 messages")
    assert bodies(reader) == told
    eventually(lambda: "damage" in mesh.reported("c"), "nothing reported about the damage")


def spoil_in_place(path: Path, old: bytes, new: bytes) -> None:
    """Change what stands in the file of a node that is down, as a bad disk would."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def waiting_on_c(mesh: Cluster, queue: str) -> list[bytes]:
    """300 receipted messages of c, which no journal has any more, and c stopped in order."""
    sent = [body + b" " * 100 for body in numbered(queue, 300)]
    client = mesh.client("c")
    client.publish(queue, *sent)
    client.drop()
    mesh.wait_until_same()
    forget_the_past(mesh, "a", "b", "c")
    mesh.wait_until_same()
    assert mesh.stop("c") == 0
    return sent


def consumed(mesh: Cluster, name: str, queue: str, sent: list[bytes]) -> None:
    """All of it comes, each once, as it was sent."""
    got = mesh.client(name).consume(queue)
    eventually(lambda: len(got) >= len(sent), lambda: f"{name} has {len(got)} of {len(sent)} jobs")
    mesh.wait_until_same()
    assert sorted(bodies(got)) == sorted(sent)


def test_flipped_bits_in_the_queue_store_change_no_message(mesh: Cluster) -> None:
    queue = "/queue/rotten.rows"
    sent = waiting_on_c(mesh, queue)
    store = mesh.fleet.nodes["c"].data / "queues.sqlite"
    for body in (sent[7], sent[150], sent[299]):
        spoil_in_place(store, body, bytes([body[0] ^ 4]) + body[1:])

    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    eventually(lambda: "damage" in mesh.reported("c"), "nothing reported about the damage")
    consumed(mesh, "c", queue, sent)
    assert "lost" not in mesh.reported("c")


def test_a_queue_store_that_is_malformed_is_made_again(mesh: Cluster) -> None:
    queue = "/queue/malformed"
    sent = waiting_on_c(mesh, queue)
    node = mesh.fleet.nodes["c"]
    rng = random.Random("malformed")
    flip_bits(node.data / "queues.sqlite", rng, 500)

    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    eventually(lambda: "damage" in mesh.reported("c"), "nothing reported about the damage")
    consumed(mesh, "c", queue, sent)
    assert "lost" not in mesh.reported("c")
    assert list((node.data / "quarantine").glob("queues-*.sqlite"))


def test_a_queue_store_that_turns_out_to_be_malformed_under_load_is_made_again_by_the_next_start(mesh: Cluster) -> None:
    queue = "/queue/malformed.late"
    sent = waiting_on_c(mesh, queue)
    node = mesh.fleet.nodes["c"]
    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()
    store = node.data / "queues.sqlite"
    page = 8192
    with store.open("r+b") as file:
        size = file.seek(0, 2)
        for place in range(page, size, page):
            file.seek(place)
            file.write(b"\xff" * 16)

    client = mesh.client("c")
    with contextlib.suppress(LostError):  # It may end before it has subscribed.
        client.consume(queue)
    got = client.messages["s"]
    eventually(lambda: len(got) >= len(sent) or not node.is_alive, "the damaged file is not noticed")
    if node.is_alive:
        mesh.stop("c")  # It had all that it needed in memory.
    mesh.start("c")
    mesh.wait_for_links()
    mesh.wait_until_same()

    again = mesh.client("c").consume(queue)
    eventually(
        lambda: set(bodies(got)) | set(bodies(again)) >= set(sent),
        lambda: f"{len(set(sent) - set(bodies(got)) - set(bodies(again)))} jobs are missing",
    )
    assert set(bodies(got)) | set(bodies(again)) == set(sent)
