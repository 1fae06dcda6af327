"""What the operator lets clients do, as gateways ask about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, asked_level, asks_quorum, with_quorum
from qmq.broker.routing.table import RoutingTable

BodyCheck = Callable[[bytes], int]
"""Raises Refused for a body that its destination does not take. Returns what it has cost, in units of COST_MAX."""


@dataclass(kw_only=True, eq=False)
class Rules:
    """`policy` gives (exists, durable) for a destination name, `defaults` the headers that a message of a queue gets
    when its sender does not say otherwise, `children` the queues that get a copy of what is sent to a fanout,
    `retains` whether a topic keeps every last value, `buffer_messages` how many messages may wait for a subscription to
    topics that does not say, 0 for no such bound, `level` how many disks receipts about a destination wait for
    unless the frame says, `needs_quorum` whether those of ACKs wait until no node will hand the message out again.
    No frame can ask for more than `level_max`: the number of other nodes, or ACCEPTED without a disk. All these answer
    alike about destinations of one kind for which `likeness` gives the same object. `lock` raises Refused if a queue is
    exclusive to another session than the one given. `begun_by` is the user that has declared a queue, "" if that was
    none, None for a queue that can have no such user.
    `routing` has the bindings; it does not count for `likeness`. `body_check` gives what the bodies of SENDs to a
    destination are checked with, None if by nothing; it raises Refused where none can be sent now. It is None itself
    where no policy names a schema.

    A change of anything here, or of what these answer, raises `generation`: plans of another one are made again.
    """

    policy: Callable[[str], tuple[bool, bool]]
    children: Callable[[str], tuple[str, ...]] = lambda name: ()
    prefetch_default: int
    prefetch_max: int
    destination_bytes_max: int
    buffer_bytes_max: int = 16 << 20
    defaults: Callable[[str], Mapping[str, str]] = lambda name: {}
    retains: Callable[[str], bool] = lambda name: False
    buffer_messages: Callable[[str], int] = lambda name: 0
    level: Callable[[str], int] = lambda name: FSYNC
    needs_quorum: Callable[[str], bool] = lambda name: False
    likeness: Callable[[str], object] = lambda name: object()
    lock: Callable[[str, int], None] = lambda name, session: None
    begun_by: Callable[[str], str | None] = lambda name: None
    level_max: int = 0
    routing: RoutingTable = field(default_factory=RoutingTable)
    body_check: Callable[[str], BodyCheck | None] | None = None
    generation: int = 1

    def members_changed(self, others: int) -> None:
        """The mesh has so many other nodes; levels that no policy names may have changed."""
        self.level_max = others if self.level_max > ACCEPTED else ACCEPTED
        self.replan()

    def replan(self) -> None:
        """What these answer has changed: let plans be made again."""
        self.generation += 1

    def bound_clients(self, prefetch_default: int, prefetch_max: int, destination_bytes_max: int) -> None:
        """Apply these bounds of what clients may request. The caller lets plans be made again."""
        self.prefetch_default = prefetch_default
        self.prefetch_max = prefetch_max
        self.destination_bytes_max = destination_bytes_max

    def check_bodies(self, body_check: Callable[[str], BodyCheck | None] | None) -> None:
        """Check bodies so from now on. The caller lets plans be made again."""
        self.body_check = body_check

    def level_of(self, headers: Mapping[str, str], destination: str) -> int:
        """The level of receipts about `destination` that a frame asks for. Raises Refused."""
        text = headers.get("receipt-level")
        return self.level(destination) if text is None else asked_level(text, self.level_max)

    def level_of_ack(self, headers: Mapping[str, str], destination: str) -> int:
        """The level of the receipt that an ACK of a queue's message asks for. Raises Refused."""
        text = headers.get("ack-level")
        is_quorum = self.needs_quorum(destination) if text is None else asks_quorum(text, self.level_max)
        level = self.level_of(headers, destination)
        return with_quorum(level) if is_quorum else level
