"""Seeded bugs; importing this package registers all of them in `registry.SEEDED_BUGS`."""

from tests.simulation.plants import (
    clients,
    clocks,
    commits,
    dead_letters,
    declarations,
    followers,
    gateways,
    links,
    operations,
    queues,
    recovery,
    takeover,
)
from tests.simulation.plants.registry import SEEDED_BUGS, SEEDS_MAX, SeededBug

__all__ = [
    "SEEDED_BUGS",
    "SEEDS_MAX",
    "SeededBug",
    "clients",
    "clocks",
    "commits",
    "declarations",
    "followers",
    "gateways",
    "links",
    "operations",
    "queues",
    "recovery",
    "takeover",
    "dead_letters",
]
