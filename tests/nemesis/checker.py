"""The verdict on a history: for each message, whether it was lost, doubled, unexpected, or delivered after its ACK.

    lost        it was confirmed, and a reader that should have got it did not. Allowed if the receipt said that it was
                on one disk only, and that disk was lost before other nodes had its records: `lost_with_disk`
    doubled     a subscriber got more copies of it than its sender sent without a dedup id, or a message with a dedup id
                more than once. The latter is allowed in one case: between the first attempt and the receipt, a node
                that accepted one of the copies had a fault, and the copies are on different nodes, or one of these
                lost its disk. An attempt is appended twice if the first one is where no node can reach it:
                `around_faults`
    unexpected  it was delivered, and no client had sent it
    again       a queue message was delivered after its ACK was confirmed: at `quorum` by any node, at `edge` by the
                node that had confirmed it, in the same run. Other cases after an `edge` receipt are counted
                (`after_edge`), as are deliveries that may have left before the receipt (`on_the_way`) and deliveries
                of messages without a confirmed ACK (`given_again`)
    overtaken   a message of a group was delivered for the first time, and without a mark, behind a later one of its
                group that the same node had accepted

Besides messages, a run fails if a node ended that should not, and by the errors that the run itself finds at its end.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from tests.nemesis.history import UNKNOWN, Again, History, Stream, accepted_by

SHOWN = 5
"""Bodies of one kind in a sentence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One reader of one destination."""

    destination: str
    reader: str
    sent: int
    receipted: int
    received: int
    """Different bodies."""
    sent_again: int
    around_faults: int
    lost_with_disk: int
    given_again: int
    acked_edge: int
    """Messages with a receipted ACK that was not one for good."""
    acked_for_good: int
    after_edge: int
    on_the_way: int
    lost: tuple[bytes, ...]
    doubled: tuple[bytes, ...]
    unexpected: tuple[bytes, ...]
    again: tuple[Again, ...]
    overtaken: tuple[bytes, ...]
    blamed: dict[str, Counter[str]]
    """Node → what of the above is its: it receipted what is lost, told what is doubled or unexpected, gave it again."""
    repeats: int

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.unexpected or self.repeats or self.again or self.overtaken)

    @property
    def after_edge_percent(self) -> float:
        """Of the messages with a receipted `edge` ACK."""
        return 100 * self.after_edge / self.acked_edge if self.acked_edge else 0.0


def judge(history: History) -> list[Row]:
    """One row for each reader."""
    return [_row(history, stream) for _, stream in sorted(history.streams.items())]


def missing(history: History, destination: str, readers: Iterable[str]) -> int:
    """How much of what is receipted one of `readers` has not been told yet, the most of them all."""
    receipted = history.receipted.get(destination, {})
    told = (history.streams[reader].times if reader in history.streams else {} for reader in readers)
    return max(
        sum(body not in times and not _was_on_lost_disk(history, destination, body) for body in list(receipted))
        for times in told
    )


def wrongs(history: History, rows: Iterable[Row], others: Sequence[str] = ()) -> list[str]:
    """What is wrong, one sentence each; `others` is what was found beside the messages."""
    found: list[str] = []
    for row in rows:
        kinds = (("lost", row.lost), ("doubled", row.doubled), ("unexpected", row.unexpected))
        for what, bodies in (*kinds, ("overtaken in their groups", row.overtaken)):
            if bodies:
                some = ", ".join(body.decode("utf-8", "replace") for body in bodies[:SHOWN])
                found.append(f"{row.reader} of {row.destination}: {len(bodies)} {what}: {some}")
        if row.repeats:
            found.append(f"{row.reader} of {row.destination}: {row.repeats} message-ids came twice")
        if row.again:
            some = "; ".join(str(again) for again in row.again[:SHOWN])
            found.append(f"{row.reader} of {row.destination}: {len(row.again)} given after their ACK: {some}")
    found += [f"node {node} ended by itself at {at:.1f} s: {how}" for at, node, how in history.deaths]
    return [*found, *others]


def _row(history: History, stream: Stream) -> Row:
    sent = history.sent.get(stream.destination, {})
    attempts = history.attempts.get(stream.destination, Counter())
    receipted = history.receipted.get(stream.destination, {})
    unseen = receipted.keys() - stream.times.keys()
    lost = {body for body in unseen if not _was_on_lost_disk(history, stream.destination, body)}
    is_queue = stream.destination.startswith("/queue/")
    twice = [] if is_queue else [body for body, times in stream.times.items() if times > max(attempts[body], 1)]
    twice = [body for body in twice if body in sent]
    doubled = [body for body in twice if not _is_allowed(history, stream, body)]
    unexpected = stream.times.keys() - sent.keys()
    # A copy that was sent again without a name may be there beside the one that was acknowledged.
    late = [again for again in stream.again if again.is_same_copy or attempts[again.body] <= 1]
    wrong = [again for again in late if again.ack.for_good or _is_same_life(again)]
    blamed: dict[str, Counter[str]] = {}
    for what, nodes in (
        ("lost", [receipted[body].node for body in lost]),
        ("doubled", [stream.told[body][-1][1] for body in doubled] + [node for _, node in stream.repeats]),
        ("unexpected", [node for body in unexpected for _, node in stream.told[body]]),
        ("given after their ACK", [again.node for again in wrong]),
        ("overtaken", [node for _, node in stream.overtaken]),
    ):
        for node in nodes:
            blamed.setdefault(node, Counter())[what] += 1
    return Row(
        destination=stream.destination,
        reader=stream.reader,
        sent=len(sent),
        receipted=len(receipted),
        received=len(stream.times),
        sent_again=sum(times > 1 for times in attempts.values()),
        around_faults=len(twice) - len(doubled),
        lost_with_disk=len(unseen) - len(lost),
        given_again=sum(stream.times.values()) - len(stream.times),
        acked_edge=sum(not acks[0].for_good for acks in stream.acks.values()),
        acked_for_good=sum(acks[-1].for_good for acks in stream.acks.values()),
        after_edge=len({again.body for again in late if not again.ack.for_good}),
        on_the_way=stream.on_the_way,
        lost=tuple(sorted(lost)),
        doubled=tuple(sorted(doubled)),
        unexpected=tuple(sorted(unexpected)),
        again=tuple(wrong),
        overtaken=tuple(body for body, _ in stream.overtaken),
        blamed=blamed,
        repeats=len(stream.repeats),
    )


def _is_same_life(again: Again) -> bool:
    """Whether the node that gave it is the one that had receipted the ACK, and has not been started since."""
    return again.node == again.ack.node and again.life == again.ack.life and again.is_same_copy


def _was_on_lost_disk(history: History, destination: str, body: bytes) -> bool:
    """Whether the receipt promised one disk only, and that one was lost before others had what it had."""
    receipt = history.receipted[destination][body]
    return receipt.copies <= 1 and any(
        receipt.disk in (*harm.nodes, UNKNOWN) and harm.alone_since <= receipt.at <= harm.end for harm in history.harms
    )


def _is_allowed(history: History, stream: Stream, body: bytes) -> bool:
    """Whether a named message may be there twice: see above."""
    begin = history.sent[stream.destination][body]
    receipt = history.receipted.get(stream.destination, {}).get(body)
    end = receipt.at if receipt is not None else inf
    nodes = {accepted_by(message_id) for message_id, _ in stream.told[body]}
    harms = [
        harm for harm in history.harms if harm.begin <= end and begin <= harm.end and nodes.intersection(harm.nodes)
    ]
    return bool(harms) and (len(nodes) > 1 or any(harm.alone_since < inf for harm in harms))
