"""Accepting clients. If descriptors, memory or places for logins are short, accepting slows down."""

from collections.abc import Callable
from contextlib import closing

import trio

from qmq.config import ListenerSettings
from qmq.environment import Pipe, PipeListener
from qmq.errors import Refused
from qmq.sessions.clients.admission import Admission
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.session import ClientSession, SessionContext

ACCEPT_PAUSE_SECONDS = 0.1
"""After the system was short of descriptors or memory."""

REFUSED_FAREWELL_SECONDS = 1.0


async def serve_clients(
    context: SessionContext,
    settings: ListenerSettings,
    protocol: ClientProtocol,
    task_status: trio.TaskStatus[tuple[tuple[str, int], Callable[[], None]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen and serve. Started with (address, function that stops listening); sessions continue after that."""
    users = f"listener on {settings.address}"
    tls = context.certificates.for_clients(settings.tls, users) if settings.tls is not None else None
    listener = await context.environment.network.listen(settings.address.host, settings.address.port, tls)
    await serve_listener(context, listener, settings, protocol, task_status)


async def serve_listener(
    context: SessionContext,
    listener: PipeListener,
    settings: ListenerSettings | None,
    protocol: ClientProtocol,
    task_status: trio.TaskStatus[tuple[tuple[str, int], Callable[[], None]]] = trio.TASK_STATUS_IGNORED,
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
                    context.raise_condition("shortage", message)
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                while short:
                    context.clear_condition("shortage", short.pop())
                try:
                    if settings is not None:
                        await context.admission.room()
                except trio.Cancelled:
                    pipe.close()
                    raise
                _begin(context, nursery, pipe, settings, protocol)


def _begin(
    context: SessionContext,
    nursery: trio.Nursery,
    pipe: Pipe,
    listener: ListenerSettings | None,
    protocol: ClientProtocol,
) -> None:
    try:
        login = context.admission.admit(pipe.peer_address, is_local=listener is None, now=trio.current_time())
    except Refused as refused:
        context.refusals.note(pipe.peer_address, refused)
        if context.admission.may_turn_away:
            nursery.start_soon(_turn_away, context.admission, pipe, protocol.refusal(refused))
        else:
            pipe.send_now(protocol.refusal(refused))
            pipe.close()
        return
    nursery.start_soon(ClientSession(context, pipe, listener, login, protocol).serve)


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
