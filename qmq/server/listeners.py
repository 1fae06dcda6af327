"""Accepting clients. A shortage of descriptors or memory slows accepting down and ends nothing."""

import logging
from collections.abc import Callable

import trio

from qmq.config import ListenerSettings
from qmq.errors import Refused
from qmq.gateways.stomp import encode_error
from qmq.server.login import Logins
from qmq.server.session import Desk, Session
from qmq.wire.stomp import Version
from qmq.world import Pipe

ACCEPT_PAUSE_SECONDS = 0.1
"""After the system was short of something."""

REFUSED_FAREWELL_SECONDS = 1.0

TURNED_AWAY_MAX = 64
"""Refused connections that are told why at the same time; more are just closed."""

log = logging.getLogger("qmq.listener")


async def serve_clients(
    desk: Desk,
    settings: ListenerSettings,
    task_status: trio.TaskStatus[tuple[tuple[str, int], Callable[[], None]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen and serve. Started with (address, function that stops listening); sessions go on after that."""
    context = desk.certificates.for_clients(settings.tls) if settings.tls is not None else None
    listener = await desk.world.network.listen(settings.address.host, settings.address.port, context)
    async with trio.open_nursery() as nursery:
        accepting = trio.CancelScope()

        def stop_listening() -> None:
            accepting.cancel()
            listener.close()

        task_status.started((listener.address, stop_listening))
        with accepting:
            while True:
                try:
                    pipe = await listener.accept()
                except (OSError, trio.ClosedResourceError) as error:
                    desk.alarm("shortage", f"nobody new is let in: {error}")
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                _begin(desk, desk.logins, nursery, pipe, settings.anonymous)
        listener.close()


def _begin(desk: Desk, logins: Logins, nursery: trio.Nursery, pipe: Pipe, anonymous: bool) -> None:
    try:
        logins.admit(pipe.peer_address)
    except Refused as refused:
        log.warning("! %s refused: %s", pipe.peer_address, refused)
        if logins.turning_away < TURNED_AWAY_MAX:
            nursery.start_soon(_turn_away, logins, pipe, refused)
        else:
            pipe.close()
        return
    nursery.start_soon(Session(desk, pipe, anonymous).serve)


async def _turn_away(logins: Logins, pipe: Pipe, refused: Refused) -> None:
    """Say why, briefly, and close."""
    logins.turning_away += 1
    try:
        with trio.move_on_after(REFUSED_FAREWELL_SECONDS):
            await pipe.send_all(encode_error(refused, None, Version.V12))
            pipe.end_sending()
            while await pipe.receive_some(1024):
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # it left before it could be told
    finally:
        logins.turning_away -= 1
        pipe.close()
