"""How long a node takes to find the queues of a SEND: `python -m benchmarks.bindings`.

A look-up is that of one name or key in the table: `new` if it was never sent before, `known` if it was. A SEND is all
that the pure parts of a node do with one frame and its one copy. The queues that a header block leads to are kept with
the block, so a SEND with a known block looks up nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.growth import Node, send
from qmq.broker.routing.binding import Binding, split_exchange
from qmq.broker.routing.table import RoutingTable
from qmq.model.routing_names import PREFIX

BINDINGS = 10_000
ROUNDS = 5
CALLS = BINDINGS // ROUNDS


class Kind(NamedTuple):
    """`N` stands for the number of a binding, and of a message that matches it."""

    label: str
    source: str
    key: str
    argument: str
    destination: str


KINDS = (
    Kind("topics by name", "/topic/a.N.c", "", "", "/topic/a.N.c"),
    Kind("topics, *.N.#", "/topic/*.N.#", "", "", "/topic/a.N.c"),
    Kind("direct, a.N.c", "/exchange/amq.direct", "a.N.c", "", "/exchange/amq.direct/a.N.c"),
    Kind("topic, *.N.#", "/exchange/amq.topic", "*.N.#", "", "/exchange/amq.topic/a.N.c"),
    Kind("topic, #.N.*", "/exchange/amq.topic", "#.N.*", "", "/exchange/amq.topic/a.N.c"),
    Kind("headers, n = N", "/exchange/amq.headers", "", "n", "/exchange/amq.headers"),
)


def nanoseconds(calls: Iterable[Callable[[], object]]) -> int:
    """Of processor time for one call: the best of ROUNDS."""
    waiting = iter(calls)
    best = 1 << 60
    for _ in range(ROUNDS):
        ready = [next(waiting) for _ in range(CALLS)]
        begun = time.thread_time_ns()
        for call in ready:
            call()
        best = min(best, time.thread_time_ns() - begun)
    return best // CALLS


def find(table: RoutingTable, destination: str, headers: dict[str, str]) -> tuple[str, ...]:
    """The one queue of this message."""
    if destination.startswith(PREFIX):
        return table.queues_of_exchange(*split_exchange(destination), headers)
    return table.queues_of_topic(destination)


def headers_of(kind: Kind, number: int) -> dict[str, str]:
    return {kind.argument: str(number)} if kind.argument else {}


def node_with(kind: Kind) -> Node:
    """A node with bindings of this kind only."""
    made = Node()
    for number in range(BINDINGS):
        text = str(number)
        source, key = kind.source.replace("N", text), kind.key.replace("N", text)
        made.rules.routing.add(Binding(source, f"/queue/{number}", key, headers_of(kind, number)))
    return made


def look_ups(kind: Kind) -> list[int]:
    """Of a new name, and of a known one."""
    table = node_with(kind).rules.routing
    assert find(table, kind.destination.replace("N", "7"), headers_of(kind, 7)) == ("/queue/7",)

    def each() -> Iterator[Callable[[], object]]:
        for number in range(BINDINGS):
            yield partial(find, table, kind.destination.replace("N", str(number)), headers_of(kind, number))

    return [nanoseconds(each()), nanoseconds(each())]


def measure(kind: Kind) -> list[int]:
    """Look-up of a new name and of a known one, SEND with a new header block and with a known one."""
    found = look_ups(kind)
    sender = node_with(kind).client()
    frames = [
        send(kind.destination.replace("N", str(number)), headers=headers_of(kind, number).items())
        for number in range(BINDINGS)
    ]
    found.append(nanoseconds(partial(sender.say, frame) for frame in frames))
    found.append(nanoseconds(partial(sender.say, frames[7]) for _ in frames))
    return found


def main() -> None:
    print(f"µs of processor time, with {BINDINGS:,} bindings, of which each message matches one")
    print(f"{'':18}{'look-up':>16}{'SEND':>16}\n{'bindings':18}{'new':>8}{'known':>8}{'new':>8}{'known':>8}")
    for kind in KINDS:
        print(f"{kind.label:18}" + "".join(f"{one / 1000:8.2f}" for one in measure(kind)))


if __name__ == "__main__":
    main()
