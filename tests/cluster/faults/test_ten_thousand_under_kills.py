"""Ten thousand receipted messages while nodes are killed at random: none is lost.

The seed decides who is killed, when, and for how long; it is printed when something fails, and QMQ_CLUSTER_SEED runs
the same again (processes and threads still race, so it repeats the faults and not every interleaving).
"""

import math
import os
import random
from collections import Counter

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Consumer, Follower, Publisher

EACH = 1250
"""Messages of one publisher; there are eight."""
KILLS = 6
AHEAD = 120
"""How far a publisher may go beyond its share of what must be receipted before the next kill: so each one strikes in
the middle of the stream, however fast the machine."""


def test_no_receipted_message_is_lost_under_random_kills(mesh: Cluster) -> None:
    seed = int(os.environ.get("QMQ_CLUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"QMQ_CLUSTER_SEED={seed}")
    rng = random.Random(seed)
    publishers = [
        Publisher(
            in_any_order(mesh, rng),
            destination,
            [f"{destination} {number} {n}".encode() for n in range(EACH)],
            allowed=0,
        )
        for destination in ("/fanout/tenthousand", "/queue/tenthousand")
        for number in range(4)
    ]
    consumers = [Consumer([mesh.address(name)], "/queue/tenthousand") for name in mesh.names]
    followers = [Follower(in_any_order(mesh, rng), "/fanout/tenthousand") for _ in range(2)]
    for worker in (*publishers, *consumers, *followers):
        worker.start()

    def receipted() -> int:
        return sum(len(publisher.receipted) for publisher in publishers)

    for enough in sorted(rng.sample(range(200, 9000), KILLS)):
        for publisher in publishers:
            publisher.allowed = enough // len(publishers) + AHEAD
        eventually(lambda n=enough: receipted() >= n, lambda: f"seed {seed}: publishers stand still at {receipted()}")
        down = [name for name in mesh.names if not mesh.fleet.nodes[name].is_alive]
        if down and (len(down) == len(mesh.names) - 1 or rng.random() < 0.7):
            mesh.start(*down)
        mesh.kill(rng.choice([name for name in mesh.names if mesh.fleet.nodes[name].is_alive]))
    for publisher in publishers:
        publisher.allowed = math.inf
    mesh.make_healthy()
    for publisher in publishers:
        publisher.wait()
    mesh.wait_until_same()

    fanned = {body for publisher in publishers[:4] for body in publisher.receipted}
    queued = {body for publisher in publishers[4:] for body in publisher.receipted}
    assert len(fanned) + len(queued) == 8 * EACH == 10_000
    for name in mesh.names:
        got = mesh.client(name).subscribe("/fanout/tenthousand", headers={"x-stream-offset": "first"})
        eventually(
            lambda g=got: len(g) >= len(fanned) and {message.body for message in g} >= fanned,
            lambda g=got, n=name: f"seed {seed}: {n} lost {len(fanned - {message.body for message in g})} messages",
        )
    for follower in followers:
        eventually(
            lambda f=follower: len(f.bodies) >= len(fanned) and set(f.bodies) >= fanned,
            lambda f=follower: f"seed {seed}: a reader that resumed lost {len(fanned - set(f.bodies))} messages",
        )
        follower.finish()
        assert len(follower.ids) == len(set(follower.ids)), f"seed {seed}: a resumed stream repeated a message"
    done: Counter[bytes] = Counter()

    def undone() -> set[bytes]:
        done.clear()
        for consumer in consumers:
            done.update(list(consumer.bodies))
        return queued - done.keys()

    eventually(lambda: not undone(), lambda: f"seed {seed}: {len(undone())} jobs of {len(queued)} were lost", 60.0)
    for consumer in consumers:
        consumer.finish()
    print(f"lost 0 of {len(fanned) + len(queued)}; jobs delivered more than once: {done.total() - len(done)}")


def in_any_order(mesh: Cluster, rng: random.Random) -> list[tuple[str, int]]:
    """The addresses of all nodes, the first for whoever gets the list drawn."""
    names = rng.sample(mesh.names, len(mesh.names))
    return [mesh.address(name) for name in names]
