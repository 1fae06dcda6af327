"""Bounds on connections, and on pending logins, of the node and of each address.

A login is pending from accept until CONNECTED. When there is no room for another one, an older login is dismissed. It
is one of the address with the most pending logins: the oldest that is still silent. If all of them wait for their
password check, it is the newest. So an address that takes all room displaces its own logins and never those of others.
A login is refused only if no other address has more pending logins than its own.

In a storm of logins, connections arrive faster than their CONNECT frames. So while all places are taken and the oldest
silent login is young, the node accepts no further connection (`room`). They wait in the kernel, and none that is about
to log in is dismissed.

A host can use all addresses of an IPv6 /64, so a /64 counts as one address. An IPv4 address counts as itself in every
notation.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

import trio

from qmq.broker.subscriptions import stopping
from qmq.config import LimitSettings
from qmq.errors import Refused

IPV6_HOST_BITS: Final = 64

LOCAL_CONNECTIONS_MAX: Final = 100
"""Connections to the Unix socket, above `connections_max`; a node keeps more descriptors than this for itself."""


CONNECT_SECONDS: Final = 0.5
"""Which a connection has for its CONNECT, before another one may take its place."""

LOGINS_AT_ONCE: Final = 8
"""Logins that begin their sessions before other tasks get a turn: some 3 ms."""

TURNED_AWAY_MIN: Final = 64
"""Refused connections that get the reason at the same time, also on a full node; see LOCAL_CONNECTIONS_MAX."""

TURNED_AWAY_MAX: Final = 1_000
"""The same while the node has room for them. Others get the reason if the kernel takes it at once."""


def ignore_dismissal(why: Refused) -> None:
    """Used in place of the end of a login that nothing dismisses."""


@dataclass(slots=True, eq=False)
class PendingLogin:
    """One connection, since trio time `since`. `address` is as it is counted; `is_silent` until the client has sent
    CONNECT; `is_pending` until CONNECTED or its end; `dismiss` ends it at once. `carriers` are connections that bring
    what it sends, and are decided with it.
    """

    address: str
    since: float = 0.0
    is_silent: bool = True
    is_pending: bool = True
    carriers: "tuple[PendingLogin, ...]" = ()
    dismiss: Callable[[Refused], None] = ignore_dismissal


class Admission:
    """All connections of one node."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._pending_addresses: Counter[str] = Counter()
        # In the order of arrival.
        self._pending: dict[PendingLogin, None] = {}
        self._total = 0
        self._closed = False
        self._why = ""
        self.refusing = 0
        """Refused connections to which the reason is being sent."""
        self._decided = trio.Event()
        self.turns = trio.Semaphore(LOGINS_AT_ONCE)
        """Held over a checkpoint before a login begins its session, so that a storm leaves time for other clients."""

    async def room(self) -> None:
        """Wait until another login may be pending, or a silent one has had its time. Bounded by CONNECT_SECONDS."""
        while (at := self._room_at()) > trio.current_time():
            with trio.move_on_at(at):
                await self._decided.wait()

    def _room_at(self) -> float:
        if self._closed or len(self._pending) < self._limits.logins_pending_max:
            return 0.0
        oldest = next((login for login in self._pending if login.is_silent), None)
        return 0.0 if oldest is None else oldest.since + CONNECT_SECONDS

    @property
    def may_turn_away(self) -> bool:
        """Whether another refused connection may stay open until its client has read the reason."""
        if self.refusing < TURNED_AWAY_MIN:
            return True
        return self.refusing < TURNED_AWAY_MAX and self._total + self.refusing < self._limits.connections_max

    @property
    def pending(self) -> int:
        return len(self._pending)

    def change(self, limits: LimitSettings) -> None:
        """Apply these bounds from now on. Existing connections stay."""
        self._limits = limits

    def close(self, why: str = "") -> None:
        """Admit only operators, until `open`: the node is stopping, or drains."""
        self._closed, self._why = True, why

    def open(self) -> None:
        """Admit all clients again."""
        self._closed = False

    def check_open(self, *, is_operators: bool = False) -> None:
        """Raises Refused while the node stops or is drained, unless operators may use this connection."""
        if self._closed and not is_operators:
            raise stopping(self._why)

    def admit(
        self, peer_address: str, *, is_local: bool = False, is_operators: bool = False, now: float = 0.0
    ) -> PendingLogin:
        """Count a new connection, at trio time `now`. May dismiss another login. Raises Refused when there is no room;
        then nothing is counted.

        A connection to the Unix socket (`is_local`) has room of its own, because its client is the operator of a node
        that may be full.
        """
        self.check_open(is_operators=is_local or is_operators)
        limits = self._limits
        address = counted_address(peer_address)
        if is_local:
            if self._addresses[address] >= LOCAL_CONNECTIONS_MAX:
                raise Refused(
                    "too-many-connections", f"The Unix socket serves at most {LOCAL_CONNECTIONS_MAX} connections."
                )
            return self._counted(address, now)
        if self._total >= limits.connections_max:
            raise Refused("too-many-connections", f"The node serves at most {limits.connections_max} connections.")
        if self._addresses[address] >= limits.connections_per_address_max:
            raise Refused(
                "too-many-connections", f"One address has at most {limits.connections_per_address_max} connections."
            )
        if self._pending_addresses[address] >= limits.logins_pending_per_address_max:
            most = limits.logins_pending_per_address_max
            self._make_room(
                address,
                (login for login in self._pending if login.address == address),
                f"At most {most} clients of one address may be logging in.",
            )
        if len(self._pending) >= limits.logins_pending_max:
            self._make_room(
                address, iter(self._pending), f"At most {limits.logins_pending_max} clients may be logging in."
            )
        return self._counted(address, now)

    def _counted(self, address: str, now: float) -> PendingLogin:
        login = PendingLogin(address, now)
        self._pending[login] = None
        self._pending_addresses[address] += 1
        self._addresses[address] += 1
        self._total += 1
        return login

    def _make_room(self, address: str, others: Iterator[PendingLogin], why: str) -> None:
        """Dismiss one of `others`, in the order of arrival, for a new login from `address`. Raises Refused."""
        counts = self._pending_addresses
        chosen: PendingLogin | None = None
        rank = (0, False)
        for login in others:
            other = (counts[login.address], login.is_silent)
            if other > rank or (other == rank and not login.is_silent):
                chosen, rank = login, other
        if chosen is None or (not chosen.is_silent and rank[0] <= counts[address] + 1):
            raise Refused("too-many-logins", why)
        self.decided(chosen)
        chosen.dismiss(Refused("too-many-logins", f"{why} This one gave its place to another."))

    def decided(self, login: PendingLogin) -> None:
        """The login has succeeded or failed. Idempotent."""
        if login.is_pending:
            login.is_pending = False
            del self._pending[login]
            self._decided.set()
            self._decided = trio.Event()
            _less(self._pending_addresses, login.address)
            for carrier in login.carriers:
                self.decided(carrier)
            login.carriers = ()

    def decided_with(self, carrier: PendingLogin, login: PendingLogin) -> None:
        """`carrier` is decided when `login` is."""
        if login.is_pending:
            login.carriers += (carrier,)
        else:
            self.decided(carrier)

    def leave(self, login: PendingLogin) -> None:
        """The connection has ended."""
        self.decided(login)
        _less(self._addresses, login.address)
        self._total -= 1


@lru_cache(maxsize=4096)
def counted_address(address: str) -> str:
    """The unit in which addresses are counted, see above. A name that is no IP address counts as itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> IPV6_HOST_BITS << IPV6_HOST_BITS)}/{IPV6_HOST_BITS}"


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
