"""What the clients of one user, and those of one address, use of this node together: subscriptions and rates.

A session waits in its `Allowance` before its frames are decided, so its socket is not read meanwhile. It never gets an
error for its rate. A node counts for itself: N nodes allow N times the rate.

Surprising: what a read has taken is taken, also if the client then disconnects. So a usage whose rate is not paid for
outlives its last session, and a client gains nothing by connecting again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from qmq.access.rules import ANONYMOUS, Principal
from qmq.broker.broker import Broker
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.errors import Refused
from qmq.gateways.paused import Command
from qmq.settings.definitions.users import LimitDefinitions
from qmq.wire.stomp import Frame

PORTIONS_PER_SECOND: Final = 10
"""A read of many SENDs is decided in portions of the rate, so that messages come evenly."""

KEPT_MAX: Final = 10_000
"""Users and addresses without a session whose rate is not paid for; beyond that they are forgotten at once."""


BURST_SECONDS: Final = 1.0
"""How much of the rate an idle client may save, and use at once."""


class TokenBucket:
    """Says at what time so much more is within `rate` per second, at least 1. Times are seconds of the caller's clock.

    It is kept as one number, the time at which all that was taken is paid for (the generic cell rate algorithm, ITU-T
    I.371). What is taken is taken at once, in the order of the calls, so several clients of one bucket take turns.
    """

    __slots__ = ("paid_at", "rate")

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.paid_at = float("-inf")
        """From when on the bucket is full, if nothing more is taken."""

    def take(self, amount: int, now: float) -> float:
        """Take `amount`; returns from when on it may be used. At most `now` if it is within the rate."""
        self.paid_at = max(self.paid_at, now) + amount / self.rate
        return self.paid_at - BURST_SECONDS


@dataclass(slots=True, eq=False)
class ClientUsage:
    """One user or one address, by its `key`. `subscriptions_max` 0 is no limit."""

    key: Principal | str
    is_kept: bool = False
    """A check is due that forgets it, if it has no session then."""
    sessions: dict[int, None] = field(default_factory=dict)
    subscriptions_max: int = 0
    messages: TokenBucket | None = None
    bytes: TokenBucket | None = None

    def limit(self, subscriptions: int | None, messages: int | None, size: int | None) -> None:
        """Let these count from now on. A rate that stays keeps what was taken."""
        self.subscriptions_max = subscriptions or 0
        self.messages = _bucket(self.messages, messages or 0)
        self.bytes = _bucket(self.bytes, size or 0)

    @property
    def paid_at(self) -> float:
        """When everything that was taken is paid for."""
        buckets = [bucket.paid_at for bucket in (self.messages, self.bytes) if bucket is not None]
        return max(buckets, default=float("-inf"))


def _bucket(known: TokenBucket | None, rate: int) -> TokenBucket | None:
    if known is not None and known.rate == rate:
        return known
    return TokenBucket(rate) if rate else None


class Allowance:
    """What one session may use, with the others of its user and of its address. `is_limited`: it may have to wait."""

    __slots__ = ("_bytes_taken", "bytes", "has_ended", "is_limited", "messages", "usages", "wait")

    def __init__(self, usages: tuple[ClientUsage, ...] = ()) -> None:
        self.usages = usages
        self.messages: tuple[TokenBucket, ...] = ()
        self.bytes: tuple[TokenBucket, ...] = ()
        self.is_limited = False
        self.has_ended = False
        self.wait: trio.CancelScope | None = None
        """That of the session's latest wait."""
        self.follow()
        # None: what was read before the rate was limited is free.
        self._bytes_taken: int | None = 0

    def follow(self) -> None:
        """Let the present limits of its usages count."""
        was_limited = self.is_limited
        self.messages = tuple([one.messages for one in self.usages if one.messages is not None])
        self.bytes = tuple([one.bytes for one in self.usages if one.bytes is not None])
        self.is_limited = bool(self.messages or self.bytes)
        if not was_limited:
            self._bytes_taken = None

    def skip(self, bytes_in: int) -> None:
        """Of the bytes that were read of this connection so far, the first `bytes_in` were another login's."""
        self._bytes_taken = bytes_in

    def take(self, sends: int, bytes_in: int, now: float) -> float:
        """Take so many SENDs; returns when they may be decided.

        `bytes_in` are all bytes that were read of the client so far. What is new of them is taken, too.
        """
        size = 0 if self._bytes_taken is None else bytes_in - self._bytes_taken
        self._bytes_taken = bytes_in
        times = [bucket.take(sends, now) for bucket in self.messages if sends]
        times += [bucket.take(size, now) for bucket in self.bytes if size]
        return max(times, default=now)

    def portion(self, frames: Sequence[Command]) -> tuple[int, int]:
        """The next portion: how many of `frames` it has, and how many of these are SENDs."""
        most = min([max(1, one.rate // PORTIONS_PER_SECOND) for one in self.messages], default=len(frames))
        count = sends = 0
        for frame in frames:
            if isinstance(frame, Frame) and frame.head.command == "SEND":
                if sends == most:
                    break
                sends += 1
            count += 1
        return count, sends


UNLIMITED_SESSION: Final = Allowance()


class ClientUsages:
    """Those of one node."""

    def __init__(self, broker: Broker, beats: Heartbeats, node: NodeBasics, limits: LimitDefinitions) -> None:
        self._broker = broker
        self._beats = beats
        self._node = node
        self._limits = limits
        self._usages: dict[Principal | str, ClientUsage] = {}
        """Of users, and of addresses."""
        self._sessions: dict[int, Allowance] = {}
        self._kept = 0
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._usages)

    def join(self, session: int, principal: Principal | None, address: str | None) -> Allowance:
        """The client of `session` has logged in, at this address as it is counted (`admission`).

        Without an `address` it is at the Unix socket, and has no limits.
        """
        if address is None:
            return UNLIMITED_SESSION
        usages = (self._usage(principal or ANONYMOUS), self._usage(address))
        for usage in usages:
            usage.sessions[session] = None
        allowance = self._sessions[session] = Allowance(usages)
        self._bound(session, allowance)
        return allowance

    def end_wait(self, session: int) -> None:
        """The session is ending: it waits for no rate any more. Nothing happens if it has no limits."""
        allowance = self._sessions.get(session)
        if allowance is not None:
            allowance.has_ended = True
            if allowance.wait is not None:
                allowance.wait.cancel()

    def leave(self, session: int) -> None:
        """The session has ended. Nothing happens if it has no limits."""
        allowance = self._sessions.pop(session, None)
        if allowance is None:
            return
        self._broker.subscriptions.bounds.pop(session, None)
        for usage in allowance.usages:
            del usage.sessions[session]
            if not usage.sessions:
                self._forget(usage)

    def follow(self) -> None:
        """Limits, users or groups have changed: let the present ones count. Sessions that wait look again."""
        for usage in self._usages.values():
            self._limit(usage)
        for session, allowance in self._sessions.items():
            allowance.follow()
            self._bound(session, allowance)
        self._changed.set()
        self._changed = trio.Event()

    async def portion(self, allowance: Allowance, frames: Sequence[Command], bytes_in: int) -> int:
        """Wait until the next portion of `frames` may be decided; returns how many these are. As `pay`."""
        count, sends = allowance.portion(frames)
        await self.pay(allowance, sends, bytes_in)
        return count

    async def pay(self, allowance: Allowance, sends: int, bytes_in: int) -> None:
        """Wait until so many SENDs may be decided, and until `bytes_in` may have been read. See `Allowance.take`.

        If the limits change, or the session is ending, the wait ends.
        """
        at = allowance.take(sends, bytes_in, trio.current_time())
        buckets = allowance.messages + allowance.bytes
        while trio.current_time() < at and buckets == allowance.messages + allowance.bytes and not allowance.has_ended:
            with trio.move_on_at(at) as allowance.wait:
                await self._changed.wait()

    # Inside

    def _usage(self, key: Principal | str) -> ClientUsage:
        usage = self._usages.get(key)
        if usage is None:
            usage = self._usages[key] = ClientUsage(key)
            self._limit(usage)
        return usage

    def _limit(self, usage: ClientUsage) -> None:
        key = usage.key
        if isinstance(key, str):
            limits = self._node.settings.limits
            usage.limit(
                limits.subscriptions_per_address_max,
                limits.messages_per_second_per_address_max,
                limits.bytes_per_second_per_address_max,
            )
        else:
            of_user = self._limits.of(key)
            usage.limit(of_user.subscriptions_max, of_user.messages_per_second_max, of_user.bytes_per_second_max)

    def _bound(self, session: int, allowance: Allowance) -> None:
        """Let the broker ask before it begins a subscription of this session, if there is a limit."""
        bounds = self._broker.subscriptions.bounds
        if any(usage.subscriptions_max for usage in allowance.usages):
            bounds[session] = partial(self._check_subscriptions, allowance)
        else:
            bounds.pop(session, None)

    def _check_subscriptions(self, allowance: Allowance) -> None:
        sessions = self._broker.sessions
        for usage in allowance.usages:
            most = usage.subscriptions_max
            if most and sum([sessions[one].subscribed for one in usage.sessions if one in sessions]) >= most:
                raise Refused("too-many-subscriptions", f"{_subject(usage.key)} may have {most} subscriptions here.")

    def _forget(self, usage: ClientUsage) -> None:
        """Forget a usage that has no session, when it has paid for what it took."""
        if usage.is_kept:
            return
        if usage.paid_at <= trio.current_time() or self._kept >= KEPT_MAX:
            del self._usages[usage.key]
            return
        usage.is_kept = True
        self._kept += 1

        def check(now: float) -> float | None:
            if not usage.sessions and now < usage.paid_at:
                return usage.paid_at
            usage.is_kept = False
            self._kept -= 1
            if not usage.sessions:
                del self._usages[usage.key]
            return None

        self._beats.watch(usage.paid_at, check)


def _subject(key: Principal | str) -> str:
    if isinstance(key, str):
        return f"The address {key}"
    return "Clients without login together" if key.name == ANONYMOUS.name else f"The user {key.name}"
