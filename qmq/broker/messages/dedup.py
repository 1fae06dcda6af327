"""Which messages this node knows by their dedup id: what makes a SEND that is tried again be appended once.

A publisher that may try again names its message by `dedup-id` (Artemis's word `_AMQ_DUPL_ID` and `qmq-dedup-id` mean
the same). An id counts for one sender and one destination, a queue or a fanout; topics keep nothing, so theirs only
travels. A sender is a user, and all clients that have not logged in are one. The header goes with the message, and with
it what stands for the user, so a node learns the ids of its peers' records as it does those of its own clients, and
finds both in its journal after a restart.

What an operator removes (purge, delete) is forgotten on all nodes (`storage.format.forgotten_record`): a producer that
sends it again wants it again. What is remembered is bounded by number and by age, whichever is reached first. A **key**
is a digest of destination, id and sender, so that long ids cost no more than short ones.

Surprising: a node also remembers which keys a peer has asked about in vain. The publisher is at that peer now; what may
still come of it here is a first try that was on its way, and must not be believed to be one.
"""

import re
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from qmq.model.dots import Dot, Vector

KEY_BYTES: Final = 16

IDS_MAX: Final = 100_000
SECONDS: Final = 600
"""How many messages are known by their ids, and how long: about 25 MB when full."""

ASKED_MAX: Final = 10_000
"""Keys that peers have asked about in vain; the oldest is forgotten beyond it."""

REMOVED_MAX: Final = 10_000
"""Removed messages whose own record is not here yet; the oldest is forgotten beyond it."""

DEDUP_HEADERS: Final = ("dedup-id", "qmq-dedup-id", "_AMQ_DUPL_ID")

SENDER: Final = "dedup-sender"
"""Header of a message with a dedup id: `sender_of` its user. Clients cannot set it."""

RETRY: Final = "dedup-retry"
"""Header of a queue message whose SEND said that it is tried again. Clients cannot set it."""

RETRIED: Final = ((RETRY, "true"),)

_DEAD_LETTER: Final = re.compile(rb"^dead-letter-reason:", re.MULTILINE)
_RETRY: Final = re.compile(rb"^dedup-retry:true$", re.MULTILINE)
_SENDER: Final = re.compile(rb"^dedup-sender:([^\n]+)$", re.MULTILINE)
_ID: Final = re.compile(rb"^(?:(?:qmq-)?dedup-id|_AMQ_DUPL_ID):([^\n]+)$", re.MULTILINE)


def dedup_key(destination: str, headers: bytes) -> bytes | None:
    """The key of a message with this block of STOMP 1.2 header lines; None when it has no dedup id."""
    if b"dedup-id:" not in headers and b"_AMQ_DUPL_ID:" not in headers:
        return None
    found = _ID.search(headers)
    if found is None:
        return None
    name = b"%b\n%b" % (destination.encode(), found[1])
    sender = _SENDER.search(headers)
    if sender is not None:
        name += b"\n" + sender[1]
    return blake2b(name, digest_size=KEY_BYTES).digest()


def sender_of(user: str) -> str:
    """What stands for a user: consumers of a message learn no login name."""
    return blake2b(user.encode(), digest_size=8).hexdigest()


def is_retry(headers: bytes) -> bool:
    """Whether the SEND of a queue message with this block said that it is tried again."""
    return b"dedup-retry:" in headers and _RETRY.search(headers) is not None


def is_dead_letter(headers: bytes) -> bool:
    """Whether this is the block of a dead letter, or of one that was sent on with all its headers."""
    return b"dead-letter-reason:" in headers and _DEAD_LETTER.search(headers) is not None


