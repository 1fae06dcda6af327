"""The queue messages that a retired node left behind: its adopter makes them its own.

Each is accepted here anew, with the same envelope, body, time and count of failures, and the old one is settled in the
same batch: after a crash both have happened, or neither. Serving them under their old names would tie the mesh to an
origin that nobody writes to any more; so its incarnations can be sealed and forgotten as soon as the last message is
settled.

Nothing is taken before this node has all that a majority of the members had, learners aside, with what their consumers
have settled, and no message that a consumer of a reachable member still holds: that one is settled soon, or let go.
Whoever does not answer is waited for as long as a silent borrower is (`redeliver_after_seconds`). Records that turn up
later are adopted when they come.

Whoever has taken the node's messages over before it was retired lets go of them first, and says so by answering who
holds what; a node that cannot be asked has no lease any more once `takeover_after_seconds` are over.
"""

import json
import logging
from functools import partial
from typing import Protocol

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.config import NodeSettings
from qmq.dots import Dot, Vector, covers, merge
from qmq.errors import MeshError, Refused
from qmq.members import Retirement
from qmq.record_codec import Replay
from qmq.replication.protocol.values import SEQUENCE_MAX, array, mapping, number, origin_of
from qmq.server.checkpoint.checkpoints import Checkpoints
from qmq.server.commit.commits import Commits
from qmq.server.membership.takeover import Takeover
from qmq.server.peers.rpc import PeerRpc
from qmq.server.repair.incarnation_gc import IncarnationGc
from qmq.server.runtime.contexts import Alarming, Committing, Engine, JournalTail, Peers
from qmq.storage.format.interfaces import QueueRow

RECORDS_SECONDS = 10.0
"""For what the others had when they answered to come here; then they are asked anew."""

POLL_SECONDS = 1.0
"""Between two looks at what a retired node has left."""

SLICE_ROWS = 500
SLICE_BYTES = 1 << 20
"""Adopted in one decision, about; other sessions have their turn in between."""

QUEUES_AT_ONCE = 100

HELD_MAX = 10_000
"""Messages of one owner that a node names as held by its consumers, at most; beyond it nothing is adopted yet."""

FAR_US = 1 << 62
"""After every due time."""

log = logging.getLogger("qmq.adopting")


class AdoptionContext(Engine, Committing, JournalTail, Alarming, Peers, Protocol):
    """What adopting queues needs of the node."""

    settings: NodeSettings
    takeover: Takeover
    checkpoints: Checkpoints
    commits: Commits
    incarnation_gc: IncarnationGc
    peer_rpc: PeerRpc
    replay: Replay


def is_about_holding(request: bytes) -> bool:
    """Whether a peer asks which messages of a retired node are with consumers here."""
    return request.startswith(b'{"holds"')


def respond_holding(context: AdoptionContext, request: bytes) -> bytes:
    """They, by incarnation and sequence; null when there are too many to tell, or this node still hands some out, or
    would adopt them itself.

    Raises Refused for nonsense.
    """
    try:
        owner = str(json.loads(request)["holds"])
    except (ValueError, TypeError, KeyError) as error:
        raise Refused("bad-destination", "a question about held messages that means nothing") from error
    if not context.takeover.has_let_go(owner) or _is_adopter(context, owner):
        return json.dumps({"holds": None}).encode()
    held = _held_here(context, owner)
    rows = [[dot.origin.incarnation, dot.sequence] for dot in held]
    has = [[*origin, last] for origin, last in context.received_vector().items()]
    return json.dumps({"holds": rows if len(rows) <= HELD_MAX else None, "has": has}).encode()


def _is_adopter(context: AdoptionContext, owner: str) -> bool:
    """As far as this node knows: where two have retired the same one, another's lesser name may come any moment."""
    return owner in context.membership.adopted_by(context.origin.node)


def _held_here(context: AdoptionContext, owner: str) -> set[Dot]:
    """Durable messages of `owner` in anybody's hands, as this node sees it: whoever has served them until now."""
    queues, lending = context.broker.queues, context.broker.lending
    held = {dot for server in {owner, *context.membership.listing.names} for dot in lending.borrowed_from(server)}
    held.update(delivery.message.dot for delivery in queues.deliveries.values())
    held.update(dot for lent in lending.lent.values() for dot in lent)
    return {dot for dot in held if dot.origin.node == owner and dot.sequence > 0}


