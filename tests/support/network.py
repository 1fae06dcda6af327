"""A network in memory: latency, bounded buffers, cuts, breaks, dead hosts. `qmq.environment.Network` for simulations.

A `Fabric` is the whole network; every host gets its own `HostNetwork`. One connection is two `Channel`s; bytes stand
in a channel until their due time. What goes wrong is told to the fabric: `cut` and `freeze` stop bytes without closing
anything, `break_between` resets, `kill` takes a host away in one instant, so that nothing of it gets out any more.

Surprising: everything here is decided by the generator that the fabric was given and by trio's clock, so under
trio's jumping clock the same seed gives the same network.
"""

import random
from collections import deque
from collections.abc import Iterator
from math import inf

import trio

from qmq.environment import Pipe, Tls
from tests.support.moments import Parking

CONNECT_SECONDS = 2.0
"""How long dialling into a black hole takes until it fails."""

Item = tuple[float, bytes]
"""When it arrives, and what; b"" is the end of the stream."""


class Channel:
    """Bytes on their way from `source` to `target`, in order."""

    __slots__ = ("broken", "items", "last_due", "reader", "reader_gone", "size", "source", "target", "writer")

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.items: deque[Item] = deque()
        self.size = 0
        self.last_due = 0.0
        self.broken = False
        self.reader_gone = False
        self.reader = Parking()
        self.writer = Parking()

    def put(self, data: bytes, due: float) -> None:
        """Send `data` on its way; it never overtakes what was sent before."""
        self.last_due = max(self.last_due, due)
        self.items.append((self.last_due, data))
        self.size += len(data)
        if len(self.items) == 1:  # else the reader waits for what comes before this, or for the line
            self.reader.wake_at(self.last_due)

    def take(self, bytes_max: int, now: float) -> bytes:
        """What has arrived, up to `bytes_max`; the end of the stream stays."""
        parts: list[bytes] = []
        left = bytes_max
        while left and self.items and self.items[0][0] <= now and self.items[0][1]:
            due, data = self.items.popleft()
            if len(data) > left:
                self.items.appendleft((due, data[left:]))
                data = data[:left]
            parts.append(data)
            left -= len(data)
        self.size -= bytes_max - left
        self.writer.wake()
        return b"".join(parts)

    def break_off(self) -> None:
        """Reset: what is on its way is lost."""
        self.broken = True
        self.items.clear()
        self.size = 0
        self.reader.wake()
        self.writer.wake()


class FabricPipe:
    """One end of a connection; see `qmq.environment.Pipe`. `muted` once its host is dead: nothing gets in or out."""

    peer_certificate_names: frozenset[str] = frozenset()
    peer_certificate_subject: frozenset[str] = frozenset()

    def __init__(self, fabric: "Fabric", number: int, host: str, outgoing: Channel, incoming: Channel) -> None:
        self.number = number
        self.host = host
        self.peer_address = incoming.source
        self.peer_port = 1024 + number
        self.muted = False
        self.closed = False
        self._fabric = fabric
        self.outgoing = outgoing
        self.incoming = incoming

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        incoming = self.incoming
        while True:
            if self.closed:
                raise trio.ClosedResourceError
            if incoming.broken and not self.muted:
                raise trio.BrokenResourceError
            due = inf
            if incoming.items and not self.muted and not self._fabric.blocked(incoming):
                due = incoming.items[0][0]
            now = trio.current_time()
            if due <= now:
                return incoming.take(self._fabric.chunk(bytes_max), now)
            await incoming.reader.wait(due)

    def send_now(self, data: bytes) -> int:
        if self.muted:
            return len(data)
        if self.closed or self._is_refused():
            return 0
        taken = self._fabric.chunk(min(len(data), self._fabric.buffer_bytes - self.outgoing.size))
        if taken > 0:
            self._fabric.carry(self.outgoing, data[:taken])
        return max(taken, 0)

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        outgoing = self.outgoing
        while data:
            if self.closed:
                raise trio.ClosedResourceError
            if self.muted:
                return
            if self._is_refused():
                raise trio.BrokenResourceError
            taken = min(len(data), self._fabric.buffer_bytes - outgoing.size)
            if taken > 0:
                self._fabric.carry(outgoing, data[:taken])
                data = data[taken:]
            else:
                await outgoing.writer.wait()

    def _is_refused(self) -> bool:
        """Broken, or the other side closed and the news of it could reach us."""
        outgoing = self.outgoing
        return outgoing.broken or (outgoing.reader_gone and not self._fabric.blocked(self.incoming))

    def end_sending(self) -> None:
        if not self.closed and not self.muted and not self.outgoing.broken:
            self._fabric.carry(self.outgoing, b"")

    def close(self) -> None:
        if self.closed:
            return
        self.end_sending()
        self.closed = True
        if not self.muted:
            self.incoming.reader_gone = True
            self.incoming.writer.wake()
        self.incoming.reader.wake()
        self.outgoing.writer.wake()
        self._fabric.forget_if_closed(self.number)


