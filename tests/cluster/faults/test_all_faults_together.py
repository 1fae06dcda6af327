"""Kills, cuts, stops and lost disks, drawn by a seed and on top of each other: what was receipted is still there.

As in chapter 09 the seed is printed, and QMQ_CLUSTER_SEED draws the same faults again. A disk is only taken while the
mesh is healthy and all nodes hold the same: a receipt says one disk, so what is nowhere else burns with it.
"""

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Consumer, Follower, Publisher

EACH = 1000
"""Messages of one publisher; there are six."""
FAULTS = 12
AHEAD = 120
"""How far a publisher may go beyond its share of what must be receipted before the next fault."""
BEATS_MS = (1000, 1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; every line between them can be cut."""
    with Cluster(tmp_path_factory.mktemp("faults"), cuttable=combinations("abc", 2)) as made:
        yield made


def alive(mesh: Cluster) -> list[str]:
    return [name for name in mesh.names if mesh.fleet.nodes[name].is_alive]


def kill(mesh: Cluster, rng: random.Random) -> None:
    """One node; those that were killed before return first, mostly, and the last one is never killed."""
    down = [name for name in mesh.names if name not in alive(mesh)]
    if down and (len(alive(mesh)) == 1 or rng.random() < 0.7):
        mesh.start(*down)
    mesh.kill(rng.choice(alive(mesh)))


def cut(mesh: Cluster, rng: random.Random) -> None:
    mesh.cut(*rng.sample(mesh.names, 2))


def heal(mesh: Cluster, rng: random.Random) -> None:
    mesh.heal(*rng.sample(mesh.names, 2))


def stop_for_a_while(mesh: Cluster, rng: random.Random) -> None:
    """One node stands still until another calls it away, if there is another that was linked with it."""
    name = rng.choice(alive(mesh))
    others = [other for other in alive(mesh) if other != name]
    mesh.pause(name)
    eventually(lambda: all(mesh.misses(other, name) for other in others), f"{name} is stopped and called up")
    mesh.resume(name)


def lose_a_disk(mesh: Cluster, rng: random.Random) -> None:
    mesh.make_healthy()
    mesh.wait_until_same()
    name = rng.choice(mesh.names)
    mesh.kill(name)
    mesh.wipe(name)
    mesh.start(name)


WEIGHTS: Mapping[Callable[[Cluster, random.Random], None], int] = {
    kill: 4,
    cut: 4,
    heal: 2,
    stop_for_a_while: 2,
    lose_a_disk: 1,
}


def test_nothing_receipted_is_lost_whatever_happens_together(mesh: Cluster) -> None:
    seed = int(os.environ.get("QMQ_CLUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"QMQ_CLUSTER_SEED={seed}")
    rng = random.Random(seed)
    destinations = ("/fanout/faults", "/queue/faults")
    publishers = [
        Publisher(in_any_order(mesh, rng), destination, numbered(f"{destination} {number}", EACH), 0, BEATS_MS)
        for destination in destinations
        for number in range(3)
    ]
    consumers = [Consumer([mesh.address(name)], "/queue/faults", BEATS_MS) for name in mesh.names]
    followers = [Follower(in_any_order(mesh, rng), "/fanout/faults", BEATS_MS) for _ in range(2)]
    for worker in (*publishers, *consumers, *followers):
        worker.start()

    for enough in sorted(rng.sample(range(100, EACH * len(publishers) - 800), FAULTS)):
        fault = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        print(f"after {enough} receipts: {fault.__name__}")
        let_go_on(publishers, enough, seed)
        if fault is lose_a_disk:
            until_idle(publishers, seed)
        fault(mesh, rng)
    for publisher in publishers:
        publisher.allowed = math.inf
    mesh.make_healthy()
    for publisher in publishers:
        publisher.wait()
    mesh.wait_until_same()

    fanned = {body for publisher in publishers[:3] for body in publisher.receipted}
    jobs = {body for publisher in publishers[3:] for body in publisher.receipted}
    assert len(fanned) + len(jobs) == EACH * len(publishers)
    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/faults")
        eventually(
            lambda g=got: len(g) >= len(fanned) and set(bodies(g)) >= fanned,
            lambda n=name, g=got: f"seed {seed}: {n} lost {len(fanned - set(bodies(g)))} messages",
        )
        assert len({message.id for message in got}) == len(got), f"seed {seed}: {name} told a message twice"
    for follower in followers:
        eventually(
            lambda f=follower: len(f.bodies) >= len(fanned) and set(f.bodies) >= fanned,
            lambda f=follower: f"seed {seed}: a reader that resumed lost {len(fanned - set(f.bodies))} messages",
        )
        follower.finish()
        assert len(follower.ids) == len(set(follower.ids)), f"seed {seed}: a resumed stream repeated a message"
    eventually(
        lambda: jobs <= {body for consumer in consumers for body in list(consumer.bodies)},
        lambda: f"seed {seed}: some of {len(jobs)} jobs were lost",
    )
    eventually(
        lambda: all(mesh.depth(name, "/queue/faults") == 0 for name in mesh.names),
        lambda: f"seed {seed}: jobs stay: { {name: mesh.depth(name, '/queue/faults') for name in mesh.names} }",
    )
    for consumer in consumers:
        consumer.finish()


def let_go_on(publishers: list[Publisher], enough: int, seed: int) -> None:
    """Wait until `enough` is receipted in all, with more on its way."""
    for publisher in publishers:
        publisher.allowed = enough // len(publishers) + AHEAD

    def receipted() -> int:
        return sum(len(publisher.receipted) for publisher in publishers)

    eventually(lambda: receipted() >= enough, lambda: f"seed {seed}: publishers stand still at {receipted()}")


def until_idle(publishers: list[Publisher], seed: int) -> None:
    """Wait until everything that was begun is receipted."""
    for publisher in publishers:
        publisher.allowed = 0
    eventually(
        lambda: all(publisher.is_idle for publisher in publishers), f"seed {seed}: publishers wait for receipts in vain"
    )


def in_any_order(mesh: Cluster, rng: random.Random) -> list[tuple[str, int]]:
    """The addresses of all nodes, the first for whoever gets the list drawn."""
    return [mesh.address(name) for name in rng.sample(mesh.names, len(mesh.names))]
