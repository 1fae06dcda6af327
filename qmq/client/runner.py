"""Keeps one connection at a time alive for a Core, and wakes the calls that wait for its answers.

A style of program (trio, asyncio, threads) is a subclass: it has events, a clock, time limits, and `serve`, which moves
the bytes of one connection. When that ends, the core is notified and the next node of the rotation is dialled. Only a
bug leaves `run` as an exception: after an outside failure it tries again without limit, because each waiting call
decides how long to wait. Two failures are final: every node in turn refuses the login, or cannot be reached by TLS
before the client was ever connected.
"""

import logging
import math
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Protocol, TypeVar

from qmq.address import Address
from qmq.client.core.core import Core
from qmq.client.core.feed import Feed
from qmq.client.core.keepalive import Keepalive
from qmq.client.core.requests import PendingReply, Phase, Request
from qmq.client.core.rotation import Rotation
from qmq.errors import NotConnected, Refused, RemoteProtocolError, TlsFailed

STEADY_ATTEMPTS = 2.0
"""Times the time for one attempt: a connection that stood for so long counts as a success for the rotation."""

T = TypeVar("T")

log = logging.getLogger("qmq.client")


class Event(Protocol):
    """Set once; wakes all that wait."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self) -> object: ...


class Runner(ABC):
    """Runs `core`. After every call into the core, `wake` must follow before the next await.

    `attempt_seconds` bounds dialling and login together.
    """

    def __init__(self, core: Core, rotation: Rotation, *, tls: ssl.SSLContext | None, attempt_seconds: float) -> None:
        self.core = core
        self.tls = tls
        self.attempt_seconds = attempt_seconds
        self.address: Address | None = None
        """The node that the client is logged in to."""
        self.last_error = ""
        self._rotation = rotation
        self._is_warned = False
        self._is_hopeless: set[Address] = set()
        """Nodes that refuse the login, or cannot be reached by TLS."""
        self._failures: dict[Address, tuple[bool, str]] = {}
        """Of each node: whether it has answered at its last attempt, with a refusal, and why that failed."""
        self._waiting: dict[Request | Feed | PendingReply, Event] = {}
        self._line: deque[tuple[Event, int]] = deque()
        """Calls that wait for room in the window, first come, first served, and how many bytes each needs."""
        self._online = self.event()
        self.output = self.event()
        """Set while the core has bytes to send; whatever sends them replaces it."""
        self.logged_in = self.event()
        """Of the present connection."""

    # What a style of program has

    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    def now(self) -> float:
        """Seconds of the clock that `sleep` and `within` wait on."""

    @abstractmethod
    async def checkpoint(self) -> None:
        """Let others run, and be cancelled."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def within(self, seconds: float, call: Awaitable[T]) -> T:
        """The result of `call`. Raises TimeoutError after so many seconds, having cancelled it."""

    async def limited(self, seconds: float, call: Coroutine[object, object, T]) -> T:
        """As `within`, for the `timeout_seconds` of an application: math.inf is no limit. Raises ValueError."""
        if not seconds >= 0:
            call.close()
            raise ValueError("timeout_seconds is not negative, math.inf for no limit")
        return await (call if seconds == math.inf else self.within(seconds, call))

    @abstractmethod
    async def serve(self, address: Address) -> None:
        """Dial, `begin`, and move bytes until the connection ends.

        Raises OSError, Refused (the login), RemoteProtocolError, TlsFailed.
        """

    # For waiting calls

    def wake(self) -> None:
        """The core was called: wake the calls concerned, those that there is room for, and what sends its output."""
        core = self.core
        for subject in core.take_changed():
            event = self._waiting.pop(subject, None)
            if event is not None:
                event.set()
        if core.has_output:
            self.output.set()
        if core.phase is Phase.CLOSED:
            self._online.set()
        self._share_room()

    async def changed(self, subject: Request | Feed | PendingReply) -> None:
        """Wait until the core names `subject` as changed. Look before and after: others may have been quicker."""
        event = self._waiting.get(subject)
        if event is None:
            event = self._waiting[subject] = self.event()
        await event.wait()

    def forget(self, subject: Request | PendingReply) -> None:
        """No call waits for it any longer, and the room that it took is free."""
        self._waiting.pop(subject, None)
        self._share_room()

    async def room(self, size: int) -> None:
        """Wait for a turn, and until the window has room for `size` bytes: take it before the next await.

        Raises NotConnected. After cancellation the turn is that of the next in line.
        """
        core = self.core
        await self.checkpoint()
        if self._line or not core.requests.has_room(size):
            core.check_open()
            turn = (self.event(), size)
            self._line.append(turn)
            try:
                await turn[0].wait()
            except BaseException:
                if turn[0].is_set():
                    core.requests.release(size)
                else:
                    self._line.remove(turn)
                self._share_room()
                raise
            core.requests.release(size)
        core.check_open()

    def _share_room(self) -> None:
        """There may be room: reserve it for those in line that it suffices for, up to the first that it does not."""
        core = self.core
        while self._line and (core.phase is Phase.CLOSED or core.requests.has_room(self._line[0][1])):
            turn, size = self._line.popleft()
            core.requests.reserve(size)
            turn.set()

    async def online(self, timeout_seconds: float) -> None:
        """Wait until the first login. Raises what ended the client, such as Refused when every node refuses it, and
        NotConnected without a login in time.
        """
        try:
            await self.within(timeout_seconds, self._online.wait())
        except TimeoutError:
            raise NotConnected(self._why(f" within {timeout_seconds:g} s")) from None
        if self.core.closed_because is not None:
            raise self.core.closed_because

    # Running

    async def run(self) -> None:
        """Keep the core connected until it is closed."""
        core = self.core
        try:
            while core.phase is not Phase.CLOSED:
                address, wait_seconds = self._rotation.next()
                await self.sleep(wait_seconds)
                await self._try(address)
        except Exception as error:
            core.close(error)  # a bug: nothing may wait for a client that stands still
            self.wake()
            raise

    async def _try(self, address: Address) -> None:
        core, began = self.core, self.now()
        error: Exception | None = None
        try:
            await self.serve(address)
        except (OSError, Refused, RemoteProtocolError, TlsFailed) as ended:
            error = ended
        finally:
            was_online = self.address is not None
            self.address = None
            core.lost()
            self.wake()
        if error is not None:
            self._failed(address, error)
        if was_online and self.now() - began >= STEADY_ATTEMPTS * self.attempt_seconds:
            self._rotation.stood()
        else:
            self._rotation.failed()
        if was_online:
            self._is_warned = False
        elif self._rotation.has_failed_everywhere and not self._is_warned and core.phase is not Phase.CLOSED:
            # Once, until a node can be reached: until then every call waits.
            self._is_warned = True
            log.warning("! %s", self._why("; trying again until one does"))

    def _failed(self, address: Address, error: Exception) -> None:
        """Remember why, and give up if no node can ever admit the client."""
        is_refusal = isinstance(error, Refused)
        self._failures[address] = (is_refusal, f"refused: {error}" if is_refusal else str(error))
        self.last_error = f"{address}: {self._failures[address][1]}"
        log.info("! %s", self.last_error)
        if isinstance(error, Refused):
            is_final = error.code in self.core.final_codes
        else:
            # A client that was connected has the right context: the certificate of the node has to be mended.
            is_final = isinstance(error, TlsFailed) and not self.core.connections
            self._is_hopeless.discard(address)
        if is_final:
            self._is_hopeless.add(address)
        if self._is_hopeless.issuperset(self._rotation.addresses):
            self.core.close(TlsFailed(self._why()) if isinstance(error, TlsFailed) else error)
            self.wake()

    def _why(self, how: str = "") -> str:
        """That no node was reached, `how`, and the last failure of each. What the operator must mend stands first: a
        refused login.
        """
        ordered = sorted(self._failures.items(), key=lambda one: not one[1][0])
        why = "; ".join(f"{address}: {what}" for address, (_, what) in ordered)
        is_refused = any(is_answer for is_answer, _ in self._failures.values())
        what = "no node admits the client" if is_refused else "no node can be reached"
        return f"{what}{how}. {why or 'None has answered yet'}"

    def begin(self, address: Address, login_deadline: float) -> Keepalive | None:
        """There is a connection to `address`: log in. None if the client was closed meanwhile."""
        core = self.core
        if core.phase is Phase.CLOSED:
            return None
        self.logged_in = self.event()
        try:
            core.begin(address.host)
        except OSError:
            raise  # the function that returns the passcode: it costs this attempt only
        except Exception as error:
            core.close(error)  # a mistake in that function
            return None
        finally:
            self.wake()
        return Keepalive(core, address, self.now(), login_deadline)

    def received(self, beats: Keepalive, data: bytes) -> None:
        """Bytes of the node, b"" for their end. Raises as `Keepalive.received`."""
        try:
            beats.received(data, self.now())
        finally:
            if beats.is_online and self.address is None:
                log.info("= logged in at %s (%s)", beats.address, self.core.server)
                self.address = beats.address
                self._online.set()
                self.logged_in.set()
            self.wake()
