"""One link in motion: bytes, beats and deadlines of a connection, and the side that dials.

`LinkStream` runs a connection for either side: one task reads, one writes, one watches for silence and for the time of
a beat. `Link` dials one peer for as long as the node lives. No failure of a connection ends the node: it is logged, and
the next one is dialled after a random part of a growing wait.

Surprising: silence counts only while this side reads. A node with a slow disk stops reading for a while and must not
take that for a dead peer.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.environment import Environment, Pipe, Tls
from qmq.errors import MeshError, StorageError
from qmq.replication.links.host import PeerAddress, PeerEntry, Settings
from qmq.replication.links.outbox import LinkOutbox, encode_send
from qmq.replication.links.pulling_side import PullingSide
from qmq.replication.links.registry import QUIET, LinkRegistry
from qmq.replication.protocol.conversation import Conversation, LinkState
from qmq.replication.protocol.frames import Gap, MeshFrame, Paths, Serves
from qmq.replication.protocol.handshake import NONCE_CHARACTERS, Dialling
from qmq.storage.log.fsync_times import Durations
from qmq.wire.stomp.writer import HEARTBEAT

READ_BYTES: Final = 64 << 10
LOGIN_SECONDS: Final = 5.0
"""From the first byte to an open link; dialling, TLS included, has as long again."""

FAREWELL_SECONDS: Final = 1.0
"""For the frame that is being written, and again for the ERROR with the reason for the end of a link."""

log = logging.getLogger(__name__)

LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
"""Exceptions of a connection that ends without an error of either side."""


class LinkStream:
    """One connection, from accept or dial to its end. `take_frames` obeys what came; it may wait for the disk."""

    def __init__(
        self,
        pipe: Pipe,
        conversation: Conversation,
        encode: Callable[[MeshFrame], bytes],
        *,
        take_frames: Callable[[list[MeshFrame]], Awaitable[None]],
        before_write: Callable[[], None] = lambda: None,
        settings: Settings,
    ) -> None:
        self.pipe = pipe
        self.conversation = conversation
        self.outbox = LinkOutbox(encode, self._wake)
        self.last_read_at = trio.current_time()
        self.mid_frame = False
        """A write is in progress or was abandoned: the other side has half a frame."""
        self._take_frames = take_frames
        self._before_write = before_write
        self._settings = settings
        self._waiting = trio.Event()
        self._writing = trio.CancelScope(shield=True)
        self._wrote_at = self.last_read_at
        self._ended = False
        self._reading = False

    async def run(self) -> None:
        """Return when the other side has ended the connection, or raise why this one did."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._hasten_login)
            try:
                await self._read()
            finally:
                self._ended = True
                self._writing.deadline = trio.current_time() + FAREWELL_SECONDS
                self._wake()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        conversation = self.conversation
        while True:
            self._reading = True
            data = await self.pipe.receive_some(READ_BYTES)
            self._reading = False
            self.last_read_at = trio.current_time()
            if not data:
                return
            frames = conversation.receive(data)
            if conversation.reply:
                self.outbox.put_bytes(conversation.reply)
                conversation.reply = b""
            await self._take_frames(frames)
            if conversation.error is not None:
                raise conversation.error
            if conversation.state is LinkState.ENDED:
                return
            self.last_read_at = trio.current_time()

    async def _write(self) -> None:
        """Half a frame would spoil the farewell, so this is not cancelled: the last one has FAREWELL_SECONDS."""
        with self._writing:
            while not self._ended:
                self._waiting = trio.Event()
                self._before_write()
                data = self.outbox.take() or (HEARTBEAT if self._beat_at() <= trio.current_time() else b"")
                if data:
                    self.mid_frame = True
                    await self.pipe.send_all(data)
                    self.mid_frame = False
                    self._wrote_at = trio.current_time()
                else:
                    await self._waiting.wait()

    def _wake(self) -> None:
        self._waiting.set()

    def _beat_seconds(self) -> float:
        """The slower of the two intervals, as in STOMP."""
        partner = self.conversation.partner
        theirs = 0.0 if partner is None else partner.beat_ms / 1000
        return max(self._settings.beat_seconds, theirs)

    def _beat_at(self) -> float:
        """When a beat is due. There is none before the other side has introduced itself."""
        return self._wrote_at + self._beat_seconds() if self.conversation.partner is not None else math.inf

    async def _watch(self) -> NoReturn:
        while True:
            now = trio.current_time()
            patience = max(self._settings.suspicion_seconds, 2 * self._beat_seconds())
            silent_at = self.last_read_at + patience
            if self._reading and silent_at <= now:
                raise MeshError("silent", f"nothing was received for {patience:g} s")
            if self.outbox.overflowed:
                raise MeshError("not-reading", "the peer does not read what is sent to it")
            if self._beat_at() <= now:
                self._wake()
            # Over its time and not read from: this node works on what came before, and silence begins after that.
            due = [at for at in (silent_at, self._beat_at()) if at > now]
            await trio.sleep_until(min([*due, now + self._settings.beat_seconds]))

    async def _hasten_login(self) -> None:
        await trio.sleep(LOGIN_SECONDS)
        if not self.conversation.is_proven:
            raise MeshError("login-too-slow", f"the other side had not authenticated after {LOGIN_SECONDS:g} s")


