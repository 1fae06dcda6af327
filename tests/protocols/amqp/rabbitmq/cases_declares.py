"""Cases of `cases`: declaring again, bad arguments, and methods about what is not there or is used."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import trio
from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import CASES, DLX, Script, case

# Declaring a queue again

AGAIN: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "same": ({}, {}),
    "durable": ({}, {"durable": False}),
    "auto-delete": ({}, {"auto_delete": True}),
    "exclusive": ({}, {"exclusive": True}),
    "ttl-same": ({"arguments": {"x-message-ttl": 5000}}, {"arguments": {"x-message-ttl": 5000}}),
    "ttl-other": ({"arguments": {"x-message-ttl": 5000}}, {"arguments": {"x-message-ttl": 6000}}),
    "ttl-none": ({"arguments": {"x-message-ttl": 5000}}, {}),
    "ttl-new": ({}, {"arguments": {"x-message-ttl": 5000}}),
    "expires-same": ({"arguments": {"x-expires": 60000}}, {"arguments": {"x-expires": 60000}}),
    "expires-other": ({"arguments": {"x-expires": 60000}}, {"arguments": {"x-expires": 90000}}),
    "length-same": ({"arguments": {"x-max-length": 5}}, {"arguments": {"x-max-length": 5}}),
    "length-other": ({"arguments": {"x-max-length": 5}}, {"arguments": {"x-max-length": 6}}),
    "bytes-other": ({"arguments": {"x-max-length-bytes": 50}}, {"arguments": {"x-max-length-bytes": 60}}),
    "overflow-default": (
        {"arguments": {"x-max-length": 5, "x-overflow": "drop-head"}},
        {"arguments": {"x-max-length": 5}},
    ),
    "overflow-other": (
        {"arguments": {"x-max-length": 5}},
        {"arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}},
    ),
    "priority-same": ({"arguments": {"x-max-priority": 5}}, {"arguments": {"x-max-priority": 5}}),
    "priority-other": ({"arguments": {"x-max-priority": 5}}, {"arguments": {"x-max-priority": 9}}),
    "priority-none": ({"arguments": {"x-max-priority": 5}}, {}),
    "dlx-same": ({"arguments": DLX}, {"arguments": DLX}),
    "dlx-other": ({"arguments": DLX}, {"arguments": {"x-dead-letter-exchange": "other"}}),
    "dlx-none": ({"arguments": DLX}, {}),
    "dlk-same": (
        {"arguments": {**DLX, "x-dead-letter-routing-key": "a"}},
        {"arguments": {**DLX, "x-dead-letter-routing-key": "a"}},
    ),
    "dlk-other": (
        {"arguments": {**DLX, "x-dead-letter-routing-key": "a"}},
        {"arguments": {**DLX, "x-dead-letter-routing-key": "b"}},
    ),
    "sac-same": ({"arguments": {"x-single-active-consumer": True}}, {"arguments": {"x-single-active-consumer": True}}),
    "sac-other": ({"arguments": {"x-single-active-consumer": True}}, {}),
    "unknown-argument": ({}, {"arguments": {"my-own": 1}}),
    "queue-mode": ({"arguments": {"x-queue-mode": "lazy"}}, {"arguments": {"x-queue-mode": "lazy"}}),
    "type-classic": ({}, {"arguments": {"x-queue-type": "classic"}}),
}


async def _again(first: dict[str, Any], second: dict[str, Any], s: Script) -> None:
    await s.declare(**first)
    await s.declare(**second)
    await s.declare(passive=True)


CASES.update({f"declared-again-{name}": partial(_again, *both) for name, both in AGAIN.items()})

BAD_ARGUMENTS: Final[Mapping[str, dict[str, Any]]] = {
    "ttl-text": {"x-message-ttl": "5000"},
    "ttl-negative": {"x-message-ttl": -1},
    "ttl-zero": {"x-message-ttl": 0},
    "expires-zero": {"x-expires": 0},
    "expires-negative": {"x-expires": -1},
    "length-negative": {"x-max-length": -1},
    "length-text": {"x-max-length": "5"},
    "overflow-unknown": {"x-overflow": "explode"},
    "priority-256": {"x-max-priority": 256},
    "priority-negative": {"x-max-priority": -1},
    "priority-zero": {"x-max-priority": 0},
    "dlx-number": {"x-dead-letter-routing-key": "a", "x-dead-letter-exchange": ""},
    "dlk-alone": {"x-dead-letter-routing-key": "a"},
    "sac-number": {"x-single-active-consumer": 1},
    "type-unknown": {"x-queue-type": "wooden"},
}


async def _bad(arguments: dict[str, Any], s: Script) -> None:
    await s.declare(arguments=arguments)


CASES.update({f"declared-with-{name}": partial(_bad, one) for name, one in BAD_ARGUMENTS.items()})

# Methods about what is not there, or is used

REFUSED: Final[Mapping[str, tuple[Callable[[Script], Any], Any]]] = {
    "passive-missing": (lambda s: commands.Queue.Declare(0, s.name("none"), True), commands.Queue.DeclareOk),
    "reserved-queue": (lambda s: commands.Queue.Declare(0, "amq.mine", durable=True), commands.Queue.DeclareOk),
    "no-last-queue": (lambda s: commands.Queue.Declare(0, "", True), commands.Queue.DeclareOk),
    "delete-missing": (lambda s: commands.Queue.Delete(0, s.name("none")), commands.Queue.DeleteOk),
    "purge-missing": (lambda s: commands.Queue.Purge(0, s.name("none")), commands.Queue.PurgeOk),
    "get-missing": (lambda s: commands.Basic.Get(0, s.name("none")), commands.Basic.GetOk),
    "consume-missing": (lambda s: commands.Basic.Consume(0, s.name("none")), commands.Basic.ConsumeOk),
    "cancel-missing": (lambda s: commands.Basic.Cancel("none"), commands.Basic.CancelOk),
    "bind-to-missing": (lambda s: commands.Queue.Bind(0, s.name("q"), s.name("none")), commands.Queue.BindOk),
    "bind-missing": (lambda s: commands.Queue.Bind(0, s.name("none"), "amq.topic"), commands.Queue.BindOk),
    "bind-default": (lambda s: commands.Queue.Bind(0, s.name("q"), ""), commands.Queue.BindOk),
    "unbind-missing": (lambda s: commands.Queue.Unbind(0, s.name("q"), "amq.topic", "x"), commands.Queue.UnbindOk),
    "unbind-default": (lambda s: commands.Queue.Unbind(0, s.name("q"), "", "x"), commands.Queue.UnbindOk),
    "exchange-passive": (
        lambda s: commands.Exchange.Declare(0, s.name("none"), passive=True),
        commands.Exchange.DeclareOk,
    ),
    "exchange-type": (lambda s: commands.Exchange.Declare(0, s.name("e"), "wooden"), commands.Exchange.DeclareOk),
    "exchange-reserved": (lambda s: commands.Exchange.Declare(0, "amq.mine", "topic"), commands.Exchange.DeclareOk),
    "exchange-default": (lambda s: commands.Exchange.Declare(0, "", "direct"), commands.Exchange.DeclareOk),
    "exchange-predefined": (
        lambda s: commands.Exchange.Declare(0, "amq.topic", "topic", durable=True),
        commands.Exchange.DeclareOk,
    ),
    "exchange-delete-missing": (lambda s: commands.Exchange.Delete(0, s.name("none")), commands.Exchange.DeleteOk),
    "exchange-delete-predefined": (lambda s: commands.Exchange.Delete(0, "amq.topic"), commands.Exchange.DeleteOk),
    "exchange-delete-default": (lambda s: commands.Exchange.Delete(0, ""), commands.Exchange.DeleteOk),
    "recover-without-requeue": (lambda s: commands.Basic.Recover(False), commands.Basic.RecoverOk),
    "recover": (lambda s: commands.Basic.Recover(True), commands.Basic.RecoverOk),
    "prefetch-size": (lambda s: commands.Basic.Qos(5, 0, False), commands.Basic.QosOk),
    "tx-beside-confirms": (lambda s: commands.Tx.Select(), commands.Tx.SelectOk),
    "tx-commit-without-select": (lambda s: commands.Tx.Commit(), commands.Tx.CommitOk),
    "flow-stop": (lambda s: commands.Channel.Flow(False), commands.Channel.FlowOk),
    "flow-go": (lambda s: commands.Channel.Flow(True), commands.Channel.FlowOk),
}


async def _refused(method: Callable[[Script], Any], answer: Any, s: Script) -> None:
    await s.declare(quiet=True)
    await s.try_(method(s), answer)


CASES.update({f"method-{name}": partial(_refused, *both) for name, both in REFUSED.items()})


@case
async def exchange_again_as_it_is(s: Script) -> None:
    await s.exchange()
    await s.exchange()


@case
async def exchange_again_with_another_type(s: Script) -> None:
    await s.exchange(type="topic")
    await s.exchange(type="fanout")


@case
async def exchange_in_use_is_not_deleted_if_unused(s: Script) -> None:
    await s.declare(quiet=True)
    await s.exchange()
    await s.bind()
    await s.try_(commands.Exchange.Delete(0, s.name("e"), True), commands.Exchange.DeleteOk)
    await s.try_(commands.Exchange.Delete(0, s.name("e"), False), commands.Exchange.DeleteOk)
    await s.try_(commands.Exchange.Declare(0, s.name("e"), passive=True), commands.Exchange.DeclareOk)


@case
async def queue_with_a_consumer_is_not_deleted_if_unused(s: Script) -> None:
    await s.declare(quiet=True)
    await s.consume()
    await s.try_(commands.Queue.Delete(0, s.name("q"), True), commands.Queue.DeleteOk)
    await s.declare(passive=True)


@case
async def queue_with_messages_is_not_deleted_if_empty(s: Script) -> None:
    await s.declare(quiet=True)
    await s.publish()
    await s.try_(commands.Queue.Delete(0, s.name("q"), False, True), commands.Queue.DeleteOk)
    await s.declare(passive=True)


@case
async def counts_of_purge_and_delete(s: Script) -> None:
    await s.declare(quiet=True)
    for _ in range(3):
        await s.publish()
    await s.declare(passive=True)
    found = await s.call(commands.Queue.Purge(0, s.name("q")), commands.Queue.PurgeOk)
    s.say(found.message_count)
    await s.publish()
    found = await s.call(commands.Queue.Delete(0, s.name("q")), commands.Queue.DeleteOk)
    s.say(found.message_count)
    await s.declare(passive=True)


@case
async def counts_leave_out_what_is_unacked(s: Script) -> None:
    await s.declare(quiet=True)
    for _ in range(3):
        await s.publish()
    await s.get(no_ack=False)
    await s.declare(passive=True)
    await s.consume()
    await s.deliveries(2)
    await s.declare(passive=True)


@case
async def a_deleted_queue_cancels_nothing_of_a_client_that_does_not_understand(s: Script) -> None:
    await s.declare(quiet=True)
    await s.consume()
    found = await s.call(commands.Queue.Delete(0, s.name("q")), commands.Queue.DeleteOk)
    s.say(type(found).__name__)
    await s.quiet()


@case
async def two_consumers_with_one_tag(s: Script) -> None:
    await s.declare(quiet=True)
    await s.consume()
    await s.consume()


@case
async def exclusive_consumer_second(s: Script) -> None:
    await s.declare(quiet=True)
    await s.consume(tag="a", exclusive=True)
    await s.consume(tag="b")


@case
async def an_auto_delete_queue_goes_when_its_consumer_leaves(s: Script) -> None:
    await s.declare(auto_delete=True, quiet=True)
    await s.consume()
    await s.try_(commands.Basic.Cancel("c"), commands.Basic.CancelOk)
    await trio.sleep(0.5)
    await s.declare(passive=True)


@case
async def an_expired_queue_goes(s: Script) -> None:
    await s.declare(arguments={"x-expires": 300}, quiet=True)
    await trio.sleep(1.5)
    await s.declare(passive=True)
