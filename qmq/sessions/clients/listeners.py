"""Accepting clients. If descriptors, memory or places for logins are short, accepting slows down."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import trio

from qmq.config import ListenerSettings
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.contexts import Reporting
from qmq.environment import Pipe, PipeListener
from qmq.errors import Refused
from qmq.sessions.clients.admission import Admission
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost

ACCEPT_PAUSE_SECONDS = 0.1
"""After the system was short of descriptors or memory."""

REFUSED_FAREWELL_SECONDS = 1.0

Listening = tuple[tuple[str, int], Callable[[], None]]
"""The address, and a function that stops listening."""


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
        listener = await network.listen(settings.address.host, settings.address.port, tls)
        await self.serve(listener, settings, protocol, task_status)

    async def serve(
        self,
        listener: PipeListener,
        settings: ListenerSettings | None,
        protocol: ClientProtocol,
        task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the clients that `listener` accepts. Without `settings` it is the node's own Unix socket."""
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
                    self._begin(nursery, pipe, settings, protocol)

    def _begin(
        self,
        nursery: trio.Nursery,
        pipe: Pipe,
        listener: ListenerSettings | None,
        protocol: ClientProtocol,
    ) -> None:
        try:
            login = self.admission.admit(pipe.peer_address, is_local=listener is None, now=trio.current_time())
        except Refused as refused:
            self.refusals.note(pipe.peer_address, refused)
            if self.admission.may_turn_away:
                nursery.start_soon(_turn_away, self.admission, pipe, protocol.refusal(refused))
            else:
                pipe.send_now(protocol.refusal(refused))
                pipe.close()
            return
        nursery.start_soon(ClientSession(self.host, pipe, listener, login, protocol).serve)


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
