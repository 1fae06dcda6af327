"""Responses on their way to their sessions: held back until enough other disks have the records that they confirm.

`ReplicaAcks` decides; this adds the clock and the bound that makes a fast sender wait. A peer's report
arrives in the middle of another decision. So the responses that it frees are delivered at the next flush, not at once.
Methods return what is to be put into outboxes now.
"""

import logging
from collections.abc import Iterable
from typing import Final

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, HEARD, QUORUM, disks_of
from qmq.engine.commit.replica_acks import WAITING_BYTES_MAX, PendingReceipt, ReplicaAcks
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.replication.links.routes import Routes

log = logging.getLogger("qmq.receipts")


IN_MEMORY: Final = ("receipt-level", "accepted")
"""In a RECEIPT of a node without a disk, whatever was asked for."""


class Receipts:
    """With `refuses`, a response with too few replica acks becomes an ERROR. Without a disk, receipts about durable
    messages say so."""

    def __init__(
        self, replica_acks: ReplicaAcks, interest: Routes, *, refuses: bool = False, has_disk: bool = True
    ) -> None:
        self._replica_acks = replica_acks
        self._refuses = refuses
        self._has_disk = has_disk
        self._freed: list[PendingReceipt] = []
        self._interest = interest
        self._room = trio.lowlevel.ParkingLot()

    async def slot(self) -> None:
        """Wait until there is room for more responses. No checkpoint when there is."""
        while self._replica_acks.waiting_bytes >= WAITING_BYTES_MAX:
            await self._room.park()

    def due_now(self, out: Outcome) -> list[PendingReceipt]:
        """The responses to the session of `out`, whose records are durable here, as far as enough replicas have them.

        The others wait.
        """
        ready = self.freed()
        now = trio.current_time()
        for answer in answers_of(out):
            if answer.level == HEARD:
                answer.sequence = self._interest.version
                answer.waits = int(self._interest.confirmed < answer.sequence)
            if not self._has_disk and (answer.level == ACCEPTED or out.repeats):
                answer.level = ACCEPTED
                answer.marks = (*answer.marks, IN_MEMORY)
            if self._replica_acks.ask(answer, now):
                ready.append(answer)
        return ready

    def early(self, out: Outcome) -> list[PendingReceipt]:
        """Those receipts of `out` that wait for nothing; they must be its first, and none may wait before them."""
        if out.levels[0] != (0, ACCEPTED) or self._replica_acks.holds(out.session):
            return []
        ready = self.freed()
        count = out.levels[1][0] if len(out.levels) > 1 else len(out.receipts)
        answer = PendingReceipt(out.session, out.receipts[:count], level=ACCEPTED)
        if not self._has_disk:
            answer.marks = (IN_MEMORY,)
        ready.append(answer)
        out.receipts = out.receipts[count:]
        out.levels = [(begin - count, level) for begin, level in out.levels[1:]]
        return ready

    def enrol(self, peers: Iterable[str]) -> None:
        """Set the peers whose disks count from now on."""
        self._replica_acks.enrol(peers)

    def peer_durable(self, peer: str, sequence: int) -> None:
        """`peer` has this node's records up to `sequence` on disk. The caller flushes soon."""
        was_short = self._replica_acks.short
        self._freed += self._replica_acks.peer_durable(peer, sequence, trio.current_time())
        if was_short and not self._replica_acks.short:
            log.info("= receipts wait for copies again")

    def terms_changed(self) -> None:
        """The terms may show more about which node serves which owner. The caller flushes soon."""
        self._freed += self._replica_acks.terms_changed(trio.current_time())

    def interest_progressed(self) -> None:
        """Peers may have confirmed a later version of this node's interest. The caller flushes soon."""
        self._freed += self._replica_acks.interest_confirmed(self._interest.confirmed)

    def freed(self) -> list[PendingReceipt]:
        """The responses that reports of peers have freed since the last call."""
        freed = self._freed
        if freed:
            self._freed = []
            self._room.unpark_all()
            return freed
        return []

    def mark_short(self, answer: PendingReceipt, encoder: Encoder, keep_open: bool) -> None:
        """Mark the receipts of a response that has too few replica acks.

        With `refuses` they become ERRORs, and the first one ends a session that does not stay open after it.
        """
        copies = answer.copies
        assert copies is not None
        receipts, answer.receipts = answer.receipts, []
        if not self._refuses:
            lines = [*answer.marks, *_shortage(answer), ("copies", str(copies))]
            answer.frames = [encoder.receipts(receipts, lines), *answer.frames]
            return
        errors = [encoder.error(_refusal(answer, copies), receipt) for receipt in receipts]
        if errors and not keep_open:
            answer.frames = errors[:1]
            answer.ending = True
        else:
            answer.frames = errors + answer.frames

    @property
    def next_deadline(self) -> float | None:
        """The time at which `expire` has something to do; None: nothing waits."""
        return self._replica_acks.next_deadline

    def expire(self, now: float) -> None:
        """Free the responses that have waited long enough. The caller flushes."""
        was_short = self._replica_acks.short
        owners = self._replica_acks.short_owners
        self._freed += self._replica_acks.expire(now)
        short = self._replica_acks.short
        if short and short != was_short:
            log.warning("! too few nodes confirm replicas=%d: receipts report that, and do not wait now", short[0])
        if self._replica_acks.short_owners != owners:
            log.warning(
                "! no majority that includes the serving node of %s confirms ACKs: "
                "receipts report that, and do not wait now",
                ", ".join(self._replica_acks.short_owners),
            )


def answers_of(out: Outcome) -> list[PendingReceipt]:
    """The responses to the session of `out`, one for each run of receipts of one level."""
    answers: list[PendingReceipt] = []
    begins = out.levels if out.levels and out.levels[0][0] == 0 else [(0, FSYNC), *out.levels]
    for number, (begin, level) in enumerate(begins):
        end = begins[number + 1][0] if number + 1 < len(begins) else len(out.receipts)
        answer = PendingReceipt(out.session, out.receipts[begin:end], level=disks_of(level), sequence=out.sequence)
        if level >= QUORUM:
            answer.owners = out.owners or ()
        answers.append(answer)
    if out.marks:
        for answer in answers:
            answer.marks = out.marks
    answers[-1].frames = out.frames
    answers[-1].ending = out.ending
    answers[-1].begins = out.begins
    return answers


def _shortage(answer: PendingReceipt) -> list[tuple[str, str]]:
    """Header lines with the level that was reached, instead of the requested one."""
    lines = []
    if answer.misses % QUORUM:
        lines.append(("receipt-level", "fsync"))
    if answer.misses >= QUORUM:
        lines.append(("ack-level", "edge"))
    return lines


def _refusal(answer: PendingReceipt, copies: int) -> Refused:
    disks = f"{copies} disk{'s' if copies > 1 else ''}"
    if answer.misses < QUORUM:
        return Refused(
            "too-few-copies",
            f"It was accepted, but is on {disks} and not on {1 + answer.level}: too few nodes confirm in time.",
        )
    return Refused(
        "too-few-copies",
        f"It was accepted, on {disks}, but the message may be delivered again: no majority that includes "
        "the node which serves it confirms in time.",
    )
