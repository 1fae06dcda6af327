"""AMQP clients: publishers with confirms or transactions, consumers that acknowledge several at once, and exclusive
queues that live with their connection. They are in two virtual hosts, in which the same names are other queues.

An ack has no answer in AMQP. Consumers with transactions learn by `commit-ok` that theirs are recorded.
"""

import random

import trio
from pamqp import commands

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent, id_of
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import GoneError, connected
from tests.simulation.workloads.gateways.amqp_client import AmqpClient, Given, amqp_connected
from tests.simulation.workloads.names import AMQP_QUEUES, OWNED, VHOST
from tests.simulation.workloads.publish import default_copies

ANSWER_SECONDS = 1.5
"""An answer that takes longer is given up; the outcome is unknown then."""

STAY_SECONDS = 2.0
"""At most, of an exclusive queue: far less than a node may be silent before its consumers count as gone."""

NAME = AMQP_QUEUES["/"].removeprefix("/queue/")
DECLARE = commands.Queue.Declare(0, NAME, durable=True)


async def declare_vhost(stage: Stage, name: str) -> None:
    """Declare the virtual host, for the whole mesh."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                with trio.move_on_after(ANSWER_SECONDS):
                    asked = [("destination", f"/control/definitions/put/vhost/{VHOST}"), ("receipt", "r")]
                    await client.send(encode_frame("SEND", asked, b"{}"))
                    await client.receipt()
                    stage.trace.note(f"{name} has declared {VHOST} at {member.name}")
                    return
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(0.1)


async def publish_amqp(stage: Stage, name: str) -> None:
    """Publish for as long as the phase of faults lasts, to one node after the other."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        vhost = rng.choice(list(AMQP_QUEUES))
        try:
            async with amqp_connected(stage, name, member, vhost=vhost) as client:
                connected_at = trio.current_time()
                transacts = rng.random() < 0.25
                with trio.move_on_after(ANSWER_SECONDS) as scope:
                    await client.call(DECLARE, commands.Queue.DeclareOk)
                    if transacts:
                        await client.call(commands.Tx.Select(), commands.Tx.SelectOk)
                    else:
                        await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
                if scope.cancelled_caught:
                    raise GoneError("no answer")
                published = 0
                while trio.current_time() < until and rng.random() > 0.06:
                    burst: list[Sent] = []
                    for _ in range(rng.choice((1, 1, 2, 5, 12))):
                        number += 1
                        burst.append(stage.ledger.send(name, number, member.name, AMQP_QUEUES[vhost], rng))
                        burst[-1].connected_at = connected_at
                    stage.trace.note(f"{name} publishes {burst[0].id}..{burst[-1].number} at {member.name}")
                    if transacts:
                        await _commit(stage, member, client, burst)
                    else:
                        await _confirm(stage, member, client, burst, published, mandatory=rng.random() < 0.5)
                    published += len(burst)
                    await trio.sleep(rng.uniform(0.02, 0.5))
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.2))


async def _confirm(
    stage: Stage, member: Member, client: AmqpClient, burst: list[Sent], published: int, *, mandatory: bool
) -> None:
    """Publish all, and wait for all confirms. `published` were before, on this channel."""
    waiting = {published + place: message for place, message in enumerate(burst, 1)}
    last = published + len(burst)
    with trio.move_on_after(ANSWER_SECONDS):
        await client.publish(NAME, *[message.body for message in burst], mandatory=mandatory)
        while waiting:
            answer = await client.read()
            if not isinstance(answer, commands.Basic.Ack):
                kind = type(getattr(answer, "method", answer)).__name__
                stage.ledger.wrongs.append(f"A1 confirms: {member.name} answered {burst[0].id} with {kind}")
                raise GoneError("refused")
            said = answer.delivery_tag
            tags = [tag for tag in waiting if tag == said or (answer.multiple and tag < said)]
            if said not in tags:
                stage.ledger.wrongs.append(f"A1 confirms: {member.name} confirmed {said} of {last}")
            for tag in tags:
                _confirmed(stage, member, waiting.pop(tag))
    if waiting:
        raise GoneError(f"{len(waiting)} outcomes unknown")


async def _commit(stage: Stage, member: Member, client: AmqpClient, burst: list[Sent]) -> None:
    """Publish all in one transaction."""
    for message in burst:
        message.transaction = burst[0].number
    with trio.move_on_after(ANSWER_SECONDS):
        await client.publish(NAME, *[message.body for message in burst])
        await client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
        for message in burst:
            _confirmed(stage, member, message)
        return
    raise GoneError(f"{len(burst)} outcomes unknown")


def _confirmed(stage: Stage, member: Member, message: Sent) -> None:
    assert member.node is not None
    stage.ledger.receipt(message, member.node.origin, default_copies(stage))
    stage.trace.note(f"{message.publisher} has the confirm of {message.id}")


