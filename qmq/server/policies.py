"""From the operator's policies to the rules of the broker: seconds become µs, what was left out becomes a default."""

from qmq.broker.limits import BrokerLimits
from qmq.broker.rules import QueueRules
from qmq.broker.terms import PRIORITY_DEFAULT
from qmq.config import DestinationPolicy, LimitSettings


def broker_limits(limits: LimitSettings) -> BrokerLimits:
    """What of `limits` the rules look after."""
    return BrokerLimits(
        subscriptions_max=limits.subscriptions_max,
        transactions_max=limits.transactions_max,
        transaction_frames_max=limits.transaction_frames_max,
        transaction_bytes_max=limits.transaction_bytes_max,
        destinations_max=limits.destinations_max,
        queue_memory_bytes_max=limits.queue_memory_bytes_max,
        retained_topics_max=limits.retained_topics_max,
        retained_bytes_max=limits.retained_bytes_max,
        durable_subscriptions_max=limits.durable_subscriptions_max,
    )


def queue_rules(policy: DestinationPolicy, limits: LimitSettings) -> QueueRules:
    """What a queue under `policy` does with its messages."""
    return QueueRules(
        messages_max=limits.queue_messages_max if policy.max_messages is None else policy.max_messages,
        bytes_max=limits.queue_bytes_max if policy.max_bytes is None else policy.max_bytes,
        overflow=policy.overflow,
        ack_timeout_us=round(policy.ack_timeout_seconds * 1_000_000),
        delivery_limit=policy.delivery_limit,
        redelivery_us_min=round(policy.redelivery_seconds_min * 1_000_000),
        redelivery_us_max=round(policy.redelivery_seconds_max * 1_000_000),
        dead_letter=policy.dead_letter,
        keeps_dropped=policy.keeps_dropped,
        exclusive=policy.exclusive,
    )


def queue_defaults(policy: DestinationPolicy) -> dict[str, str]:
    """Headers that a message of the queue gets when its sender says nothing else; they travel with it."""
    defaults: dict[str, str] = {}
    if policy.ttl_seconds:
        defaults["ttl"] = str(round(policy.ttl_seconds * 1000))
    if policy.priority != PRIORITY_DEFAULT:
        defaults["priority"] = str(policy.priority)
    return defaults
