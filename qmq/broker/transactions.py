"""Transactions: frames of one client that are held until COMMIT and then decided together, all of them or none.

Before COMMIT, nothing of a transaction is on disk. At COMMIT all of it is one batch with one checksum, so after a crash
it exists whole or not at all. When a session ends, its open transactions are dropped. This module holds and checks
frames; `Broker.commit` applies them.
"""

from collections.abc import Collection, Mapping

from qmq.broker.consumers.outcome import DEAD_LETTERS_BYTES_MAX
from qmq.broker.consumers.session import ClientState, HeldFrame
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription, covered
from qmq.broker.messages.dedup import Dedup
from qmq.broker.messages.dedup_learning import missing_of
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Retain
from qmq.broker.queues.queues import Queues
from qmq.broker.send_limits import SendLimits
from qmq.errors import Refused

QUEUE = DestinationKind.QUEUE

NOWHERE: Mapping[bytes, bool] = {}
"""No message is known to be held by other nodes."""


def ends_of_runs(frames: list[HeldFrame]) -> list[int]:
    """For the first frame of each run where the run ends, for all other frames the place after them.

    A run is SENDs to one queue that differ in their bodies and own headers only, so they can be decided as one.
    """
    ends = list(range(1, len(frames) + 1))
    first = 0
    before: Envelope | None = None
    for at, held in enumerate(frames):
        envelope = held.envelope
        if envelope is None or envelope.kind is not QUEUE or envelope.options is not None or envelope.key is not None:
            before = None
        elif envelope.copies:
            before = None
        elif before is not None and envelope.destination == before.destination and envelope.durable == before.durable:
            ends[first] = at + 1
        else:
            first, before = at, envelope
    return ends


