"""Exchanges and bindings of a simulated mesh, and the routes that follow: a separate model for the checks."""

from collections.abc import Mapping, Sequence
from typing import Any

from qmq.definitions.definition import Key, Version
from qmq.definitions.table import DefinitionTable
from qmq.model.routing_names import MATCH, PREFIX, binding_name

TOPIC = "/topic/"
SOURCE = "/topic/source"

BOUND = ("/queue/bound-a", "/queue/bound-b")
"""Operators bind them and unbind them, and no consumer comes before the end."""

FOLLOWED = "/queue/followed"
"""Of a durable subscription of SOURCE."""

COPIED = (*BOUND, FOLLOWED)

EXCHANGES: Mapping[str, Mapping[str, str]] = {
    "rest": {"type": "fanout"},
    "orders": {"type": "topic", "alternate": "rest"},
    "names": {"type": "direct", "alternate": "orders"},
    "kinds": {"type": "headers"},
}

Row = tuple[str, str, str, Mapping[str, str]]

BINDINGS: tuple[Row, ...] = (
    (SOURCE, BOUND[0], "", {}),
    (SOURCE, BOUND[1], "", {}),
    ("/topic/source.#", BOUND[1], "", {}),
    ("/exchange/rest", BOUND[0], "", {}),
    ("/exchange/orders", BOUND[0], "eu.*", {}),
    ("/exchange/orders", BOUND[1], "#.new", {}),
    ("/exchange/names", BOUND[1], "k1", {}),
    ("/exchange/kinds", BOUND[0], "", {"kind": "k1", "urgent": "yes"}),
    ("/exchange/kinds", BOUND[1], "", {MATCH: "any", "kind": "k2", "urgent": "yes"}),
    ("/exchange/names", "/exchange/orders", "eu.new", {}),
    ("/exchange/orders", "/exchange/names", "eu.#", {}),
)
"""Source, target, key and arguments."""

SENDS = (
    SOURCE,
    SOURCE,
    "/topic/source.eu",
    "/exchange/orders/eu.new",
    "/exchange/orders/us.old",
    "/exchange/names/k1",
    "/exchange/names/eu.old",
    "/exchange/names/eu.new",
    "/exchange/kinds",
)
"""What publishers send to."""


def key_of(row: Row) -> Key:
    """Of its definition."""
    return Key("binding", binding_name(*row))


FOLLOWING = key_of((SOURCE, FOLLOWED, "", {}))


def part_of(destination: str) -> str:
    """`topics`, `kinds`, or `others`: what decides about one part has no effect on another."""
    if destination.startswith(TOPIC):
        return "topics"
    return "kinds" if destination.startswith("/exchange/kinds") else "others"


DECIDING: Mapping[tuple[str, str], Sequence[Key]] = {
    (part, queue): [
        *(Key("exchange", name) for name in EXCHANGES if part_of(PREFIX + name) == part),
        # Of exchanges with an alternate: what goes to one queue does not go to the alternate.
        *(key_of(row) for row in BINDINGS if part_of(row[0]) == part and (part == "others" or row[1] == queue)),
        *([FOLLOWING] if part == "topics" and queue == FOLLOWED else ()),
    ]
    for part in ("topics", "kinds", "others")
    for queue in COPIED
}
"""(part, queue) → the definitions that decide about copies."""


def versions_for(table: DefinitionTable, decided: tuple[str, str]) -> frozenset[Version]:
    """Of all definitions that decide about this."""
    return frozenset(one.version for key in DECIDING[decided] if (one := table.get(key)) is not None)


def queues_of(table: DefinitionTable, destination: str, headers: Mapping[str, str]) -> set[str]:
    """The queues that get a copy of a message, by the definitions of `table`."""
    bindings = [one.value or {} for one in table.of_kind("binding")]
    if destination.startswith(TOPIC):
        return {
            one["queue"]
            for one in bindings
            if one["source"].startswith(TOPIC) and _matches(one["source"].split("."), destination.split("."))
        }
    exchanges = {one.key.name: one.value or {} for one in table.of_kind("exchange")}
    name, _, key = destination.removeprefix(PREFIX).partition("/")
    reached, to_ask, queues = {name}, [name], set[str]()
    while to_ask:
        name = to_ask.pop()
        type = exchanges.get(name, {}).get("type")
        mine = [one for one in bindings if one["source"] == PREFIX + name]
        taking = [one for one in mine if type and _takes(type, one, key, headers)]
        queues |= {one["queue"] for one in taking if "queue" in one}
        further = [one["exchange"].removeprefix(PREFIX) for one in taking if "exchange" in one]
        further = [one for one in further if one in exchanges]
        if not further and not any("queue" in one for one in taking):
            further = [exchanges.get(name, {}).get("alternate", "")]
        to_ask += [one for one in dict.fromkeys(further) if one not in reached]
        reached |= set(further)
    return queues


def _takes(type: str, binding: Mapping[str, Any], key: str, headers: Mapping[str, str]) -> bool:
    if type == "headers":
        wanted = {name: text for name, text in binding["arguments"].items() if name != MATCH}
        are_equal = [headers.get(name) == text for name, text in wanted.items()]
        return any(are_equal) if binding["arguments"].get(MATCH) == "any" else all(are_equal)
    if type == "topic":
        return _matches(binding["key"].split("."), key.split("."))
    return type == "fanout" or binding["key"] == key


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[count:]) for count in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
