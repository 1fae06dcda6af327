"""Clients of beanstalkd: producers that wait for INSERTED, and workers that delete, release, bury and touch jobs, or
leave with them.

A job that was released with another priority or delay, or buried, is in a new message of its queue.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from qmq.environment import Pipe
from tests.simulation.cluster import BEANSTALK_PORT, Member
from tests.simulation.ledger import Sent
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import GoneError, dial
from tests.simulation.workloads.names import TUBE
from tests.simulation.workloads.publish import default_copies

ANSWER_SECONDS = 1.5
"""An answer that takes longer is given up; the outcome is unknown then."""

SERVER_SECONDS = 1
"""That a reservation waits for a job."""

NAME = TUBE.removeprefix("/queue/").encode()
TTR_SECONDS = (3, 60)
"""More than a worker takes where nothing goes wrong."""


class BeanstalkClient:
    """One connection."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._unread = bytearray()

    async def send(self, *lines: bytes) -> None:
        """Lines, and bodies."""
        try:
            await self._pipe.send_all(b"".join([line + b"\r\n" for line in lines]))
        except trio.BrokenResourceError:
            raise GoneError("broken") from None

    async def reply(self) -> tuple[list[bytes], bytes]:
        """The words of the next reply, and its body."""
        while (end := self._unread.find(b"\r\n")) < 0:
            await self._receive()
        words = bytes(self._unread[:end]).split(b" ")
        del self._unread[: end + 2]
        if words[0] != b"RESERVED":
            return words, b""
        size = int(words[2])
        while len(self._unread) < size + 2:
            await self._receive()
        body = bytes(self._unread[:size])
        del self._unread[: size + 2]
        return words, body

    async def ask(self, line: bytes) -> bytes:
        """The first word of the reply; an answer that takes too long ends the connection."""
        with trio.move_on_after(ANSWER_SECONDS):
            await self.send(line)
            return (await self.reply())[0][0]
        raise GoneError("no answer")

    async def _receive(self) -> None:
        try:
            data = await self._pipe.receive_some(65536)
        except trio.BrokenResourceError:
            raise GoneError("broken") from None
        if not data:
            raise GoneError("ended")
        self._unread += data

    def close(self) -> None:
        self._pipe.close()


@asynccontextmanager
async def beanstalk_connected(stage: Stage, name: str, member: Member) -> AsyncIterator[BeanstalkClient]:
    """A connection of the client `name` to a node. Raises GoneError."""
    client = BeanstalkClient(await dial(stage, name, member, BEANSTALK_PORT))
    try:
        yield client
    finally:
        client.close()


async def put_jobs(stage: Stage, name: str) -> None:
    """Put jobs for as long as the phase of faults lasts, at one node after the other."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        try:
            async with beanstalk_connected(stage, name, member) as client:
                connected_at = trio.current_time()
                if await client.ask(b"use " + NAME) != b"USING":
                    raise GoneError("refused")
                while trio.current_time() < until and rng.random() > 0.06:
                    burst: list[Sent] = []
                    for _ in range(rng.choice((1, 1, 2, 6))):
                        number += 1
                        burst.append(stage.ledger.send(name, number, member.name, TUBE, rng))
                        burst[-1].connected_at = connected_at
                    stage.trace.note(f"{name} puts {burst[0].id}..{burst[-1].number} at {member.name}")
                    await _put(stage, member, client, burst, rng)
                    await trio.sleep(rng.uniform(0.02, 0.5))
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.2))


async def _put(stage: Stage, member: Member, client: BeanstalkClient, burst: list[Sent], rng: random.Random) -> None:
    """Put all in one write, and wait for all replies."""
    lines: list[bytes] = []
    for message in burst:
        priority, delay = rng.choice((0, 1024, 1024, 1 << 31)), rng.choice((0, 0, 0, 1))
        lines.append(b"put %d %d %d %d" % (priority, delay, rng.choice(TTR_SECONDS), len(message.body)))
        lines.append(message.body)
    with trio.move_on_after(ANSWER_SECONDS):
        await client.send(*lines)
        for message in burst:
            words, _ = await client.reply()
            if words[0] != b"INSERTED":
                stage.ledger.wrongs.append(f"B2 put: {member.name} answered {message.id} with {words}")
                raise GoneError("refused")
            job = int(words[1])
            stage.ledger.name_job(message.id, job, member.name)
            assert member.node is not None
            stage.ledger.receipt(message, member.node.origin, default_copies(stage))
            stage.trace.note(f"{message.publisher} has job {job} for {message.id}")
        return
    raise GoneError("outcomes unknown")


async def work_jobs(stage: Stage, name: str) -> None:
    """Work for ever, at one node after the other."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        try:
            async with beanstalk_connected(stage, name, member) as client:
                if await client.ask(b"watch " + NAME) != b"WATCHING" or await client.ask(b"use " + NAME) != b"USING":
                    raise GoneError("refused")
                since = trio.current_time()
                with trio.move_on_after(rng.uniform(0.3, 3) * (4 if stage.settling else 1)):
                    while True:
                        if stage.settling or rng.random() < 0.2:
                            await client.ask(b"kick 100")
                        await _work(stage, name, member, client, rng, since)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.3))


async def _work(
    stage: Stage, name: str, member: Member, client: BeanstalkClient, rng: random.Random, since: float
) -> None:
    """Reserve one job, and do something with it."""
    ledger = stage.ledger
    await client.send(b"reserve-with-timeout %d" % SERVER_SECONDS)
    words, body = await client.reply()
    if words[0] in (b"TIMED_OUT", b"DEADLINE_SOON"):
        return
    message_id = ledger.match(name, TUBE, body) if words[0] == b"RESERVED" else None
    if message_id is None:
        raise GoneError(f"{words[0]!r}")
    job = int(words[1])
    ledger.name_job(message_id, job, member.name)
    stage.trace.note(f"{name} reserves {message_id} as {job}")
    if message_id not in ledger.rewritten:
        ledger.give(message_id, member.name, since)
    chance = 0.0 if stage.settling else rng.random()
    if 0.75 <= chance < 0.94:
        ledger.rewritten.add(message_id)
    if chance < 0.75:
        if rng.random() < 0.2:
            await trio.sleep(rng.uniform(0, 0.5))
            if rng.random() < 0.5:
                await client.ask(b"touch %d" % job)
        ledger.consumed.add(message_id)
        answer = await client.ask(b"delete %d" % job)
        if answer == b"DELETED" and message_id not in ledger.rewritten:
            ledger.receipt_of_ack(message_id, member.name)
        if answer != b"DELETED" and stage.plan.quiet:
            ledger.wrongs.append(f"B3 reservation: {name} could not delete {message_id} at {member.name}: {answer!r}")
        stage.trace.note(f"{name} deletes {message_id}: {answer!r}")
    elif chance < 0.82:
        await client.ask(b"release %d 1024 0" % job)
    elif chance < 0.88:
        await client.ask(b"release %d %d %d" % (job, rng.choice((0, 5000)), rng.choice((0, 1))))
    elif chance < 0.94:
        await client.ask(b"bury %d 10" % job)
    else:
        raise GoneError("it leaves with a job")
