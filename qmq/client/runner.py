"""Keeps one connection at a time alive for a Core, and wakes the tasks that wait for its answers.

A connection is four things in one nursery: a reader, a writer, heart-beats, and the deadline of the login. The first
one that ends also ends the connection; then the core is notified and the next node of the rotation is dialled. Only a
bug leaves `run` as an exception: after an outside failure it tries again without limit, because the cancel scope of
each waiting call decides how long to wait. One failure is final: every node in turn refuses the login.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable

import trio

from qmq.address import Address
from qmq.client.address import Rotation
from qmq.client.core import Core
from qmq.client.dial import Dial, Line
from qmq.client.feed import Feed
from qmq.client.requests import PendingReply, Phase, Request
from qmq.errors import Refused, RemoteProtocolError

READ_BYTES_MAX = 64 << 10

SILENCE_FACTOR = 2.0
"""Times the agreed interval: so late may a beat of the node be (STOMP 1.2, "Heart-beating": margin of error)."""

BEAT_EARLY = 0.9
"""Of the agreed interval: beats leave a little sooner than promised, so that a busy moment does not cost the line."""

log = logging.getLogger("qmq.client")


class Runner:
    """Runs `core`. After every call into the core, `wake` must follow before the next await.

    `attempt_seconds` bounds dialling and login together. A connection that stood for `steady_seconds` counts as a
    success for the rotation.
    """

    def __init__(
        self,
        core: Core,
        rotation: Rotation,
        dial: Dial,
        *,
        tls: ssl.SSLContext | None,
        attempt_seconds: float,
        steady_seconds: float,
    ) -> None:
        self.core = core
        self.address: Address | None = None
        """The node that the client is logged in to."""
        self.last_error = ""
        self._rotation = rotation
        self._is_warned = False
        self._dial = dial
        self._tls = tls
        self._attempt_seconds = attempt_seconds
        self._steady_seconds = steady_seconds
        self._refused_by: set[Address] = set()
        self._failures: dict[Address, tuple[bool, str]] = {}
        """Of each node: whether it has answered at its last attempt, with a refusal, and why that failed."""
        self._waiting: dict[Request | Feed | PendingReply, trio.Event] = {}
        self._room = trio.lowlevel.ParkingLot()
        self._output = trio.Event()
        self._last_read = self._sent = 0.0
        self._online = trio.Event()
        self._logged_in = trio.Event()
        self._is_writing = False

    # For waiting tasks

    def wake(self) -> None:
        """The core was called: wake the tasks concerned, and the writer."""
        core = self.core
        for subject in core.take_changed():
            event = self._waiting.pop(subject, None)
            if event is not None:
                event.set()
            if isinstance(subject, Request):
                self._room.unpark()
        if core.has_output:
            self._output.set()
        if core.phase is Phase.CLOSED:
            self._online.set()
            self._room.unpark_all()

    async def changed(self, subject: Request | Feed | PendingReply) -> None:
        """Wait until the core names `subject` as changed. Look before and after: others may have been quicker."""
        await self._waiting.setdefault(subject, trio.Event()).wait()

    def forget(self, subject: Request | PendingReply) -> None:
        """No task waits for it any longer, and the room that it took is free."""
        self._waiting.pop(subject, None)
        self.room_left()

    async def room(self, size: int) -> None:
        """Wait until the window has room for `size` bytes. Raises NotConnected."""
        core = self.core
        # Also if there is room: tasks that were just woken for it have their turn first.
        await trio.lowlevel.checkpoint()
        while not core.requests.has_room(size):
            core.check_open()
            await self._room.park()
        core.check_open()

    def room_left(self) -> None:
        """A task took or released room: if there is more, wake the next one in line."""
        if self.core.requests.has_room(1):
            self._room.unpark()

    async def online(self) -> None:
        """Wait until the first login. Raises Refused when every node refuses it."""
        await self._online.wait()
        if self.core.closed_because is not None:
            raise self.core.closed_because

    # Running

    async def run(self) -> None:
        """Keep the core connected until it is closed."""
        core = self.core
        while core.phase is not Phase.CLOSED:
            address, wait_seconds = self._rotation.next()
            await trio.sleep(wait_seconds)
            began = trio.current_time()
            try:
                await self._once(address)
            except Refused as refused:
                self._note(address, f"refused: {refused}", is_answer=True)
                if refused.code in core.final_codes:
                    self._refused_by.add(address)
                if self._refused_by.issuperset(self._rotation.addresses):
                    core.close(refused)
            except (OSError, RemoteProtocolError) as error:
                self._refused_by.discard(address)
                self._note(address, str(error))
            finally:
                was_online = self.address is not None
                self.address = None
                core.lost()
                self.wake()
            if was_online and trio.current_time() - began >= self._steady_seconds:
                self._rotation.stood()
            else:
                self._rotation.failed()
            self._warn(was_online)

    def _warn(self, was_online: bool) -> None:
        """Warn once that no node can be reached: until one can, every call waits."""
        if was_online:
            self._is_warned = False
        elif self._rotation.has_failed_everywhere and not self._is_warned and self.core.phase is not Phase.CLOSED:
            self._is_warned = True
            # What the operator must do something about stands first: a node that refuses the login says why.
            ordered = sorted(self._failures.items(), key=lambda one: not one[1][0])
            why = "; ".join(f"{address}: {what}" for address, (_, what) in ordered)
            is_refused = any(is_answer for is_answer, _ in self._failures.values())
            what = "no node admits the client" if is_refused else "no node can be reached"
            log.warning("! %s; trying again until one does. %s", what, why)

    def _note(self, address: Address, what: str, *, is_answer: bool = False) -> None:
        self._failures[address] = (is_answer, what)
        self.last_error = f"{address}: {what}"
        log.info("! %s", self.last_error)

    async def _once(self, address: Address) -> None:
        """One connection from dialling to its end. Raises OSError, Refused (the login), RemoteProtocolError."""
        with trio.move_on_after(self._attempt_seconds) as attempt:
            line = await self._dial(address.host, address.port, self._tls, address.host)
        if attempt.cancelled_caught:
            raise TimeoutError(f"no connection within {self._attempt_seconds:g} s")
        if self.core.phase is Phase.CLOSED:  # closed while the dial ended
            line.close()
            return
        self._last_read = self._sent = trio.current_time()
        self._logged_in = trio.Event()
        self._is_writing = False
        failure: list[Exception] = []
        try:
            try:
                self.core.begin(address.host)
            except OSError:
                raise  # the function that returns the passcode: it costs this attempt only
            except Exception as error:
                self.core.close(error)  # a mistake in that function
                return
            self.wake()
            async with trio.open_nursery() as nursery:

                async def ending(task: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await task()
                    except (Refused, RemoteProtocolError, OSError) as error:
                        failure.append(error)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        failure.append(ConnectionError("connection lost"))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(ending, lambda: self._read(line, address))
                nursery.start_soon(ending, lambda: self._write(line))
                nursery.start_soon(ending, lambda: self._beat(attempt.deadline))
        finally:
            line.close()
        if failure:
            raise failure[0]

    async def _read(self, line: Line, address: Address) -> None:
        core = self.core
        while data := await line.receive_some(READ_BYTES_MAX):
            self._last_read = trio.current_time()
            try:
                core.receive(data)
            finally:
                if core.phase is Phase.ONLINE and self.address is None:
                    log.info("= logged in at %s (%s)", address, core.server)
                    self.address = address
                    self._logged_in.set()
                    self._online.set()
                self.wake()
        raise ConnectionError("the node ended the connection")

    async def _write(self, line: Line) -> None:
        core = self.core
        while True:
            await self._output.wait()
            self._output = trio.Event()
            while data := core.take_output():
                self._is_writing = True
                await line.send_all(data)
                self._is_writing = False
                self._sent = trio.current_time()

    async def _beat(self, login_deadline: float) -> None:
        """Watch the login, then the silence of both sides."""
        with trio.move_on_at(login_deadline) as scope:
            await self._logged_in.wait()
        if scope.cancelled_caught:
            raise TimeoutError("the node did not answer the login in time")
        core = self.core
        send = core.send_beat_seconds * BEAT_EARLY or float("inf")
        silence_seconds = core.receive_beat_seconds * SILENCE_FACTOR or float("inf")
        while True:
            await trio.sleep_until(min(self._sent + send, self._last_read + silence_seconds))
            now = trio.current_time()
            if now >= self._last_read + silence_seconds:
                raise TimeoutError(f"silent for {now - self._last_read:.1f} s")
            if now >= self._sent + send:
                # A writer that waits for room has bytes in flight: they replace a beat.
                if not self._is_writing:
                    core.beat()
                    self.wake()
                self._sent = now