def new_nonce(environment: Environment) -> str:
    """Never used before, and not to be guessed if the world's chance is not."""
    return f"{environment.rng.getrandbits(4 * NONCE_CHARACTERS):0{NONCE_CHARACTERS}x}"


def reasons(error: BaseException) -> list[BaseException]:
    """The exceptions inside a group, or the one that there is."""
    if isinstance(error, BaseExceptionGroup):
        return [reason for inner in error.exceptions for reason in reasons(inner)]
    return [error]


def text_of(error: BaseException) -> str:
    """Why a connection was lost, as the system says it."""
    cause = error if str(error) or error.__cause__ is None else error.__cause__
    said = cause.strerror if isinstance(cause, OSError) else None
    return said or str(cause) or type(error).__name__


def report_end(registry: LinkRegistry, name: str, error: BaseException) -> str:
    """Log and report why a connection ended; returns it in one line. What repeats is for the level debug."""
    worst = ""
    named = name or "a stranger"
    for reason in reasons(error):
        worst = text_of(reason)
        if isinstance(reason, MeshError):
            level = logging.INFO if reason.code in QUIET else logging.WARNING
            is_news = registry.report(name, reason, trio.current_time())
            log.log(level if is_news else logging.DEBUG, "! link with %s: %s", named, reason)
        elif isinstance(reason, LOST):
            is_news = registry.is_news(name, worst, trio.current_time())
            log.log(logging.INFO if is_news else logging.DEBUG, "= no link with %s: %s", named, worst)
        elif isinstance(reason, StorageError):
            log.error("! link with %s failed: %s", named, reason)
        else:
            log.error("! link with %s failed", named, exc_info=reason)
    return worst


