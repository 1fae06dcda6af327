"""Cases of `cases`: acks, nacks, prefetch and consumers."""

from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import Script, case

# Acks


@case
async def ack_of_an_unknown_tag(s: Script) -> None:
    await s.ack(7)
    await s.settled()


@case
async def ack_of_all_with_nothing_unacked(s: Script) -> None:
    await s.ack(0, True)
    await s.settled()


@case
async def ack_twice(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish()
    await s.get(no_ack=False)
    await s.ack(1)
    await s.ack(1)
    await s.settled()
    await s.declare(passive=True)


@case
async def ack_multiple(s: Script) -> None:
    await s.declare(quiet=True)
    for body in (b"1", b"2", b"3", b"4"):
        await s.publish(body)
    await s.consume()
    await s.deliveries(4)
    await s.ack(3, True)
    await s.settled()
    await s.try_(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    await s._open()
    await s.declare(passive=True)
    await s.get()
    await s.get()


@case
async def nack_requeues_in_order(s: Script) -> None:
    await s.declare(quiet=True)
    for body in (b"1", b"2", b"3"):
        await s.publish(body)
    await s.consume(tag="c")
    await s.deliveries(3)
    await s.nack(3, multiple=True)
    await s.deliveries(3)
    await s.nack(6, multiple=True, requeue=False)
    await s.settled()
    await s.declare(passive=True)


@case
async def recover_delivers_again(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish(b"1")
    await s.publish(b"2")
    await s.consume()
    await s.deliveries(2)
    await s.try_(commands.Basic.Recover(True), commands.Basic.RecoverOk)
    await s.deliveries(2)


@case
async def prefetch_bounds_and_an_ack_makes_room(s: Script) -> None:
    await s.declare(quiet=True)
    for body in (b"1", b"2", b"3"):
        await s.publish(body)
    await s.try_(commands.Basic.Qos(0, 2, False), commands.Basic.QosOk)
    await s.consume()
    await s.deliveries(3)
    await s.ack(1)
    await s.deliveries(1)


@case
async def prefetch_of_the_channel_is_shared(s: Script) -> None:
    await s.declare(quiet=True)
    await s.declare("p", quiet=True)
    for body in (b"1", b"2"):
        await s.publish(body)
        await s.publish(body, key="p")
    await s.try_(commands.Basic.Qos(0, 3, True), commands.Basic.QosOk)
    await s.consume(tag="a")
    await s.consume("p", tag="b")
    await s.deliveries(4)


@case
async def no_ack_settles(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish()
    await s.consume(no_ack=True)
    await s.deliveries(1)
    await s.ack(1)
    await s.settled()
    await s.declare(passive=True)


@case
async def a_cancelled_consumer_may_ack(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish(b"1")
    await s.consume()
    await s.deliveries(1)
    await s.try_(commands.Basic.Cancel("c"), commands.Basic.CancelOk)
    await s.publish(b"2")
    await s.ack(1)
    await s.settled()
    await s.get()
    await s.get()


@case
async def single_active_consumer(s: Script) -> None:
    await s.declare(arguments={"x-single-active-consumer": True}, quiet=True)
    await s.consume(tag="a")
    await s.consume(tag="b")
    for body in (b"1", b"2"):
        await s.publish(body)
    await s.deliveries(2)
    await s.ack(2, True)
    await s.try_(commands.Basic.Cancel("a"), commands.Basic.CancelOk)
    await s.publish(b"3")
    await s.deliveries(1)


@case
async def two_consumers_take_turns(s: Script) -> None:
    await s.declare(quiet=True)
    await s.consume(tag="a")
    await s.consume(tag="b")
    for body in (b"1", b"2", b"3", b"4"):
        await s.publish(body)
    await s.deliveries(4)
