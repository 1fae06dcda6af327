"""Cases of `cases`: consumers with a priority."""

from typing import Any

from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import Script, case


async def consumers(s: Script, prefetch: int, **priorities: int | None) -> None:
    """A consumer for each, that has so many messages unacknowledged at most."""
    await s.declare(quiet=True)
    await s.try_(commands.Basic.Qos(0, prefetch, False), commands.Basic.QosOk)
    for tag, priority in priorities.items():
        await s.consume(tag=tag, arguments=None if priority is None else {"x-priority": priority})


async def send(s: Script, count: int) -> list[Any]:
    """Publish so many messages, each when the one before is confirmed, and say who gets them."""
    for number in range(count):
        await s.publish(b"%d" % number)
    return await s.deliveries(count)


@case
async def a_higher_priority_is_served_first(s: Script) -> None:
    await consumers(s, 2, low=1, high=10)
    await send(s, 4)


@case
async def consumers_without_priority_have_0(s: Script) -> None:
    await consumers(s, 1, below=-1, none=None, above=1)
    await send(s, 4)


@case
async def equal_priorities_take_turns(s: Script) -> None:
    await consumers(s, 0, a=5, b=5, low=4)
    await send(s, 4)


@case
async def what_is_acknowledged_makes_room_for_the_higher_one(s: Script) -> None:
    await consumers(s, 1, low=1, high=2)
    found = await send(s, 3)
    by_tag = {one.method.consumer_tag: one.method.delivery_tag for one in found}
    await s.ack(by_tag["high"])
    await s.deliveries(1)
    await s.publish(b"last")
    await s.ack(by_tag["low"])
    await s.deliveries(1)


@case
async def a_lower_priority_is_served_when_the_higher_one_leaves(s: Script) -> None:
    await consumers(s, 0, low=1, high=2)
    await send(s, 2)
    await s.try_(commands.Basic.Cancel("high"), commands.Basic.CancelOk)
    await send(s, 2)


@case
async def a_higher_priority_that_comes_later_is_first(s: Script) -> None:
    await consumers(s, 1, low=1)
    await send(s, 3)
    await s.consume(tag="high", arguments={"x-priority": 2})
    found = await s.deliveries(1)
    await s.ack(found[0].method.delivery_tag)
    await s.deliveries(1)


@case
async def a_requeued_message_goes_to_the_higher_one(s: Script) -> None:
    await consumers(s, 1, low=1, high=2)
    found = await send(s, 2)
    by_tag = {one.method.consumer_tag: one.method.delivery_tag for one in found}
    await s.ack(by_tag["high"])
    await s.nack(by_tag["low"])
    await s.deliveries(1)


@case
async def priorities_of_consumers_of_any_size(s: Script) -> None:
    await consumers(s, 1, least=-(1 << 40), most=1 << 40, some=255)
    await send(s, 3)


@case
async def a_priority_that_is_no_number(s: Script) -> None:
    await s.declare(quiet=True)
    wrong: Any
    for wrong in ("5", True, 1.5, [1], {"a": 1}, None):
        await s.consume(tag="c", arguments={"x-priority": wrong})
        await s.try_(commands.Basic.Cancel("c"), commands.Basic.CancelOk)
