"""Turn the operator's settings into rules of broker and gateways: seconds become µs, omitted values get defaults."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, level_of
from qmq.broker.messages.rules import QueueRules
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.queues import Queues
from qmq.broker.routing.table import RoutingTable
from qmq.config import DestinationPolicy, LimitSettings
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.turns import in_turns
from qmq.gateways.rules import Rules
from qmq.model.members import Membership
from qmq.settings.definitions.declared_queues import CACHED_MAX, DeclaredQueues
from qmq.settings.definitions.paused_queues import NOT_PAUSED, Pause, PausedQueues
from qmq.settings.limits.holdings import Holdings
from qmq.wire.stomp import Limits

QUEUES_AT_ONCE = 2_000
"""Queues that follow their new policies before other tasks get a turn: some 5 ms."""


def broker_limits(limits: LimitSettings) -> BrokerLimits:
    """The part of `limits` that the rules enforce."""
    return BrokerLimits(**{one.name: getattr(limits, one.name) for one in fields(BrokerLimits)})


@lru_cache(maxsize=4)
def wire_limits(limits: LimitSettings) -> Limits:
    """The bounds of frames, as the codec names them."""
    return Limits(**{one.name: getattr(limits, one.name) for one in fields(Limits)})


async def follow_rules(queues: Queues) -> None:
    """Let the existing queues follow changed settings, without delaying clients."""
    async for part in in_turns(queues.by_name.values(), QUEUES_AT_ONCE):
        queues.rules_changed(part)


@dataclass(eq=False, repr=False)
class Policies:
    """The settings of one node for each destination; a reload takes effect with the next call."""

    _membership: Membership
    _node: NodeBasics
    _declared: DeclaredQueues
    _paused: PausedQueues
    _holdings: Holdings

    def __post_init__(self) -> None:
        self._has_disk = self._node.settings.directory is not None
        # Pattern of a policy → the policy and the limits, and the rules made from them.
        self._rules: dict[str, tuple[DestinationPolicy, LimitSettings, QueueRules]] = {}

    def forget_rules(self) -> None:
        """What rules are made from has changed otherwise: make them again."""
        self._rules.clear()

    def of(self, destination: str) -> DestinationPolicy:
        """The policy that applies to the destination, and what is declared of it: the one place that finds both."""
        policy = self._node.settings.destinations.policy_of(destination)
        return self._declared.under(destination, policy)

    def queue_rules(self, destination: str) -> QueueRules:
        """The rules of a queue; the same object for all queues under one policy that are not paused."""
        policy, limits = self.of(destination), self._node.settings.limits
        paused = self._paused.of(destination)
        if paused != NOT_PAUSED:
            return self._rules_under(policy, limits, paused, destination)
        known = self._rules.get(policy.pattern)
        if known is None or known[0] is not policy or known[1] is not limits:
            if len(self._rules) >= CACHED_MAX:
                self._rules.clear()
            known = self._rules[policy.pattern] = (
                policy,
                limits,
                self._rules_under(policy, limits, NOT_PAUSED, destination),
            )
        return known[2]

    def _rules_under(
        self, policy: DestinationPolicy, limits: LimitSettings, paused: Pause, destination: str
    ) -> QueueRules:
        return QueueRules(
            messages_max=limits.queue_messages_max if policy.max_messages is None else policy.max_messages,
            bytes_max=limits.queue_bytes_max if policy.max_bytes is None else policy.max_bytes,
            overflow=policy.overflow,
            ack_timeout_us=round(policy.ack_timeout_seconds * 1_000_000),
            delivery_limit=policy.delivery_limit,
            redelivery_us_min=round(policy.redelivery_seconds_min * 1_000_000),
            redelivery_us_max=round(policy.redelivery_seconds_max * 1_000_000),
            dead_letter=policy.dead_letter_target,
            keeps_dropped=policy.keeps_dropped,
            exclusive=policy.exclusive,
            is_delivery_paused=paused.delivery,
            is_acceptance_paused=paused.acceptance,
            has_lifetime=self._declared.lifetime(destination) is not None,
            check_owner=self._holdings.check_of(destination),
        )

    def queue_defaults(self, destination: str) -> dict[str, str]:
        """Headers that a message of the queue gets if its sender does not set them; they travel with it."""
        policy = self.of(destination)
        defaults: dict[str, str] = {}
        if policy.ttl_seconds:
            defaults["ttl"] = str(round(policy.ttl_seconds * 1000))
        if policy.priority != PRIORITY_DEFAULT:
            defaults["priority"] = str(policy.priority)
        return defaults

    def gateway_rules(self, routing: RoutingTable, lock: Callable[[str, int], None]) -> Rules:
        """The rules about destinations that gateways need, and the bounds of what clients may request."""
        limits = self._node.settings.limits
        return Rules(
            policy=self._use,
            defaults=self.queue_defaults,
            children=lambda destination: self.of(destination).children,
            prefetch_default=limits.prefetch_default,
            prefetch_max=limits.prefetch_max,
            destination_bytes_max=limits.destination_bytes_max,
            buffer_bytes_max=limits.outbox_bytes_max,
            likeness=self.of,
            retains=lambda destination: self.of(destination).retain,
            buffer_messages=lambda destination: self.of(destination).buffer_messages,
            level=self._receipt_level,
            needs_quorum=self._needs_quorum,
            lock=lock,
            begun_by=self._declared.begun_by,
            level_max=len(self._membership.voting_peers) if self._has_disk else ACCEPTED,
            routing=routing,
        )

    def _use(self, destination: str) -> tuple[bool, bool]:
        """Whether clients may use it, and whether its messages are durable."""
        exists = self._node.settings.destinations.exists(destination) or destination in self._declared.texts
        return exists, self.of(destination).durable

    def _receipt_level(self, destination: str) -> int:
        """The level of receipts about a destination: that of its policy, else of the mesh, else two disks where there
        are three. If a node was retired since, the level may be higher than the number of nodes until the files lower
        it. Without a disk it is ACCEPTED, whatever they say.
        """
        if not self._has_disk:
            return ACCEPTED
        word = self.of(destination).receipt or self._node.settings.mesh.receipt
        level = (1 if self._membership.members_fewest > 2 else FSYNC) if word is None else level_of(word)
        assert level is not None, "the configuration was checked"
        return level

    def _needs_quorum(self, destination: str) -> bool:
        """Whether ACKs of a queue's messages that name no level get receipts at level `quorum`."""
        word = self.of(destination).ack_level or self._node.settings.mesh.ack_level
        return word == "quorum" and self._has_disk
