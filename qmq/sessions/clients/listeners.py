"""Accepting clients. If descriptors, memory or places for logins are short, accepting slows down.

From a proxy that the listener names, each connection begins with a header that says whose it is. Only such a proxy is
believed, and it must send the header. Otherwise a client could choose the address that limits, logs and permissions
see.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from qmq.config import ListenerSettings
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.contexts import Reporting
from qmq.environment import Network, Pipe, PipeListener, Tls
from qmq.errors import Refused
from qmq.sessions.clients.admission import Admission
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost
from qmq.wire.proxy_protocol import bytes_missing, read_header

ACCEPT_PAUSE_SECONDS = 0.1
"""After the system was short of descriptors or memory."""

REFUSED_FAREWELL_SECONDS = 1.0

HEADERS_AT_ONCE: Final = 256
"""Headers of one listener that are being read. Proxies send them at once, so more wait in the kernel."""

SESSION_TASK: Final = "qmq.sessions.clients.session.ClientSession.serve"
"""One text for all sessions: trio would make one for each."""

Listening = tuple[tuple[str, int], Callable[[], None]]
"""The address, and a function that stops listening."""


class ProxiedConnections:
    """Those of one listener with proxies, which itself has no TLS. A header must arrive within `seconds`."""

    def __init__(
        self, network: Network, settings: ListenerSettings, tls: Tls | None, refusals: Refusals, seconds: float
    ) -> None:
        self._network = network
        self._settings = settings
        self._tls = tls
        self._refusals = refusals
        self._seconds = seconds
        self._room = trio.Semaphore(HEADERS_AT_ONCE)

    async def begin(self, nursery: trio.Nursery, pipe: Pipe, begin: Callable[[Pipe], None]) -> None:
        """Call `begin` with the connection as that of its client: at once, or when a task has read the header.

        Waits while `HEADERS_AT_ONCE` are being read. A connection without a valid header is closed without an answer,
        and logged. After a cancel it is closed.
        """
        if not self._settings.is_proxy(pipe.peer_address):
            begin(self._own(pipe))
            return
        try:
            await self._room.acquire()
        except trio.Cancelled:
            pipe.close()
            raise
        nursery.start_soon(self._read, pipe, begin)

    async def _read(self, pipe: Pipe, begin: Callable[[Pipe], None]) -> None:
        shown: Pipe | None = None
        try:
            with trio.fail_after(self._seconds):
                header = await _receive_header(pipe)
            if header:
                client = read_header(header)
                shown = self._own(pipe) if client is None else self._network.as_client(pipe, *client, self._tls)
        except trio.TooSlowError:
            self._note(pipe, f"is not complete after {self._seconds:g} s")
        except ValueError as error:
            self._note(pipe, f"is wrong: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The proxy has given up.
        finally:
            self._room.release()
            if shown is None:
                pipe.close()
        if shown is not None:
            begin(shown)

    def _note(self, pipe: Pipe, what: str) -> None:
        self._refusals.note(pipe.peer_address, Refused("bad-proxy-header", f"The header of the proxy {what}."))

    def _own(self, pipe: Pipe) -> Pipe:
        """The connection as that of the host which made it."""
        return self._network.as_client(pipe, pipe.peer_address, pipe.peer_port, "", self._tls)


@dataclass(frozen=True, slots=True)
class ClientListeners:
    """Accepts the clients of one node, on each of its addresses."""

    host: SessionHost
    node: Reporting
    admission: Admission
    refusals: Refusals
    certificates: Certificates

    async def listen(
        self,
        settings: ListenerSettings,
        protocol: ClientProtocol,
        task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve. Started with (address, function that stops listening); sessions continue after that."""
        users = f"listener on {settings.address}"
        tls = self.certificates.for_clients(settings.tls, users) if settings.tls is not None else None
        network = self.host.engine.environment.network
        if settings.proxied_from:
            listener = await network.listen(settings.address.host, settings.address.port, None)
            limits = self.host.node.settings.limits
            proxied = ProxiedConnections(network, settings, tls, self.refusals, limits.login_seconds)
            await self.serve(listener, settings, protocol, task_status, proxied)
        else:
            listener = await network.listen(settings.address.host, settings.address.port, tls)
            await self.serve(listener, settings, protocol, task_status)

    async def serve(
        self,
        listener: PipeListener,
        settings: ListenerSettings | None,
        protocol: ClientProtocol,
        task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
        proxied: ProxiedConnections | None = None,
    ) -> None:
        """Serve the clients that `listener` accepts. Without `settings` it is the node's own Unix socket. With
        `proxied` its connections show first whose they are.
        """
        async with trio.open_nursery() as nursery:
            accepting = trio.CancelScope()

            def stop_listening() -> None:
                accepting.cancel()
                listener.close()

            task_status.started((listener.address, stop_listening))
            with closing(listener), accepting:
                short: set[str] = set()
                while True:
                    try:
                        pipe = await listener.accept()
                    except (OSError, trio.ClosedResourceError) as error:
                        short.add(message := f"no new client is accepted: {error}")
                        self.node.raise_condition("shortage", message)
                        await trio.sleep(ACCEPT_PAUSE_SECONDS)
                        continue
                    while short:
                        self.node.clear_condition("shortage", short.pop())
                    try:
                        if settings is not None:
                            await self.admission.room()
                    except trio.Cancelled:
                        pipe.close()
                        raise
                    if proxied is None:
                        self._begin(nursery, pipe, settings, protocol)
                    else:
                        begin = partial(self._begin, nursery, listener=settings, protocol=protocol)
                        await proxied.begin(nursery, pipe, begin)

    def _begin(
        self,
        nursery: trio.Nursery,
        pipe: Pipe,
        listener: ListenerSettings | None,
        protocol: ClientProtocol,
    ) -> None:
        try:
            login = self.admission.admit(
                pipe.peer_address,
                is_local=listener is None,
                is_operators=protocol.is_for_operators,
                now=trio.current_time(),
            )
        except Refused as refused:
            self.refusals.note(pipe.peer_address, refused)
            if self.admission.may_turn_away:
                nursery.start_soon(_turn_away, self.admission, pipe, protocol.refusal(refused))
            else:
                pipe.send_now(protocol.refusal(refused))
                pipe.close()
            return
        nursery.start_soon(ClientSession(self.host, pipe, listener, login, protocol).serve, name=SESSION_TASK)


async def _turn_away(admission: Admission, pipe: Pipe, reason: bytes) -> None:
    """Send the reason, briefly, and close."""
    admission.refusing += 1
    try:
        with trio.move_on_after(REFUSED_FAREWELL_SECONDS):
            await pipe.send_all(reason)
            pipe.end_sending()
            while await pipe.receive_some(1024):
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # The client left before it got the reason.
    finally:
        admission.refusing -= 1
        pipe.close()


async def _receive_header(pipe: Pipe) -> bytes:
    """A complete header; b"" if the proxy leaves without a byte. Raises ValueError."""
    header = b""
    while missing := bytes_missing(header):
        data = await pipe.receive_some(missing)
        if not data and header:
            raise ValueError("it ends early")
        if not data:
            break
        header += data
    return header
