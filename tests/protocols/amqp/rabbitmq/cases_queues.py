"""Cases of `cases`: order, bounds, times, dead letters and transactions."""

from typing import Any

import trio
from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import DLX, Script, case

# Order, bounds and time


@case
async def priorities(s: Script) -> None:
    await s.declare(arguments={"x-max-priority": 9}, quiet=True)
    for number, priority in enumerate((0, 5, None, 9, 1, 5)):
        await s.publish(b"%d" % number, priority=priority)
    for _ in range(6):
        await s.get()


@case
async def priorities_above_the_most(s: Script) -> None:
    await s.declare(arguments={"x-max-priority": 5}, quiet=True)
    for number, priority in enumerate((5, 9, 200, 1)):
        await s.publish(b"%d" % number, priority=priority)
    for _ in range(4):
        await s.get()


@case
async def priorities_without_the_argument(s: Script) -> None:
    await s.declare(quiet=True)
    for number, priority in enumerate((1, 9)):
        await s.publish(b"%d" % number, priority=priority)
    await s.get()


@case
async def expiration_of_a_message(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish(b"short", expiration="200")
    await s.publish(b"long")
    await trio.sleep(1.0)
    await s.get()
    await s.get()


@case
async def expiration_zero(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish(b"now", expiration="0")
    await trio.sleep(0.5)
    await s.get()


@case
async def expiration_that_is_no_number(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish(expiration="soon")


@case
async def expiration_behind_a_message_without(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish(b"long")
    await s.publish(b"short", expiration="200")
    await trio.sleep(1.0)
    await s.get()
    await s.get()


@case
async def ttl_of_the_queue(s: Script) -> None:
    await s.declare(arguments={"x-message-ttl": 200}, quiet=True)
    await s.publish()
    await trio.sleep(1.0)
    await s.get()
    await s.declare(passive=True, arguments={"x-message-ttl": 200})


@case
async def the_smaller_of_two_ttls_counts(s: Script) -> None:
    await s.declare(arguments={"x-message-ttl": 60000}, quiet=True)
    await s.publish(b"short", expiration="200")
    await s.publish(b"long", expiration="90000")
    await trio.sleep(1.0)
    await s.get()


@case
async def length_drops_the_head(s: Script) -> None:
    await s.declare(arguments={"x-max-length": 2}, quiet=True)
    for body in (b"1", b"2", b"3"):
        await s.publish(body)
    await s.get()
    await s.get()
    await s.get()


@case
async def length_rejects(s: Script) -> None:
    await s.declare(arguments={"x-max-length": 2, "x-overflow": "reject-publish"}, quiet=True)
    for body in (b"1", b"2", b"3", b"4"):
        await s.publish(body)
    await s.get()


@case
async def bytes_drop_the_head(s: Script) -> None:
    await s.declare(arguments={"x-max-length-bytes": 10}, quiet=True)
    for body in (b"11111", b"22222", b"33333"):
        await s.publish(body)
    await s.get()


# Dead letters


async def _dead(s: Script, type: str = "topic", *, key: str = "#", **arguments: Any) -> None:
    await s.exchange("dlx", type)
    await s.declare("dead", quiet=True)
    await s.bind("dead", "dlx", key)
    await s.declare(arguments={**DLX, **arguments}, quiet=True)


@case
async def dead_by_reject(s: Script) -> None:
    await _dead(s)
    await s.publish(headers={"mine": 1})
    await s.get(no_ack=False)
    await s.nack(1, requeue=False)
    await s.settled()
    await s.get("dead")


@case
async def dead_by_reject_of_a_message_of_an_exchange(s: Script) -> None:
    await _dead(s)
    await s.exchange()
    await s.bind(key="a.*")
    await s.publish(exchange="e", key="a.b")
    await s.get(no_ack=False)
    await s.nack(1, requeue=False)
    await s.settled()
    await s.get("dead")


@case
async def dead_with_a_key(s: Script) -> None:
    await _dead(s, "direct", key="gone", **{"x-dead-letter-routing-key": "gone"})
    await s.publish()
    await s.get(no_ack=False)
    await s.nack(1, requeue=False)
    await s.settled()
    await s.get("dead")


@case
async def dead_through_the_default_exchange(s: Script) -> None:
    await s.declare("dead", quiet=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await s.declare(arguments=arguments, quiet=True)
    await s.publish()
    await s.get(no_ack=False)
    await s.nack(1, requeue=False)
    await s.settled()
    await s.get("dead")


@case
async def dead_by_ttl(s: Script) -> None:
    await _dead(s, **{"x-message-ttl": 200})
    await s.publish()
    await trio.sleep(1.0)
    await s.get("dead")


@case
async def dead_by_expiration(s: Script) -> None:
    await _dead(s)
    await s.publish(expiration="200")
    await trio.sleep(1.0)
    await s.get("dead")


@case
async def dead_by_length(s: Script) -> None:
    await _dead(s, **{"x-max-length": 1})
    await s.publish(b"1")
    await s.publish(b"2")
    await trio.sleep(0.3)
    await s.get("dead")
    await s.get()


@case
async def dead_by_a_rejected_publish(s: Script) -> None:
    await _dead(s, **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    await s.publish(b"1")
    await s.publish(b"2")
    await trio.sleep(0.3)
    await s.get("dead")
    await s.get()


@case
async def dead_to_an_exchange_that_is_missing(s: Script) -> None:
    await s.declare(arguments=DLX, quiet=True)
    await s.publish()
    await s.get(no_ack=False)
    await s.nack(1, requeue=False)
    await s.settled()
    await s.declare(passive=True)


@case
async def dead_to_two_queues(s: Script) -> None:
    await _dead(s, "fanout")
    await s.declare("more", quiet=True)
    await s.bind("more", "dlx")
    await s.publish()
    await s.get(no_ack=False)
    await s.nack(1, requeue=False)
    await s.settled()
    await s.where("dead", "more")


@case
async def round_by_a_queue_with_a_ttl(s: Script) -> None:
    await s.exchange("dlx", "topic")
    await s.exchange("back", "topic")
    await s.declare("wait", arguments={"x-message-ttl": 200, "x-dead-letter-exchange": "back"}, quiet=True)
    await s.bind("wait", "dlx", "#")
    await s.declare(arguments=DLX, quiet=True)
    await s.bind("q", "back", "#")
    await s.publish()
    for tag in (1, 2, 3):
        await s.get(no_ack=False)
        await s.nack(tag, requeue=False)
        await s.settled()
        await trio.sleep(1.0)
    await s.get()


@case
async def round_with_keys(s: Script) -> None:
    await s.exchange("dlx", "direct")
    await s.exchange("back", "direct")
    arguments = {"x-message-ttl": 200, "x-dead-letter-exchange": "back", "x-dead-letter-routing-key": "again"}
    await s.declare("wait", arguments=arguments, quiet=True)
    await s.bind("wait", "dlx", "later")
    await s.declare(arguments={**DLX, "x-dead-letter-routing-key": "later"}, quiet=True)
    await s.bind("q", "back", "again")
    await s.publish()
    for tag in (1, 2):
        await s.get(no_ack=False)
        await s.nack(tag, requeue=False)
        await s.settled()
        await trio.sleep(1.0)
    await s.get()


# Transactions


@case
async def tx_commit_and_rollback(s: Script) -> None:
    s.confirms = False
    await s.begin()
    await s.declare(quiet=True)
    await s.try_(commands.Tx.Select(), commands.Tx.SelectOk)
    await s.client.publish(s.name("q"), b"gone")
    await s.try_(commands.Tx.Rollback(), commands.Tx.RollbackOk)
    await s.client.publish(s.name("q"), b"kept")
    await s.declare(passive=True)
    await s.try_(commands.Tx.Commit(), commands.Tx.CommitOk)
    await s.get()
    await s.get()


@case
async def tx_confirms_beside(s: Script) -> None:
    s.confirms = False
    await s.begin()
    await s.try_(commands.Tx.Select(), commands.Tx.SelectOk)
    await s.try_(commands.Confirm.Select(), commands.Confirm.SelectOk)