async def consume_amqp(stage: Stage, name: str, vhost: str) -> None:
    """Work for ever, at one node after the other. All that comes must have been published in this virtual host."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        try:
            async with amqp_connected(stage, name, member, vhost=vhost) as client:
                transacts = rng.random() < 0.5
                with trio.move_on_after(ANSWER_SECONDS) as scope:
                    await client.call(DECLARE, commands.Queue.DeclareOk)
                    await client.call(commands.Basic.Qos(0, rng.choice((1, 3, 10, 50))), commands.Basic.QosOk)
                    if transacts:
                        await client.call(commands.Tx.Select(), commands.Tx.SelectOk)
                    await client.call(commands.Basic.Consume(0, NAME, name), commands.Basic.ConsumeOk)
                if scope.cancelled_caught:
                    raise GoneError("no answer")
                stage.trace.note(f"{name} consumes at {member.name}")
                with trio.move_on_after(rng.uniform(0.3, 3) * (4 if stage.settling else 1)):
                    await _Consumer(stage, name, member, client, rng, transacts, AMQP_QUEUES[vhost]).work()
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.3))


class _Consumer:
    """One stay at one node."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        member: Member,
        client: AmqpClient,
        rng: random.Random,
        transacts: bool,
        queue: str,
    ) -> None:
        self._stage = stage
        self._name = name
        self._member = member
        self._client = client
        self._rng = rng
        self._transacts = transacts
        self._queue = queue
        self._since = trio.current_time()
        self._held: dict[int, str] = {}
        """Delivery tag → message that it has not acknowledged, in order."""

    async def work(self) -> None:
        """Take what comes. Acknowledge some of it in between, and everything when nothing else comes."""
        while True:
            with trio.move_on_after(0.05) as scope:
                self._take(await self._client.read())
            if self._held and (scope.cancelled_caught or self._rng.random() < 0.3):
                await self._settle(everything=scope.cancelled_caught)

    def _take(self, given: object) -> None:
        ledger = self._stage.ledger
        if not isinstance(given, Given):
            ledger.wrongs.append(f"A2 consumer: {self._name} got {given} for nothing")
            raise GoneError("confused")
        sent = ledger.sent.get(id_of(given.body))
        if sent is not None and sent.destination != self._queue:
            ledger.wrongs.append(f"A4 virtual hosts: {self._name} got {sent.id} of {sent.destination} in {self._queue}")
        message_id = ledger.match(self._name, self._queue, given.body)
        if message_id is None:
            return
        self._stage.trace.note(f"{self._name} is given {message_id}")
        ledger.give(message_id, self._member.name, self._since)
        if message_id in ledger.read and not given.method.redelivered:
            ledger.unmarked.append(f"{message_id} of {self._queue} at {trio.current_time():.3f}")
        ledger.read.add(message_id)
        self._held[given.method.delivery_tag] = message_id

    async def _settle(self, *, everything: bool) -> None:
        """Acknowledge one, or all up to one, or requeue one."""
        rng, ledger = self._rng, self._stage.ledger
        tag = max(self._held) if everything else rng.choice(list(self._held))
        multiple = everything or rng.random() < 0.6
        tags = [one for one in self._held if one == tag or (multiple and one < tag)]
        done = [self._held.pop(one) for one in tags]
        if rng.random() < 0.05 and not self._stage.settling:
            await self._client.send(commands.Basic.Nack(tag, multiple, True))
            if self._transacts:
                await self._client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            return
        ledger.consumed.update(done)
        await self._client.send(commands.Basic.Ack(tag, multiple))
        if self._transacts:
            await self._client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            for message_id in done:
                ledger.receipt_of_ack(message_id, self._member.name)
            self._stage.trace.note(f"{self._name} has committed its acks of {done}")


async def own_queue(stage: Stage, name: str) -> None:
    """Have an exclusive queue for a while, use it, and leave: in order, or with an end of the connection."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    number = 0
    while not stage.settling:
        member = rng.choice(stage.in_reach)
        number += 1
        try:
            async with amqp_connected(stage, name, member) as client:
                with trio.move_on_after(ANSWER_SECONDS + STAY_SECONDS):
                    await _own(stage, name, number, member, client, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.1, 1.0))


async def _own(stage: Stage, name: str, number: int, member: Member, client: AmqpClient, rng: random.Random) -> None:
    # A name that the node makes up, or one of its own.
    wanted = "" if rng.random() < 0.4 else f"{OWNED.removeprefix('/queue/')}{name}-{number}"
    exclusive = commands.Queue.Declare(0, wanted, exclusive=True, durable=rng.random() < 0.5)
    queue = (await client.call(exclusive, commands.Queue.DeclareOk)).queue
    stage.trace.note(f"{name} owns {queue} at {member.name}")
    message = stage.ledger.send(name, number, member.name, f"/queue/{queue}", rng)
    await client.publish(queue, message.body)
    if rng.random() < 0.5:
        await client.call(commands.Basic.Consume(0, queue, "own"), commands.Basic.ConsumeOk)
        given = await client.next(Given)
        stage.ledger.match(name, message.destination, given.body)
        if rng.random() < 0.5:
            await client.send(commands.Basic.Ack(given.method.delivery_tag))
    await trio.sleep(rng.uniform(0, STAY_SECONDS))
    # A close of the channel, if the queue does not exist any more.
    await client.call(commands.Queue.Declare(0, queue, passive=True), commands.Queue.DeclareOk)
    if rng.random() < 0.5:
        await client.leave()
