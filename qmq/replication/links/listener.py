"""The serving side: which connections are admitted, and what is sent to each follower.

A connection has five seconds and a few KiB to prove that it is a node of this mesh, and few may try at once. For each
node name one connection is served. A new connection of the same incarnation replaces the old one at once, because the
old one is half-open. A connection of another incarnation (a copied configuration, or a fast restart) replaces it
only if the old one has been silent for two beats. Otherwise it is refused, and both nodes report it.

Each follower has a feed task that walks the journal at the follower's pace. When a link ends, the messages lent to the
follower stay lent until `redeliver_after_seconds`, because it may return and still hold them.

Admission and serving are one module: both decide by the same table of connections.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final, NoReturn

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.environment import Pipe, PipeListener, Tls
from qmq.errors import MeshError
from qmq.model.dots import Vector
from qmq.replication.anti_entropy.feed import Read
from qmq.replication.links.host import PeerAddress, Settings
from qmq.replication.links.link import FAREWELL_SECONDS, LOST, LinkStream, new_nonce, reasons, report_end
from qmq.replication.links.outbox import TURN_BYTES, encode_message
from qmq.replication.links.registry import LinkRegistry
from qmq.replication.links.serving_side import ServingSide
from qmq.replication.protocol.conversation import Conversation
from qmq.replication.protocol.frames import Follows, MeshFrame, Paths
from qmq.replication.protocol.handshake import Answering
from qmq.wire.stomp.writer import encode_frame

PENDING_MAX: Final = 32
"""Connections that have not proven themselves; four times the nodes of a mesh. One more ends the oldest."""

FEED_BYTES: Final = 1 << 20
"""Read from the journal at once, for one follower."""

ACCEPT_AGAIN_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


class ServedLink:
    """One accepted connection: a stranger at first, then a follower."""

    def __init__(self, pipe: Pipe, line: LinkStream, answering: Answering) -> None:
        self.pipe = pipe
        self.line = line
        self.answering = answering
        self.serving: ServingSide | None = None
        self.since_us = 0
        self.began = trio.Event()
        self.room = trio.Event()
        """Set when the feed may have work that the journal does not show."""
        self.sleep: trio.CancelScope | None = None

    def wake_feed(self) -> None:
        self.room.set()
        if self.sleep is not None and self.serving is not None and self.serving.feed.seek_again:
            self.sleep.cancel()


class MeshListener:
    """Accepts the other nodes."""

    def __init__(self, registry: LinkRegistry, settings: Settings, tls: Tls | None) -> None:
        self.served: dict[str, ServedLink] = {}
        self.refused = 0
        """Connections turned away, whatever the reason."""
        self.last_errors: dict[str, str] = {}
        self.turned: Callable[[str, Pipe], bool] = lambda name, pipe: False
        """Takes a connection of this peer, to follow it over that; False when it is not wanted."""
        self._registry = registry
        self._host = registry.host
        self._settings = settings
        self._tls = tls
        # Connections that are not proven yet, in the order of arrival.
        self._strangers: dict[Pipe, None] = {}
        self._listener: PipeListener | None = None
        self._takebacks: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._unlent = trio.Event()

    async def listen(self, address: PeerAddress) -> None:
        """Open the port. Raises OSError."""
        self._listener = await self._host.environment.network.listen(address.host, address.port, self._tls)

    async def run(self) -> None:
        """Serve until cancelled. Call `listen` first."""
        listener = self._listener
        assert listener is not None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._return_unlent)
                while True:
                    try:
                        pipe = await listener.accept()
                    except OSError as error:
                        log.warning("! mesh listener: %s", error)
                        await trio.sleep(ACCEPT_AGAIN_SECONDS)
                        continue
                    nursery.start_soon(self._serve_accepted, pipe, nursery)
        finally:
            listener.close()

    def schedule_return(self) -> None:
        """`LinkRegistry.unlent` has lent messages: requeue them."""
        self._unlent.set()

    def dismiss(self, name: str) -> None:
        """This node is no longer a member: its link ends, and the next dial is refused with the reason."""
        served = self.served.get(name)
        if served is not None:
            self._close_serving(served)
            served.pipe.close()

    async def serve_dialled(self, pipe: Pipe, peer: str) -> None:
        """Serve `peer` over a connection that this node has dialled; with TLS it has shown its certificate by that."""
        nursery = self._nursery
        if nursery is None:
            pipe.close()
            return
        ended = trio.Event()

        async def serve() -> None:
            try:
                await self._serve(pipe, nursery, (lambda: (peer,)) if self._tls is not None else None)
            finally:
                ended.set()

        # With the others, because its end may leave something to do in their nursery.
        nursery.start_soon(serve)
        await ended.wait()

    async def _serve_accepted(self, pipe: Pipe, nursery: trio.Nursery) -> None:
        await self._serve(pipe, nursery, (lambda: pipe.peer_certificate_names) if self._tls is not None else None)

    async def _serve(
        self, pipe: Pipe, nursery: trio.Nursery, certificate_names: Callable[[], Collection[str]] | None
    ) -> None:
        registry = self._registry
        answering = Answering(registry.identity, new_nonce(self._host.environment), certificate_names)
        frames_of: list[ServedLink] = []
        line = LinkStream(
            pipe,
            Conversation(answering),
            encode_message,
            take_frames=lambda frames: self._take_frames(frames_of[0], frames),
            settings=self._settings,
        )
        served = ServedLink(pipe, line, answering)
        frames_of.append(served)
        if len(self._strangers) >= PENDING_MAX:
            # A correct peer proves itself at once; connections that do not must not keep it out.
            longest = next(iter(self._strangers))
            del self._strangers[longest]
            longest.close()
        self._strangers[pipe] = None
        try:
            await self._run_line(served)
        finally:
            self._strangers.pop(pipe, None)
            # A follower that this node cannot dial has dialled, to be followed itself.
            if not (line.conversation.turned and self.turned(line.conversation.turned, pipe)):
                pipe.close()
            self._end(served, nursery)

    async def _run_line(self, served: ServedLink) -> None:
        peer_link = served.line
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, served)
                nursery.start_soon(self._redeliver_if_late, served)
                await peer_link.run()
                nursery.cancel_scope.cancel()
        except* Exception as failures:
            failure = failures
        if failure is None:
            return
        name = served.answering.claimed
        if served.serving is None:
            self.refused += 1
        self.last_errors[name] = report_end(self._registry, name, failure)
        for reason in reasons(failure):
            if isinstance(reason, MeshError) and not peer_link.mid_frame:
                await self._send_farewell(served.pipe, reason)
                return

    async def _send_farewell(self, pipe: Pipe, reason: MeshError) -> None:
        """Send the reason to the other side, which may no longer read."""
        error = encode_frame("ERROR", [("error-code", reason.code), ("message", reason.message)])
        with trio.move_on_after(FAREWELL_SECONDS):
            try:
                await pipe.send_all(error)
            except LOST:
                return

    # Letting a node in

    async def _take_frames(self, served: ServedLink, frames: list[MeshFrame]) -> None:
        line = served.line
        host = self._host
        serving = served.serving
        if not line.conversation.is_proven:
            return
        if serving is not None and not frames:
            return
        if serving is None:
            self._strangers.pop(served.pipe, None)
            self._make_room_for(served)
            while True:
                # Messages lent against the credit of the previous connection are not sent; they are requeued.
                await host.path.flushed()
                await host.path.commit_slot()
                if not self._make_room_for(served):
                    break
        else:
            await host.path.commit_slot()
        out = Outcome(now_us=host.environment.now_us())
        try:
            if serving is None:
                serving = self._begin(served, out)
            serving.feed.now = trio.current_time()
            for frame in frames:
                if not serving.open:
                    raise MeshError("replaced", "a newer connection of the same node replaced this one")
                if isinstance(frame, Paths):
                    self._registry.routes.take(serving.partner.origin, frame, out)
                    continue
                assert isinstance(frame, Follows)  # the conversation's table lets nothing else through
                serving.apply(frame, out)
        finally:
            host.path.submit(out)
        pace = serving.feed.pace
        line.outbox.quantum_bytes = pace.quantum_bytes if pace.is_slow else TURN_BYTES
        served.wake_feed()

    def _make_room_for(self, served: ServedLink) -> bool:
        """End an older connection of the same node, or refuse this one. True when one was ended."""
        partner = served.line.conversation.partner
        assert partner is not None
        if partner.origin.node not in self._registry.identity.members:
            raise MeshError("unknown-node", f"{partner.origin.node} ceased to be a member while it logged in")
        old = self.served.get(partner.origin.node)
        if old is None:
            return False
        assert old.serving is not None
        silent = trio.current_time() - old.line.last_read_at
        if old.serving.partner.origin != partner.origin and silent <= 2 * self._settings.beat_seconds:
            raise MeshError(
                "duplicate-node", f"two running nodes call themselves {partner.origin.node}; the first one stays"
            )
        self._close_serving(old)
        old.pipe.close()
        return True

    def _begin(self, served: ServedLink, out: Outcome) -> ServingSide:
        registry = self._registry
        partner = served.line.conversation.partner
        assert partner is not None
        serving = ServingSide(self._host, partner, served.line.outbox)
        served.serving = serving
        served.since_us = self._host.environment.now_us()
        takeback = self._takebacks.pop(serving.peer, None)
        if takeback is not None:
            takeback.cancel()
        registry.return_unlent(out)
        registry.servings[serving.peer] = serving
        self.served[serving.peer] = served
        serving.begin()
        registry.links_changed()
        log.info("= link from %s is up", serving.peer)
        registry.end_conditions(serving.peer)
        registry.peer_came(serving.peer)
        served.began.set()
        return serving

    # Letting it go

    def _close_serving(self, served: ServedLink) -> None:
        """Undo `_begin`, at once and once."""
        serving = served.serving
        if serving is None or not serving.open:
            return
        unsent = serving.end()
        log.info("= link from %s is down", serving.peer)
        del self._registry.servings[serving.peer]
        del self.served[serving.peer]
        self._registry.links_changed()
        if unsent:
            self._registry.unlent.setdefault(serving.peer, []).extend(unsent)
            self.schedule_return()
        # It may be another consumer's turn.
        self._host.path.submit(Outcome(now_us=self._host.environment.now_us()))

    def _end(self, served: ServedLink, nursery: trio.Nursery) -> None:
        serving = served.serving
        if serving is None:
            return
        self._close_serving(served)
        peer = serving.peer
        if self._host.broker.lending.with_peer(peer):
            self.check_absent(peer)

    def check_absent(self, peer: str, *, from_now: bool = False) -> None:
        """Unless `peer` follows this node, its consumers keep what they have for `redeliver_after_seconds`.

        `from_now`: count from now, however long it was absent. Another node may have lent it some in between.
        """
        if from_now and peer in self._takebacks:
            self._takebacks.pop(peer).cancel()
        if peer not in self.served and peer not in self._takebacks and self._nursery is not None:
            scope = self._takebacks[peer] = trio.CancelScope()
            self._nursery.start_soon(self._take_back, peer, scope)

    async def _take_back(self, peer: str, scope: trio.CancelScope) -> None:
        """The follower stays away: others may have what it was lent."""
        with scope:
            await trio.sleep(self._settings.redeliver_after_seconds)
            await self._host.path.commit_slot()
            if scope.cancel_called:
                return
            del self._takebacks[peer]
            out = Outcome(now_us=self._host.environment.now_us())
            lending = self._host.broker.lending
            count = lending.give_up(peer, lending.with_peer(peer), out)
            self._host.path.submit(out)
            log.info("= %d messages lent to %s are offered to others", count, peer)

    async def _redeliver_if_late(self, served: ServedLink) -> None:
        """The follower came back, but its own records did not get here in time."""
        await served.began.wait()
        assert served.serving is not None
        await trio.sleep(self._settings.redeliver_after_seconds)
        await self._host.path.commit_slot()
        out = Outcome(now_us=self._host.environment.now_us())
        served.serving.take_back(self._host.path.received_vector(), out, late=True)
        self._host.path.submit(out)

    async def _return_unlent(self) -> NoReturn:
        while True:
            await self._unlent.wait()
            self._unlent = trio.Event()
            await self._host.path.commit_slot()
            out = Outcome(now_us=self._host.environment.now_us())
            self._registry.return_unlent(out)
            self._host.path.submit(out)

    # The journal

    async def _feed(self, served: ServedLink) -> NoReturn:
        """Send the records that the follower does not have, as fast as it reads them."""
        host = self._host
        run_blocking = host.environment.run_blocking
        position = 0
        reach: tuple[Vector, int] | None = None
        while True:
            served.room = trio.Event()
            serving = served.serving
            if serving is None or not serving.feed.began or not serving.feed.has_room:
                await served.room.wait()
                continue
            feed = serving.feed
            if feed.seek_again:
                feed.seek_again = False
                wanted = dict(feed.peer)
                base, position = await run_blocking(self._seek, wanted)
                gap = feed.start_again(base)
                if gap is not None:
                    serving.outbox.put_journal(gap)
                reach = host.log.vector(), host.log.end
            if reach is not None and position >= reach[1]:
                for notice in feed.ended(reach[0], host.broker.durable_subscriptions.given_up):
                    serving.outbox.put_journal(notice)
                reach = None
            durable_end = host.tail.committed_end()
            if position >= durable_end:
                with trio.CancelScope() as served.sleep:
                    await host.tail.grew(position)
                served.sleep = None
                continue
            wanted_bytes = max(1, min(feed.room, FEED_BYTES))
            read, base = host.log.read_recent(position, wanted_bytes), host.log.base()
            if read:
                await trio.lowlevel.checkpoint()  # in place of the thread: other links have their turn
            else:
                read, base = await run_blocking(self._read, position, wanted_bytes)
            if feed.seek_again:
                continue
            feed.now = trio.current_time()
            frames, after = feed.select(read, durable_end, base)
            for frame in frames:
                serving.outbox.put_journal(frame)
            # Nothing durable is between this position and the end, so the next read begins there.
            position = durable_end if after is None else after

    def _seek(self, vector: Vector) -> tuple[Vector, int]:
        """In a worker thread: what retention dropped, and where to begin."""
        return self._host.log.base(), self._host.log.seek(vector)

    def _read(self, position: int, bytes_max: int) -> tuple[Read, Vector]:
        """In a worker thread; the base after the reading, so that it explains every hole in what was read."""
        read = self._host.log.read(position, bytes_max)
        return read, self._host.log.base()
