"""A node with a beanstalkd listener on the simulated network, and clients that speak raw beanstalkd to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from qmq.config import Address
from qmq.environment import Pipe
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from tests.node.rig import ANSWER_SECONDS, HOST, Rig

BEANSTALK_PORT = 11300
LISTENER = BeanstalkListenerSettings(address=Address(HOST, BEANSTALK_PORT))
WITH_BODY = (b"RESERVED", b"FOUND", b"OK")


class BeanstalkClient:
    """Raw beanstalkd over one pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.ended = False
        self._unread = b""

    async def send(self, *lines: str | bytes) -> None:
        """Send lines, and bodies, without waiting."""
        data = [line.encode() if isinstance(line, str) else line for line in lines]
        await self.pipe.send_all(b"".join([line + b"\r\n" for line in data]))

    async def reply(self) -> bytes:
        """The next reply, without its CR LF; a body follows its line and one LF."""
        with trio.fail_after(ANSWER_SECONDS):
            line = await self._until(lambda: self._unread.find(b"\r\n") + 2 or 0)
            words = line[:-2].split(b" ")
            if words[0] not in WITH_BODY:
                return line[:-2]
            size = int(words[-1]) + 2
            body = await self._until(lambda: size if len(self._unread) >= size else 1)
            return line[:-2] + b"\n" + body[:-2]

    async def _until(self, end: Any) -> bytes:
        while (at := end()) <= 1:
            data = await self.pipe.receive_some(65536)
            self.ended = not data
            assert data, f"the node closed the connection; unread: {self._unread!r}"
            self._unread += data
        found, self._unread = self._unread[:at], self._unread[at:]
        return found

    async def ask(self, *lines: str | bytes) -> bytes:
        await self.send(*lines)
        return await self.reply()

    async def put(self, body: bytes = b"job", *, priority: int = 1024, delay: int = 0, ttr: int = 60) -> int:
        """Put a job; returns its id."""
        reply = await self.ask(f"put {priority} {delay} {ttr} {len(body)}", body)
        word, _, job = reply.partition(b" ")
        assert word == b"INSERTED", reply
        return int(job)

    async def reserve(self, seconds: int = 5) -> tuple[int, bytes]:
        """Reserve a job: its id and its body."""
        reply = await self.ask(f"reserve-with-timeout {seconds}")
        line, _, body = reply.partition(b"\n")
        words = line.split(b" ")
        assert words[0] == b"RESERVED", reply
        return int(words[1]), body

    async def facts(self, command: str) -> dict[str, str]:
        """The dictionary of a `stats` command."""
        reply = (await self.ask(command)).decode()
        assert reply.startswith("OK "), reply
        lines = reply.split("\n")[2:]
        return dict(line.split(": ", 1) for line in lines if line)

    async def names(self, command: str) -> list[str]:
        """The list of a `list-tubes` command."""
        reply = (await self.ask(command)).decode()
        return [line.removeprefix("- ") for line in reply.split("\n")[2:] if line]

    async def nothing(self, seconds: float = 2.0) -> None:
        """Nothing comes for so long (virtual) seconds."""
        assert not self._unread, self._unread
        with trio.move_on_after(seconds):
            self._unread += await self.pipe.receive_some(65536)
        assert not self._unread, self._unread

    async def until_closed(self) -> bytes:
        """What comes until the node ends the connection."""
        with trio.fail_after(ANSWER_SECONDS):
            while data := await self.pipe.receive_some(65536):
                self._unread += data
        self.pipe.close()
        return self._unread


class BeanstalkRig(Rig):
    """A node that serves beanstalkd clients, too."""

    def __init__(self, listener: BeanstalkListenerSettings = LISTENER, **settings: Any) -> None:
        super().__init__(beanstalk=(listener,), **settings)

    async def client(self, host: str = "10.0.0.1") -> BeanstalkClient:
        return BeanstalkClient(await self.fabric.dial(host, HOST, BEANSTALK_PORT))


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[BeanstalkRig]:
    rig = BeanstalkRig(**settings)
    async with rig.run():
        yield rig
