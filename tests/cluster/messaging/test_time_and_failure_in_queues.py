"""Delays, dead letters and transactions of real nodes that are killed in the middle."""

from contextlib import suppress

from tests.support.cluster_client import Client, LostError, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

DEAD = "/queue/dead-letters"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def refuse(client: Client, message: Message) -> None:
    with suppress(LostError):
        client.refuse(message, requeue="false")


def test_a_rejected_message_is_in_one_place_after_its_owner_was_killed(mesh: Cluster) -> None:
    """Receipted: in its queue or among the dead letters, never in both and never in neither."""
    queue = "/queue/rejected"
    mesh.client("a").publish(queue, *numbered(200))
    mesh.client("b").subscribe(queue, ack="client-individual", on_message=refuse)
    letters = mesh.client("c").subscribe(DEAD)
    eventually(lambda: len(letters) >= 50, lambda: f"c has {len(letters)} letters")

    mesh.kill("a")
    mesh.start("a")

    def bodies() -> list[int]:
        return sorted(int(m.body) for m in letters if m.headers["dead-letter-from"] == queue)

    eventually(lambda: len(set(bodies())) == 200, lambda: f"c has {len(set(bodies()))} of 200")
    # What c was given twice (`auto`, its settle on the way when a died) has one id; a letter made twice would have two.
    ids = {m.id for m in letters if m.headers["dead-letter-from"] == queue}
    assert len(ids) == 200


def test_a_delayed_message_survives_the_death_of_its_node_and_comes_when_it_is_due(mesh: Cluster) -> None:
    queue = "/queue/delayed"
    mesh.client("a").publish(queue, b"soon", delay="3000")
    mesh.kill("a")
    mesh.start("a")

    got = mesh.client("b").subscribe(queue)

    eventually(lambda: [m.body for m in got] == [b"soon"], "the delayed message did not come")


def test_a_transaction_over_queues_with_an_ack_is_whole_or_absent_after_a_kill(mesh: Cluster) -> None:
    """A worker moves messages from one queue into two others; its node dies in the middle, several times."""
    source, left, right = "/queue/moves.from", "/queue/moves.left", "/queue/moves.right"
    mesh.client("b").publish(source, *numbered(300))

    def move(client: Client, message: Message) -> None:
        with suppress(LostError):  # its node is killed
            client.begin(message.id)
            client.send(left, message.body, transaction=message.id)
            client.send(right, message.body, transaction=message.id)
            client.acknowledge(message, transaction=message.id)
            client.commit(message.id, wait=False)

    lefts = mesh.client("c").subscribe(left)
    rights = mesh.client("c").subscribe(right)
    for round_number in range(3):
        mesh.client("a").subscribe(source, ack="client-individual", on_message=move)
        want = 60 * (round_number + 1)
        eventually(lambda want=want: len(lefts) >= want, lambda: f"{len(lefts)} were moved")
        mesh.kill("a")
        mesh.start("a")
    mesh.client("a").subscribe(source, ack="client-individual", on_message=move)

    def distinct(messages: list[Message]) -> set[int]:
        return {int(m.body) for m in messages}

    eventually(lambda: len(distinct(lefts)) == 300, lambda: f"{len(distinct(lefts))} of 300 came on the left")
    eventually(lambda: distinct(rights) == distinct(lefts), "the two sides differ")