class Transactions:
    """Those of all `sessions`. `send_limits` refuses messages that do not fit."""

    def __init__(
        self,
        sessions: dict[int, ClientState],
        queues: Queues,
        dedup: Dedup,
        send_limits: SendLimits,
    ) -> None:
        self._sessions = sessions
        self._queues = queues
        self._dedup = dedup
        self._send_limits = send_limits

    def begin(self, session_id: int, name: str) -> None:
        """Open a transaction. Raises Refused for a name in use or too many open."""
        session = self._sessions[session_id]
        if name in session.transactions:
            raise Refused("transaction-exists", "A transaction with that name is already open.")
        most = self._send_limits.limits.transactions_max
        if len(session.transactions) >= most:
            raise Refused("too-many-transactions", f"A connection has at most {most} transactions.")
        session.transactions = {**session.transactions, name: []}

    def hold(self, session_id: int, name: str, held: HeldFrame) -> None:
        """Keep one frame until COMMIT. Raises Refused when there is no such transaction, or no room."""
        limits = self._send_limits.limits
        frames = self._frames(session_id, name)
        session = self._sessions[session_id]
        most = max(limits.transaction_frames_max, session.transaction_frames_max)
        if len(frames) >= most:
            raise Refused("transaction-too-long", f"A transaction has at most {most} frames.")
        held_bytes = session.held_bytes + held.bytes
        if held_bytes > limits.transaction_bytes_max:
            most = limits.transaction_bytes_max
            raise Refused("transaction-too-large", f"The open transactions of a connection hold at most {most} bytes.")
        session.held_bytes = held_bytes
        frames.append(held)

    def close(
        self, session_id: int, name: str, now_us: int, elsewhere: Mapping[bytes, bool] = NOWHERE
    ) -> tuple[list[HeldFrame], Collection[int], int]:
        """End a transaction that can be applied whole; raises Refused, with nothing changed, when it cannot.

        A message that was requeued meanwhile cannot be settled any more, so its ACK refuses the whole: what was made
        out of the message will be made again by its next consumer. Messages with a dedup id that is known here, or held
        `elsewhere`, are not checked: they are appended already.

        Returns all frames, the id() of those that are appended already, and the bytes of the others' dead letters.
        """
        frames = self._frames(session_id, name)
        missing = {
            id(held): self.missing(held, now_us, elsewhere)
            for held in frames
            if held.envelope is not None and held.envelope.key is not None
        }
        dead_letters_bytes = self._check(frames, missing)
        self.abort(session_id, name)
        return frames, {held for held, envelope in missing.items() if envelope is None}, dead_letters_bytes

    def abort(self, session_id: int, name: str) -> None:
        """Forget all that was held. Raises Refused when there is no such transaction."""
        frames = self._frames(session_id, name)
        session = self._sessions[session_id]
        del session.transactions[name]
        if session.transactions:
            session.held_bytes -= sum([held.bytes for held in frames])
        else:
            session.held_bytes = 0

    def _check(self, frames: list[HeldFrame], missing: Mapping[int, Envelope | None]) -> int:
        """Refuse the whole when one of `frames` cannot be applied behind the others; nothing changes.

        `missing`: by id(), of those that have a dedup id, the envelope of what is not appended yet. Returns the bytes
        of the dead letters that the others make.
        """
        send_limits = self._send_limits
        ahead: dict[str, tuple[int, int]] = {}
        ends = ends_of_runs(frames)
        taken = 0
        for at, held in enumerate(frames):
            if at < taken:
                continue
            envelope = missing.get(id(held), held.envelope)
            if envelope is not None:
                if ends[at] > at + 1:
                    run_bytes = sum([len(one.body) for one in frames[at : ends[at]]])
                    if send_limits.has_room(envelope, ends[at] - at, run_bytes):
                        taken = ends[at]
                        messages, body_bytes = ahead.get(envelope.destination, (0, 0))
                        ahead[envelope.destination] = (messages + taken - at, body_bytes + run_bytes)
                        continue
                size = len(held.body)
                messages, body_bytes = ahead.get(envelope.destination, (0, 0))
                send_limits.check_send(envelope, size, messages, body_bytes)
                if envelope.copies:
                    send_limits.check_copies(envelope, size, ahead)
                if envelope.kind is not DestinationKind.EXCHANGE:
                    ahead[envelope.destination] = (messages + 1, body_bytes + size)
                for copy in envelope.copies:
                    messages, body_bytes = ahead.get(copy.destination, (0, 0))
                    ahead[copy.destination] = (messages + 1, body_bytes + size)
            elif held.delivery is not None and held.delivery.tag not in self._queues.deliveries:
                raise Refused("unknown-ack", "A message of the transaction does not wait for its ACK any more.")
        dead_letters_bytes = self._dead_letters_bytes(frames)
        if dead_letters_bytes > DEAD_LETTERS_BYTES_MAX:
            raise Refused(
                "transaction-too-large",
                f"The messages that a transaction dead-letters have at most {DEAD_LETTERS_BYTES_MAX} bytes.",
            )
        send_limits.retained.check(
            [(h.envelope, len(h.body)) for h in frames if h.envelope is not None and h.envelope.retain is Retain.SET]
        )
        return dead_letters_bytes

    def covered(self, delivery: Delivery) -> list[Delivery]:
        """What an ACK or NACK of `delivery` is about, without others that an open transaction of its client is about:
        those are decided with the transaction.
        """
        found = covered(delivery)
        session = self._sessions.get(delivery.subscription.session)
        if len(found) == 1 or session is None or not session.transactions:
            return found
        held = [one.delivery for frames in session.transactions.values() for one in frames if one.delivery is not None]
        through = max([one.tag for one in held if one.subscription is delivery.subscription], default=0)
        return [one for one in found if one.tag > through or one is delivery]

    def _dead_letters_bytes(self, frames: list[HeldFrame]) -> int:
        """What the dead letters of the NACKs among `frames` take. The first frame about a message decides."""
        size = 0
        decided: set[int] = set()
        decided_through: dict[Subscription, int] = {}
        for held in frames:
            delivery = held.delivery
            if delivery is None or delivery.subscription.durable is not None:
                continue
            subscription = delivery.subscription
            through = decided_through.get(subscription, 0)
            if not held.is_ack:
                refused = [one for one in covered(delivery) if one.tag > through and one.tag not in decided]
                size += sum([self._queues.redelivery.dead_letter_bytes(one, held.why) for one in refused])
            if subscription.ack is Ack.CLIENT:
                decided_through[subscription] = max(through, delivery.tag)
            else:
                decided.add(delivery.tag)
        return size

    def missing(self, held: HeldFrame, now_us: int, elsewhere: Mapping[bytes, bool]) -> Envelope | None:
        """The envelope of what a held SEND must still append (`missing_of`). None for a duplicate, an ACK or NACK."""
        envelope = held.envelope
        if envelope is None or envelope.key is None:
            return envelope
        return missing_of(envelope, self._dedup, now_us, elsewhere)

    def _frames(self, session_id: int, name: str) -> list[HeldFrame]:
        frames = self._sessions[session_id].transactions.get(name)
        if frames is None:
            raise Refused("unknown-transaction", "No transaction with that name is open.")
        return frames
