"""What links need from their node and its configuration. `qmq.node` implements it; tests have a fake.

Decisions follow one order everywhere: wait for `commit_slot`, then decide and `submit` without an await in between,
because a cancel there would lose what was decided. Everything here that is not `async` returns at once, except the
three journal readers, which block and are called in a worker thread (`Environment.run_blocking`).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.environment import Environment
from qmq.model.dots import Origin, Vector
from qmq.model.members import Membership, Standing
from qmq.record_codec import Replay
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.frames import PeerRequest, Terms
from qmq.storage.format.batch import BatchHead


class LinkLog(Protocol):
    """The journal, as links read it (`qmq.storage.log.journal.Journal`)."""

    end: int
    """A position before which all came that `vector` had when it was asked before."""

    def vector(self) -> Vector:
        """What the journal has."""

    def base(self) -> Vector:
        """What retention has dropped from the journal, per origin."""

    def read(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        """Whole batches from `position` on, each with the position where it begins; at least one if there is one."""

    def read_recent(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        """As `read`, without blocking; [] when what is wanted is not in memory any more."""

    def seek(self, vector: Vector) -> int:
        """The first position at which a batch may lie that `vector` does not cover."""


class LinkTail(Protocol):
    """The end of the journal (`qmq.engine.commit.committed_tail`)."""

    def committed_end(self) -> int:
        """Position up to which the journal is durable; always at the end of a batch."""

    async def grew(self, position: int) -> None:
        """Return when `committed_end()` is beyond `position`."""


class LinkPath(Protocol):
    """The commit path, as links use it (`qmq.engine.commit_path`)."""

    def submit(self, out: Outcome) -> None:
        """Finish `out`, send its `now` half, queue it for commit; also when it is empty: free credit may be new."""

    async def commit_slot(self) -> None:
        """Wait until the commit queue has room."""

    async def flushed(self) -> None:
        """Return when everything submitted before this call is durable and sent.

        A new link waits for this, so that a message lent against the credit of the link before it is not sent over
        this one.
        """

    def received_vector(self) -> Vector:
        """What is decided, also what is not durable yet: the live dict, which a link raises when it accepts."""

    def durable_vector(self) -> Vector:
        """What would survive a power cut now."""


class LinkConditions(Protocol):
    """What an operator must see."""

    def raise_condition(self, code: str, message: str) -> None:
        """A state began, or lasts. `code` as in `errors`."""

    def clear_condition(self, code: str, message: str) -> None:
        """The state has ended."""

    def add_event(self, code: str, message: str) -> None:
        """Something has happened."""


class LinkFollower(Protocol):
    """The parts that follow what links and peers report, often in the midst of another decision."""

    def schedule_repair(self) -> None:
        """A peer cannot send something from its journal (`Mesh.next_repair`), or links have changed."""

    def link_caught_up(self, peer: str) -> None:
        """All that `peer` had when the link to it was made is here. Once per connection."""

    def held_came(self, peer: str) -> None:
        """`peer` has reported over its present link what its consumers hold of what is served here."""

    def peer_durable(self, peer: str, vector: Vector) -> None:
        """`peer` has reported what is durable there: the whole of it, not only what is new."""

    def peer_knows(self, peer: str, vector: Vector) -> None:
        """`peer` had this durably when the link to it began."""

    def refused_as_retired(self, peer: str) -> None:
        """`peer` lets us in no more, because this node was retired."""

    def membership_received(self, peer: str, standing: Standing) -> None:
        """`peer` reports its membership."""

    def interest_progressed(self) -> None:
        """Peers may have confirmed a later version of this node's interest, or sent more of their own."""

    def links_changed(self) -> None:
        """A link began or ended."""

    def request_received(self, peer: Origin, number: int, request: PeerRequest, way: LinkOutbox) -> None:
        """A request of `peer`, on the link whose outbox is `way`.

        `Mesh.answer` may follow or not: requests above the limit are ignored.
        """

    def response_received(self, peer: Origin, number: int, answer: bytes) -> None:
        """The response of `peer` to the request of `Mesh.ask` with that number; it may be late."""


class LinkTerms(Protocol):
    """Which node serves the messages of which (`qmq.mesh.membership.takeover`)."""

    @property
    def terms_served(self) -> Mapping[str, int]:
        """Owner → term in which this node serves it, where that is not term 0; live."""

    def terms_came(self, peer: Origin, frame: Terms, way: LinkOutbox, out: Outcome) -> None:
        """`peer` sends a frame about terms; an echo goes back by `way`."""

    def greet(self, way: LinkOutbox) -> None:
        """A link begins: the first beat, before anything that is borrowed over it."""

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        """Of which `owners` what `peer` lends in these terms may be handed to consumers.

        `echo_us` is the newest stamp of this node that came back on the same link before. False: not now, the peer may
        have it back. None: never, for another serves that owner in a later term; the peer is about to learn it.
        """


class Host(Protocol):
    """One node, as its links see it."""

    @property
    def origin(self) -> Origin:
        """This incarnation."""

    @property
    def broker(self) -> Broker: ...

    @property
    def replay(self) -> Replay: ...

    @property
    def environment(self) -> Environment: ...

    @property
    def membership(self) -> Membership:
        """The members that count, as this node knows them."""

    @property
    def path(self) -> LinkPath: ...

    @property
    def log(self) -> LinkLog: ...

    @property
    def tail(self) -> LinkTail: ...

    @property
    def conditions(self) -> LinkConditions: ...

    @property
    def follower(self) -> LinkFollower: ...

    @property
    def terms(self) -> LinkTerms: ...


class PeerAddress(Protocol):
    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class PeerEntry(Protocol):
    """One node of the peers file."""

    @property
    def name(self) -> str: ...

    @property
    def mesh(self) -> PeerAddress:
        """Where the other nodes dial it."""


class Peers(Protocol):
    """The peers file, as far as links need it (`qmq.config.PeersFile`)."""

    mesh: str
    """The mesh's id."""
    version: int
    secret: str | None

    @property
    def nodes(self) -> Sequence[PeerEntry]:
        """All of them, this one too."""


class Settings(Protocol):
    """The `[mesh]` section of the node file (`qmq.config.MeshSettings`), as far as links need it. Seconds."""

    redial_seconds_min: float
    redial_seconds_max: float
    beat_seconds: float
    suspicion_seconds: float
    redeliver_after_seconds: float