class Dedup:
    """Key → the message that has it, for the last IDS_MAX of them and SECONDS."""

    def __init__(self, ids_max: int = IDS_MAX, seconds: int = SECONDS) -> None:
        self._ids_max = ids_max
        self._us_max = seconds * 1_000_000
        self._known: dict[bytes, Dot] = {}
        # When each was learned, oldest first.
        self._order: deque[tuple[int, bytes, Dot]] = deque()
        # Key → the last other message with it: the first may be one that an operator has removed.
        self._again: dict[bytes, Dot] = {}
        self._of_fanouts: dict[bytes, str] = {}
        """Key → the fanout, of known messages of fanouts."""
        # Removed messages that this node has not met: records of two nodes may arrive in any order.
        self._removed: dict[Dot, None] = {}
        self.is_behind = False
        """Whether any SEND may have been tried again at a peer whose records are not here: see
        `qmq.mesh.peers.dedup_query`."""
        self.retries: dict[bytes, tuple[str, int]] = {}
        """Key → the node that recorded a retry in a queue, and its time stamp; of keys that are known."""
        self._asked: set[bytes] = set()
        self._asked_order: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, key: bytes, dot: Dot, now_us: int, fanout: str = "") -> None:
        """`dot` is the message with this key, of this `fanout` if it is of one. The first one counts."""
        known = self._known
        first = known.get(key)
        if first is not None:
            if first != dot:
                self._again[key] = dot
            return
        if self._removed and dot in self._removed:
            return
        known[key] = dot
        if fanout:
            self._of_fanouts[key] = fanout
        order = self._order
        order.append((now_us, key, dot))
        while len(order) > self._ids_max:
            self._forget(*order.popleft()[1:])
        self._forget_old(now_us)

    def forget(self, removed: Mapping[Dot, bytes]) -> None:
        """An operator has removed these messages, which have these keys: they may be sent again."""
        for dot, key in removed.items():
            if self._known.get(key) != dot and self._again.get(key) != dot:
                if len(self._removed) >= REMOVED_MAX:
                    del self._removed[next(iter(self._removed))]
                self._removed[dot] = None
            elif self._known[key] != dot:
                del self._again[key]
            else:
                again, fanout = self._again.pop(key, None), self._of_fanouts.get(key)
                at_us = self._order[-1][0]
                self._forget(key, dot)
                if again is not None:
                    self._known[key] = again
                    if fanout is not None:
                        self._of_fanouts[key] = fanout
                    self._order.append((at_us, key, again))

    def forget_fanout(self, fanout: str, before: Vector) -> None:
        """The messages of this fanout that `before` covers are deleted."""
        keys = [key for key, name in self._of_fanouts.items() if name == fanout]
        found = [(self._known[key], key) for key in keys]
        found += [(self._again[key], key) for key in keys if key in self._again]
        self.forget({dot: key for dot, key in found if dot.sequence <= before.get(dot.origin, 0)})

    def learn_retry(self, key: bytes, node: str, timestamp_us: int) -> None:
        """A retry of the message with this key is in a queue of `node`. Call `learn` first."""
        if key in self._known:
            self.retries.setdefault(key, (node, timestamp_us))

    def find(self, key: bytes, now_us: int) -> Dot | None:
        """The message with this key, when it is known."""
        self._forget_old(now_us)
        return self._known.get(key)

    def note_asked(self, key: bytes) -> None:
        """A peer is about to append a message with this key, unless another node has it."""
        if key not in self._asked:
            self._asked.add(key)
            self._asked_order.append(key)
            if len(self._asked_order) > ASKED_MAX:
                self._asked.discard(self._asked_order.popleft())

    def was_asked(self, key: bytes) -> bool:
        """Whether a peer has asked, or may have, so that a SEND with this key is to be treated as tried again."""
        return self.is_behind or key in self._asked

    def _forget_old(self, now_us: int) -> None:
        order = self._order
        until = now_us - self._us_max
        while order and order[0][0] < until:
            self._forget(*order.popleft()[1:])

    def _forget(self, key: bytes, dot: Dot) -> None:
        """Unless another message has the key by now."""
        if self._known.get(key) == dot:
            del self._known[key]
            self._again.pop(key, None)
            self._of_fanouts.pop(key, None)
            self.retries.pop(key, None)
