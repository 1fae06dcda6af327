"""What the links of one node know of each other.

A link alone cannot tell which origins its peer need not relay, whether records that came over another link let a
lender take its messages back, or whether an alarm was raised a second ago. Pure: the caller brings the time.
"""

from typing import Final

from qmq.broker.message import Message
from qmq.broker.outcome import Outcome
from qmq.dots import Origin
from qmq.errors import MeshError
from qmq.replication.acceptance import NOT_HERE, Acceptance
from qmq.replication.conversation import REFUSED
from qmq.replication.following import Following
from qmq.replication.handshake import Identity
from qmq.replication.host import Host
from qmq.replication.serving import Serving

ALARM_SECONDS: Final = 60.0
"""The same alarm about the same peer is not raised again within this."""

ALARMS_REMEMBERED_MAX: Final = 1000

QUIET: Final = frozenset({NOT_HERE, "silent", "not-reading", "replaced", "login-too-slow"})
"""Codes that are no mistrust: the link ends and is dialled again."""


class Hub:
    """The open links of one node, by peer."""

    def __init__(self, host: Host, identity: Identity) -> None:
        self.host = host
        self.identity = identity
        self.acceptance = Acceptance(identity.origin, identity.members, host.replay)
        self.followings: dict[str, Following] = {}
        self.servings: dict[str, Serving] = {}
        self.unlent: dict[str, list[Message]] = {}
        """Lent in a decision, but never sent: they go back to their queues."""
        self._alarms: dict[tuple[str, str], float] = {}

    def direct_for(self, peer: str) -> tuple[Origin, ...]:
        """Origins that `peer` need not send us: our own, and those that we follow at their own node.

        Only present incarnations: records of an earlier one may be anywhere, its own node may have lost them.
        """
        others = [
            link.partner.origin
            for link in self.followings.values()
            if link.welcomed and not link.holed and link.peer != peer
        ]
        return (self.host.origin, *sorted(others))

    def direct_changed(self) -> None:
        """A link became open or ended: the other peers begin or cease to relay."""
        for following in self.followings.values():
            following.want_ack()

    def received_grew(self, out: Outcome) -> None:
        """Records came in, over whichever link: lenders may now know what was lost."""
        have = self.host.received_vector()
        for serving in self.servings.values():
            serving.take_back(have, out)

    def report_caught_up(self) -> None:
        """Tell the node about links whose peer is no longer ahead."""
        for following in list(self.followings.values()):
            if following.has_caught_up():
                self.host.link_caught_up(following.peer)

    def return_unlent(self, out: Outcome) -> None:
        """Put lent messages that never left back into their queues."""
        waiting = self.unlent
        self.unlent = {}
        for peer, messages in waiting.items():
            self.host.broker.lending.returned(peer, [(message.dot, False) for message in messages], out)

    def alarm(self, who: str, error: MeshError, now: float) -> None:
        """Tell the operator, unless it is a quiet error or was told just now."""
        if error.code.removeprefix(REFUSED) in QUIET:
            return
        key = (who, error.code)
        last = self._alarms.get(key)
        if last is not None and now - last < ALARM_SECONDS:
            return
        if len(self._alarms) >= ALARMS_REMEMBERED_MAX:
            self._alarms.clear()
        self._alarms[key] = now
        self.host.alarm(error.code, f"link with {who or 'a stranger'}: {error.message}")