class FabricListener:
    """See `qmq.environment.PipeListener`."""

    def __init__(self, fabric: "Fabric", address: tuple[str, int]) -> None:
        self.address = address
        self._fabric = fabric
        self._waiting: deque[FabricPipe] = deque()
        self._changed = trio.Event()
        self._closed = False

    def offer(self, pipe: FabricPipe) -> None:
        self._waiting.append(pipe)
        self._changed.set()

    async def accept(self) -> Pipe:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise trio.ClosedResourceError
            self._changed = trio.Event()
            await self._changed.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._changed.set()
            self._fabric.forget_listener(self)


class Fabric:
    """Every connection, and what is wrong between hosts. `rng` decides latency, chunks and how dialling fails."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.latency_seconds = 0.0005
        """Of a message, at least; up to three times that much is added, and now and then thirty times."""
        self.buffer_bytes = 64 << 10
        """What one direction of a connection holds before its sender waits, as two socket buffers would."""
        self.odd_chunks = 0.05
        """How often a send or a read handles only a part of what it could."""
        self._listeners: dict[tuple[str, int], FabricListener] = {}
        self._pipes: dict[int, tuple[FabricPipe, FabricPipe]] = {}
        self._numbers = 0
        self._cuts: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], tuple[int, int]] = {}
        self._frozen: set[str] = set()
        self._dead: set[str] = set()

    def network(self, host: str) -> "HostNetwork":
        """The network as `host` sees it."""
        return HostNetwork(self, host)

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more, and nobody is told."""
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """End a cut. What stood in it arrives now, or the connection has given up meanwhile and is reset."""
        if (source, target) not in self._cuts:
            return
        self._cuts.discard((source, target))
        for near, far in list(self._pipes.values()):
            for channel in (near.outgoing, far.outgoing):
                if (channel.source, channel.target) == (source, target) and channel.items:
                    if self.rng.random() < 0.5:
                        self._reset(near, far)
                        break
                    channel.reader.wake()

    def freeze(self, host: str) -> None:
        """Nothing gets to or from `host` until `thaw`; nothing is lost by it."""
        self._frozen.add(host)

    def thaw(self, host: str) -> None:
        self._frozen.discard(host)
        for near, far in self._pipes.values():
            if host in (near.host, far.host):
                for channel in (near.outgoing, far.outgoing):
                    channel.reader.wake()
                    channel.writer.wake()

    def slow_down(self, source: str, target: str, bytes_per_second: int, piece_bytes: int) -> None:
        """What is sent from now on from `source` to `target` arrives at this rate, in pieces of so many bytes."""
        self._slow[source, target] = (bytes_per_second, piece_bytes)

    def speed_up(self, source: str, target: str) -> None:
        """End `slow_down`; what is under way arrives now."""
        if self._slow.pop((source, target), None) is None:
            return
        now = trio.current_time()
        for near, far in self._pipes.values():
            for channel in (near.outgoing, far.outgoing):
                if (channel.source, channel.target) == (source, target):
                    channel.items = deque((min(due, now), data) for due, data in channel.items)
                    channel.last_due = min(channel.last_due, now)
                    channel.reader.wake()

    def break_between(self, one: str, other: str) -> int:
        """Reset every connection between two hosts. Returns how many there were."""
        broken = [pair for pair in self._pipes.values() if {pair[0].host, pair[1].host} == {one, other}]
        for pair in broken:
            self._reset(*pair)
        return len(broken)

    def break_clients(self, host: str, nodes: set[str]) -> None:
        """Reset every connection of `host` with hosts that are not among `nodes`."""
        for near, far in list(self._pipes.values()):
            ends = {near.host, far.host}
            if host in ends and not (ends - {host}) & nodes:
                self._reset(near, far)

    def kill(self, host: str, silently: bool) -> None:
        """Take `host` away at once: nothing it does from now on has an effect outside.

        Its process died and its peers are told (reset), or its power went (`silently`) and they hear nothing until it
        is back (`revive`).
        """
        self._dead.add(host)
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        for near, far in list(self._pipes.values()):
            for pipe in (near, far):
                if pipe.host == host:
                    pipe.muted = True
            if host in (near.host, far.host) and not silently:
                self._reset(near, far)

    def revive(self, host: str) -> None:
        """`host` is back and knows nothing of its old connections: whoever still holds one is told."""
        self._dead.discard(host)
        for near, far in list(self._pipes.values()):
            if any(pipe.muted and pipe.host == host for pipe in (near, far)):
                self._reset(near, far)

    def is_dead(self, host: str) -> bool:
        return host in self._dead

    # For pipes

    def blocked(self, channel: Channel) -> bool:
        """Whether nothing may arrive over `channel` now."""
        source, target = channel.source, channel.target
        return (source, target) in self._cuts or source in self._frozen or target in self._frozen

    def carry(self, channel: Channel, data: bytes) -> None:
        """Send `data` on its way; b"" ends the stream."""
        due = self.arrival(channel)
        slow = self._slow.get((channel.source, channel.target))
        if slow is None:
            channel.put(data, due)
            return
        bytes_per_second, piece_bytes = slow
        due = max(due, channel.last_due)
        for begin in range(0, max(len(data), 1), piece_bytes):
            piece = data[begin : begin + piece_bytes]
            due += len(piece) / bytes_per_second
            channel.put(piece, due)

    def arrival(self, channel: Channel) -> float:
        """When what is sent now arrives."""
        seconds = self.latency_seconds * (1 + 3 * self.rng.random())
        if self.rng.random() < 0.02:
            seconds += self.latency_seconds * 30
        return trio.current_time() + seconds

    def chunk(self, most: int) -> int:
        """How much of `most` one call handles: nearly always all of it."""
        if most > 1 and self.rng.random() < self.odd_chunks:
            return self.rng.randint(1, most)
        return most

    def forget_if_closed(self, number: int) -> None:
        near, far = self._pipes.get(number, (None, None))
        if near is not None and far is not None and near.closed and far.closed:
            del self._pipes[number]

    def forget_listener(self, listener: FabricListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    # For host networks

    def listen(self, address: tuple[str, int]) -> FabricListener:
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        listener = self._listeners[address] = FabricListener(self, address)
        return listener

    async def dial(self, host: str, target: str, port: int) -> Pipe:
        """Connect, as a host would: refused, unreachable or timed out when it cannot be."""
        there, back = Channel(host, target), Channel(target, host)
        await trio.sleep(self.arrival(there) - trio.current_time())
        if host in self._dead:
            await trio.sleep_forever()
        if self.blocked(there) or self.blocked(back) or target in self._dead:
            if self.rng.random() < 0.5:
                raise OSError(f"{target} is unreachable")
            await trio.sleep(CONNECT_SECONDS)
            raise TimeoutError(f"{target} does not answer")
        listener = self._listeners.get((target, port))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens at {target}:{port}")
        self._numbers += 1
        near = FabricPipe(self, self._numbers, host, there, back)
        far = FabricPipe(self, self._numbers, target, back, there)
        self._pipes[self._numbers] = (near, far)
        listener.offer(far)
        return near

    def connections(self) -> Iterator[tuple[str, str]]:
        """(who dialled, who was dialled) of everything open."""
        for near, far in self._pipes.values():
            yield near.host, far.host

    def _reset(self, near: FabricPipe, far: FabricPipe) -> None:
        near.outgoing.break_off()
        far.outgoing.break_off()
        self._pipes.pop(near.number, None)


class HostNetwork:
    """See `qmq.environment.Network`. There is no TLS: a context is refused, so that no test believes in it."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric = fabric
        self._host = host

    async def connect(self, host: str, port: int, tls: Tls | None, server_name: str) -> Pipe:
        assert tls is None, "the simulated network has no TLS"
        return await self._fabric.dial(self._host, host, port)

    async def listen(self, host: str, port: int, tls: Tls | None) -> FabricListener:
        assert tls is None, "the simulated network has no TLS"
        await trio.lowlevel.checkpoint()
        return self._fabric.listen((host, port))
