"""Bugs to put into the product; importing this registers them all in `registry.PLANTS`."""

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
from tests.simulation.plants.registry import PLANTS, SEEDS_MAX, Planted

__all__ = [
    "PLANTS",
    "SEEDS_MAX",
    "Planted",
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
