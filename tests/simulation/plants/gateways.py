"""Mistakes with clients of AMQP and beanstalkd."""

from collections.abc import Iterator
from unittest.mock import patch

from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.message import Message
from qmq.protocols.amqp.codec.frames import Command
from qmq.protocols.amqp.gateway.channel import Channel
from qmq.protocols.amqp.gateway.names import DEFAULT_VHOST, Vhost, publish_destination
from qmq.protocols.amqp.publishes import ChannelPublishes
from qmq.protocols.beanstalk.gateway.encoder import ReplySlot
from qmq.protocols.beanstalk.gateway.jobs import id_of_dot
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


@seeded_bug(Family.GATEWAYS, "I1", "A3", seed=13)
def multiple_acks_take_all() -> Iterator[None]:
    """An ack of several deliveries settles what came after its tag, too."""
    take = Channel.take

    def take_all(channel: Channel, tag: int, multiple: bool) -> dict[int, Delivery]:
        return take(channel, 0 if multiple else tag, multiple)

    with patch.object(Channel, "take", take_all):
        yield


@seeded_bug(Family.GATEWAYS, "I1", seed=27)
def confirms_do_not_wait() -> Iterator[None]:
    """A publish is confirmed when it is read, before it is on any disk."""
    publish = ChannelPublishes.publish

    async def publish_and_confirm(publishes: ChannelPublishes, command: Command) -> None:
        await publish(publishes, command)
        if publishes.state.confirms:
            publishes._owner.put(publishes.state.confirm([publishes.state.published]))

    with patch.object(ChannelPublishes, "publish", publish_and_confirm):
        yield


@seeded_bug(Family.GATEWAYS, "I1", seed=26)
def inserted_before_the_disk() -> Iterator[None]:
    """INSERTED is the reply to a job that is decided, and not yet on any disk."""

    def decided(slot: ReplySlot, message: Message | None) -> None:
        slot.message = message
        slot.confirm()

    with patch.object(ReplySlot, "decided", decided):
        yield


@seeded_bug(Family.GATEWAYS, "A4", seed=13)
def virtual_hosts_share_their_queues() -> Iterator[None]:
    """A publish in any virtual host goes to the queue of that name in `/`."""

    def shared(exchange: str, key: str, vhost: Vhost) -> str:
        return publish_destination(exchange, key, DEFAULT_VHOST)

    with patch("qmq.protocols.amqp.publishes.publish_destination", shared):
        yield


@seeded_bug(Family.GATEWAYS, "B1", seed=13)
def jobs_have_the_ids_of_their_messages() -> Iterator[None]:
    """A job that was released with another priority, or buried, has another id afterwards."""
    with patch("qmq.protocols.beanstalk.reservations.id_of", lambda message: id_of_dot(message.dot)):
        yield