class Link:
    """We dial one peer and follow it, again and again. Every end submits an empty Outcome: free credit moves on."""

    def __init__(self, registry: LinkRegistry, peer: PeerEntry, settings: Settings, tls: Tls | None) -> None:
        self.peer = peer.name
        self.line: LinkStream | None = None
        self.dialled = 0
        """How often it was tried."""
        self.tried = False
        """Whether the first try is over; it may have been a long life."""
        self.last_error = ""
        self.since_us = 0
        self.delays = Durations()
        """Of records of the peer, over all connections."""
        self.following: PullingSide | None = None
        self._registry = registry
        self._host = registry.host
        self.address = peer.mesh
        """Where the peer is dialled."""
        self._settings = settings
        self._tls = tls
        self._acked_at = 0.0
        # A connection that the peer has dialled, to be followed over it.
        self._offered: Pipe | None = None
        self._scope = trio.CancelScope()
        self._attempt = trio.CancelScope()
        self._pause = trio.CancelScope()

    def stop(self) -> None:
        """End the link and `run`."""
        if self._offered is not None:
            self._offered.close()
        self._scope.cancel()

    def dial_at(self, address: PeerAddress) -> None:
        """The peer is there from now on; nothing happens when it was before."""
        if (address.host, address.port) != (self.address.host, self.address.port):
            self.address = address
            self.reconnect()

    def reconnect(self) -> None:
        """End what there is and dial again at once."""
        self._attempt.cancel()

    def deliver_first(self) -> None:
        """The peer has reached us, so it may be reached: a pause between two attempts ends."""
        self._pause.cancel()

    def take(self, pipe: Pipe) -> bool:
        """Follow the peer over this connection, which it has dialled; False when that is not wanted."""
        # A dialled connection that is not open may never open: the network may be dead in one direction.
        if self.following is not None or self._offered is not None or self._scope.cancel_called:
            return False
        self._offered = pipe
        self._attempt.cancel()
        return True

    @property
    def state(self) -> str:
        """`down`, `connecting`, `up` or `caught-up`."""
        if self.line is None:
            return "down"
        following = self.following
        if following is None or not following.welcomed:
            return "connecting"
        return "caught-up" if following.caught_up else "up"

    async def run(self) -> None:
        """Dial, follow, and dial again, until `stop`."""
        with self._scope:
            wait = self._settings.redial_seconds_min
            while True:
                began = trio.current_time()
                with trio.CancelScope() as self._attempt:
                    try:
                        await self._follow_once()
                    except* Exception as failures:
                        self.last_error = report_end(self._registry, self.peer, failures)
                    self.tried = True
                    self._registry.routes.changed()
                    if trio.current_time() - began >= self._settings.suspicion_seconds:
                        wait = self._settings.redial_seconds_min
                    with trio.CancelScope() as self._pause:
                        # From the dial's beginning: one that hangs where nothing answers has been waiting already.
                        await trio.sleep_until(began + self._host.environment.rng.uniform(0, wait))
                wait = min(2 * wait, self._settings.redial_seconds_max)
                if self._attempt.cancelled_caught or self._pause.cancelled_caught:
                    wait = self._settings.redial_seconds_min

    async def _follow_once(self) -> None:
        environment = self._host.environment
        self.dialled += 1
        pipe, self._offered = self._offered, None
        if pipe is None:
            with trio.fail_after(LOGIN_SECONDS):
                pipe = await environment.network.connect(self.address.host, self.address.port, self._tls, self.peer)
        dialling = Dialling(self._registry.identity, self.peer, new_nonce(environment))
        line = LinkStream(
            pipe,
            Conversation(dialling),
            encode_send,
            take_frames=self._take_frames,
            before_write=self._before_write,
            settings=self._settings,
        )
        self.line = line
        try:
            line.outbox.put_bytes(dialling.connect())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_durable)
                await line.run()
                nursery.cancel_scope.cancel()
        finally:
            pipe.close()
            self._end()

    def _begin(self, line: LinkStream) -> PullingSide:
        registry = self._registry
        partner = line.conversation.partner
        assert partner is not None
        following = PullingSide(self._host, partner, line.outbox, registry.acceptance, registry.gaps, self.delays)
        self.following = registry.followings[self.peer] = following
        self.since_us = self._host.environment.now_us()
        following.begin(registry.direct_for(self.peer))
        registry.links_changed()
        return following

    def _end(self) -> None:
        self.line = None
        following = self.following
        if following is None:
            return
        self.following = None
        if following.welcomed:
            log.info("= link to %s is down", self.peer)
        del self._registry.followings[self.peer]
        self._registry.gaps.forget(self.peer)
        following.end()
        self._registry.links_changed()
        self.since_us = self._host.environment.now_us()
        self._registry.direct_changed()
        self._host.path.submit(Outcome())  # free credit may now be offered to others

    async def _take_frames(self, frames: list[MeshFrame]) -> None:
        line = self.line
        assert line is not None
        if line.conversation.partner is None or not (frames or self.following is None):
            return
        host = self._host
        await host.path.commit_slot()
        out = Outcome(now_us=host.environment.now_us())
        following = self.following
        grew = False
        try:
            if following is None:
                following = self._begin(line)
            was_direct = following.welcomed and not following.holed
            was_welcomed = following.welcomed
            for frame in frames:
                if isinstance(frame, Paths):
                    self._registry.routes.take(following.partner.origin, frame, out)
                    continue
                assert isinstance(frame, Serves)  # the conversation's table lets none through
                if isinstance(frame, Gap):
                    host.path.submit(out)
                    out = Outcome(now_us=out.now_us)
                if following.apply(frame, out):
                    grew = True
        finally:
            if grew:
                self._registry.received_grew(out)
            host.path.submit(out)
        if following.welcomed and not was_welcomed:
            log.info("= link to %s is up", self.peer)
            self._registry.end_conditions(self.peer)
        if was_direct != (following.welcomed and not following.holed):
            self._registry.direct_changed()
        if grew or following.welcomed and not following.caught_up:
            self._registry.report_caught_up()

    def _before_write(self) -> None:
        following = self.following
        if following is None:
            return
        # News that the peer does not wait for, such as records from others, is sent once per beat.
        now = trio.current_time()
        if following.ack_due or now - self._acked_at >= self._settings.beat_seconds:
            self._acked_at = now
            following.send_ack(self._registry.direct_for(self.peer))

    async def _send_durable(self) -> NoReturn:
        host = self._host
        while True:
            await host.tail.grew(host.tail.committed_end())
            if self.following is not None:
                self.following.became_durable()