class QueueAdoption:
    """One task for as long as the node runs; it sleeps for ever where nobody was retired."""

    def __init__(self, context: AdoptionContext) -> None:
        self._context = context
        self._since: dict[str, float] = {}
        self._wanted = trio.Event()
        self.adopted = 0
        """Messages, since the start."""

    def look(self) -> None:
        """The members have changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Adopt until cancelled."""
        context = self._context
        while True:
            owners = context.membership.adopted_by(context.origin.node)
            if not owners:
                await self._wanted.wait()
                self._wanted = trio.Event()
                continue
            for owner in owners:
                await self._adopt(context.membership.retired[owner])
            await trio.sleep(POLL_SECONDS)

    async def _adopt(self, retirement: Retirement) -> None:
        """Whatever may be adopted of one node now."""
        context, owner = self._context, retirement.node
        since = self._since.setdefault(owner, trio.current_time())
        patience = max(context.settings.mesh.redeliver_after_seconds, context.takeover.rules.longest_after())
        is_patient = trio.current_time() < since + patience
        if not context.takeover.has_let_go(owner):
            return
        if context.broker.queues.held or (is_patient and not covers(context.durable_vector(), retirement.sealed)):
            return
        queues = context.store.queues
        is_empty = partial(queues.is_empty, owner)
        left = {origin: last for origin, last in context.durable_vector().items() if origin.node == owner}
        if covers(context.store.stored_vector, left) and await context.environment.run_blocking(is_empty):
            return  # As it is for good, as a rule: no checkpoint for that.
        await context.checkpoints.bring_up()
        if context.broker.admission.disk_full or await context.environment.run_blocking(is_empty):
            return
        held = await self._held(owner, is_patient)
        if held is None:
            return
        # What is adopted already, and what the others hold no more, is settled by records that are here. The stores
        # show it until they have these.
        settled_by = context.committed_end()
        await context.checkpoints.bring_up()
        if context.broker.admission.disk_full or context.store.checkpoint_position < settled_by:
            return
        before = self.adopted
        name: str | None = None
        while True:
            listed = await context.environment.run_blocking(partial(queues.listing, owner, name, QUEUES_AT_ONCE))
            for name, _, _ in listed:
                await self._adopt_queue(owner, name, held)
            if len(listed) < QUEUES_AT_ONCE:
                break
        if self.adopted > before:
            log.info("= adopted %d queue messages of %s", self.adopted - before, owner)
            await context.flushed()

    async def _held(self, owner: str, is_patient: bool) -> set[Dot] | None:
        """What consumers in the mesh have of `owner`; None: too much, or somebody has not said, or this node lacks
        records of those who have, which may settle what they hold no more."""
        context = self._context
        answers = await context.peer_rpc.ask(json.dumps({"holds": owner}).encode())
        if is_patient and not answers.keys() >= set(context.peer_names):
            return None
        membership = context.membership
        # A learner has forgotten what it knew to be settled.
        vouching = {peer for peer in answers if membership.counts(peer)}
        if membership.may_vote:
            vouching.add(context.origin.node)
        if not membership.is_majority(vouching):
            return None
        held = _held_here(context, owner)
        needs: Vector = {}
        for peer, answer in answers.items():
            said = _read_answer(owner, peer, answer)
            if said is None:
                return None
            held.update(said[0])
            merge(needs, said[1])
        with trio.move_on_after(RECORDS_SECONDS):
            # While clients are busy, some of it is always on its way.
            while not covers(context.durable_vector(), context.incarnation_gc.seals.without(needs)):
                await context.commits.grew(context.committed_end())
            return held
        return None

    async def _adopt_queue(self, owner: str, queue: str, held: set[Dot]) -> None:
        context = self._context
        queues = context.store.queues
        heads = await context.environment.run_blocking(partial(queues.heads, owner, [queue], FAR_US))
        for priority in heads[queue].priorities if queue in heads else ():
            after: Dot | None = None
            while True:
                call = partial(queues.page, owner, queue, priority, after, FAR_US, SLICE_ROWS)
                rows = await context.environment.run_blocking(call)
                context.check_damage()
                taken = rows[: _fitting(rows)]
                if taken:
                    await context.slot()
                    if not _is_adopter(context, owner):
                        return
                    self._take(owner, queue, [row for row in taken if row.dot not in held])
                    after = taken[-1].dot
                if len(rows) < SLICE_ROWS and len(taken) == len(rows):
                    break

    def _take(self, owner: str, queue: str, rows: list[QueueRow]) -> None:
        """Accept these of `owner` as messages of this node, times by its clock, and settle what they were."""
        context = self._context
        out = Outcome(now_us=context.environment.now_us())
        dots: list[Dot] = []
        ahead_us = context.broker.clocks.apart_us(owner) or 0
        for row in rows:
            message = context.replay.message_of_row(row)
            if message is None:
                continue  # of a kind that this version does not know; it stays where it is
            dot = Dot(context.origin, context.broker.next_sequence)
            if not context.broker.queues.first_attempts.is_superseded(message):
                context.broker.send(message.envelope, message.body, row.timestamp_us + ahead_us, out)
            if row.attempts and context.broker.next_sequence > dot.sequence:
                # Before anybody is told: poison is not young again because it has changed hands.
                out.attempts.setdefault(queue, {})[dot] = row.attempts
                context.broker.queues.redelivery.failed_before({dot: row.attempts})
            out.settles.setdefault(queue, []).append(row.dot)
            dots.append(row.dot)
            self.adopted += 1
        context.submit(out)
        # Should this node have taken the messages over before, they leave its queues as for any other record.
        record = Dot(context.origin, context.broker.next_sequence - 1)
        context.broker.accept_settles(queue, dots, context.received_vector(), record)


def _read_answer(owner: str, peer: str, answer: bytes) -> tuple[list[Dot], Vector] | None:
    """What `peer` holds of `owner`, and what it has; None when it cannot say, or says nonsense."""
    try:
        said = mapping(json.loads(answer))
        if said.get("holds") is None:
            return None
        # Nodes of an earlier version also name what is in memory only, and do not say what they have.
        holds = [array(pair, 2) for pair in array(said["holds"])]
        has = [array(entry, 3) for entry in array(said.get("has", []))]
        dots = [Dot(origin_of(owner, incarnation), number(last, -SEQUENCE_MAX)) for incarnation, last, *_ in holds]
        return dots, {origin_of(name, incarnation): number(last) for name, incarnation, last, *_ in has}
    except (ValueError, MeshError, RecursionError) as error:
        log.error("! %s answers what it holds of %s with nonsense: %s", peer, owner, error)
        return None


def _fitting(rows: list[QueueRow]) -> int:
    """How many of the first rows make a slice; at least one, if there is one."""
    size = 0
    for count, row in enumerate(rows):
        size += len(row.body) + len(row.headers)
        if count and size > SLICE_BYTES:
            return count
    return len(rows)
