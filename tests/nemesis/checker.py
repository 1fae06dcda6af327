"""The verdict on a history: of every message, was it lost, doubled, or told although nobody sent it?

    lost        it was receipted, and a reader that had to be told it was not
    doubled     a follower was told it twice. Not counted when its sender sent it twice without naming its attempts; nor
                when it had no answer while something was done to nodes: an attempt that names itself is appended twice
                if the first one lies on a node that nobody reaches
    unexpected  it was told and nobody ever sent it

A queue's message may be given again, to another consumer or to the same: `given_again` is a number, not a fault.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tests.nemesis.history import History, Stream

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
    """Named, open while something was done to nodes, and twice there."""
    given_again: int
    lost: tuple[bytes, ...]
    doubled: tuple[bytes, ...]
    unexpected: tuple[bytes, ...]
    repeats: int

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.unexpected or self.repeats)


def judge(history: History) -> list[Row]:
    """One row for each reader."""
    return [_row(history, stream) for _, stream in sorted(history.streams.items())]


def missing(history: History, destination: str, readers: Iterable[str]) -> int:
    """How much of what is receipted one of `readers` has not been told yet, the most of them all."""
    receipted = history.receipted.get(destination, {})
    told = (history.streams[reader].times if reader in history.streams else {} for reader in readers)
    return max(sum(body not in times for body in list(receipted)) for times in told)


def wrongs(rows: Iterable[Row]) -> list[str]:
    """What is wrong, one sentence each."""
    found: list[str] = []
    for row in rows:
        for what, bodies in (("lost", row.lost), ("doubled", row.doubled), ("unexpected", row.unexpected)):
            if bodies:
                some = ", ".join(body.decode("utf-8", "replace") for body in bodies[:SHOWN])
                found.append(f"{row.reader} of {row.destination}: {len(bodies)} {what}: {some}")
        if row.repeats:
            found.append(f"{row.reader} of {row.destination}: {row.repeats} message-ids came twice")
    return found


def _row(history: History, stream: Stream) -> Row:
    sent = history.sent.get(stream.destination, {})
    again = history.again.get(stream.destination, set())
    receipted = history.receipted.get(stream.destination, {})
    is_queue = stream.destination.startswith("/queue/")
    twice = [] if is_queue else [body for body, times in stream.times.items() if times > 1 and body not in again]
    doubled = [body for body in twice if not _was_open_in_harm(history, stream.destination, body)]
    return Row(
        destination=stream.destination,
        reader=stream.reader,
        sent=len(sent),
        receipted=len(receipted),
        received=len(stream.times),
        sent_again=len(again),
        around_faults=len(twice) - len(doubled),
        given_again=sum(stream.times.values()) - len(stream.times),
        lost=tuple(sorted(receipted.keys() - stream.times.keys())),
        doubled=tuple(sorted(doubled)),
        unexpected=tuple(sorted(stream.times.keys() - sent.keys())),
        repeats=stream.repeats,
    )


def _was_open_in_harm(history: History, destination: str, body: bytes) -> bool:
    """Whether something was done to nodes between a message's first attempt and its receipt."""
    begin = history.sent[destination].get(body, 0.0)
    end = history.receipted.get(destination, {}).get(body, inf)
    return any(harm.begin <= end and begin <= harm.end for harm in history.harms)
