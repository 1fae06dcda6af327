"""What is done to the processes and lines of real nodes. See `fire.py`; the number is a weight."""

import contextlib
import random
from collections.abc import Iterator

from tests.nemesis.fire import Fire, Steps, fault

SLOW_BYTES = (2_000, 20_000)
"""A second, on a slow line."""


# Processes


@fault(6)
def kill(fire: Fire, rng: random.Random) -> Steps:
    """kill -9, and a new life later: a takeover if that is late enough."""
    with fire.node(rng) as name, fire.history.harm("kill -9", name):
        fire.mesh.kill(name)
        yield fire.long(rng)
        yield from fire.start(name)


@fault(1)
def kill_all(fire: Fire, rng: random.Random) -> Steps:
    """kill -9 of every node at once."""
    names = list(fire.mesh.names)
    with fire.claim(*names), fire.history.harm("kill -9 of all", *names):
        fire.mesh.kill(*names)
        yield rng.uniform(0.2, 1)
        yield from fire.start(*names)


@fault(1)
def stop(fire: Fire, rng: random.Random) -> Steps:
    """A node ends in order and starts again."""
    with fire.node(rng) as name, fire.history.harm("stopped", name):
        fire.mesh.fleet.ask_to_stop(name)
        yield lambda: not fire.mesh.fleet.nodes[name].is_alive
        yield fire.long(rng)
        yield from fire.start(name)


@fault(5)
def pause(fire: Fire, rng: random.Random) -> Steps:
    """SIGSTOP, and SIGCONT before or after the others have noticed, or have taken over."""
    with fire.node(rng) as name, fire.history.harm("SIGSTOP", name):
        fire.mesh.pause(name)
        yield fire.long(rng)
        fire.mesh.resume(name)


@fault(1)
def stutter(fire: Fire, rng: random.Random) -> Steps:
    """A node is stopped again and again, for as long as it is then allowed to run."""
    with fire.node(rng) as name, fire.history.harm("stutter", name):
        for _ in range(rng.randint(3, 8)):
            fire.mesh.pause(name)
            yield rng.uniform(0.1, 2.5)
            fire.mesh.resume(name)
            yield rng.uniform(0.05, 1)


# Lines


@contextlib.contextmanager
def _lines(fire: Fire, rng: random.Random, ends: int) -> Iterator[list[str]]:
    """So many nodes, and for this fault alone the lines between the first and each of the others."""
    nodes = rng.sample(fire.mesh.names, min(ends, len(fire.mesh.names)))
    lines = [frozenset((nodes[0], other)) for other in nodes[1:]]
    with fire.claim(*lines):
        try:
            yield nodes
        finally:
            for other in nodes[1:]:
                fire.mesh.heal(nodes[0], other)


@fault(3)
def cut(fire: Fire, rng: random.Random) -> Steps:
    """Nothing passes between two nodes; clients reach both."""
    with _lines(fire, rng, 2) as (one, other), fire.history.harm("cut", one, other):
        fire.mesh.cut(one, other)
        yield fire.long(rng)


@fault(4)
def isolate(fire: Fire, rng: random.Random) -> Steps:
    """One node reaches no other; clients reach it."""
    with _lines(fire, rng, len(fire.mesh.names)) as (name, *others), fire.history.harm("cut off", name):
        for other in others:
            fire.mesh.cut(name, other)
        yield fire.long(rng)


@fault(4)
def one_way(fire: Fire, rng: random.Random) -> Steps:
    """What one node sends reaches no other, or what the others send does not reach it; or that between two nodes."""
    with _lines(fire, rng, rng.choice((2, len(fire.mesh.names)))) as (name, *others):
        is_deaf = rng.random() < 0.5
        with fire.history.harm("cut one way", name, *others[: len(others) == 1]):
            for other in others:
                fire.mesh.cut_one_way(*((other, name) if is_deaf else (name, other)))
            yield fire.long(rng)


@fault(4)
def hold(fire: Fire, rng: random.Random) -> Steps:
    """What nodes send to each other arrives late, all at once: of one node, or between two."""
    with _lines(fire, rng, rng.choice((2, len(fire.mesh.names)))) as (name, *others):
        with fire.history.harm("held up", name, *others[: len(others) == 1]):
            for other in others:
                fire.mesh.hold(name, other)
            yield fire.long(rng)


@fault(2)
def slow_lines(fire: Fire, rng: random.Random) -> Steps:
    """Little passes between one node and the others, in small pieces."""
    with _lines(fire, rng, len(fire.mesh.names)) as (name, *others), fire.history.harm("slow lines", name):
        for other in others:
            fire.mesh.slow(name, other, rng.uniform(*SLOW_BYTES))
        yield fire.long(rng)


@fault(2)
def flap(fire: Fire, rng: random.Random) -> Steps:
    """Lines of one node come and go."""
    with _lines(fire, rng, len(fire.mesh.names)) as (name, *others), fire.history.harm("flapping", name):
        for _ in range(rng.randint(3, 10)):
            for other in others:
                fire.mesh.cut(name, other)
            yield rng.uniform(0.1, 1)
            for other in others:
                fire.mesh.heal(name, other)
            yield rng.uniform(0.1, 1)
