"""Accepting clients. A shortage of descriptors or memory slows accepting down and ends nothing."""

import logging
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from qmq.config import ListenerSettings, TlsSettings
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


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """TLS for clients; with `ca`, only for those that show a certificate it has signed.

    Raises OSError that names the file which cannot be used.
    """
    return _context(ssl.Purpose.CLIENT_AUTH, tls)


def mesh_contexts(tls: TlsSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for links: (for listening, for dialling). Both sides show a certificate signed by `ca`.

    Raises OSError that names the file which cannot be used.
    """
    assert tls.ca is not None, "the configuration was checked"
    return _context(ssl.Purpose.CLIENT_AUTH, tls), _context(ssl.Purpose.SERVER_AUTH, tls)


def _context(purpose: ssl.Purpose, tls: TlsSettings) -> ssl.SSLContext:
    """TLS with these files; the other side has to show a certificate where there is a `ca`."""
    for path in (tls.certificate, tls.key, tls.ca):
        if path is not None:
            path.open("rb").close()  # what OpenSSL says of a file that it cannot open lacks its name
    try:
        context = ssl.create_default_context(purpose, cafile=tls.ca)
    except ssl.SSLError as error:
        raise OSError(f"{tls.ca}: no certificate in PEM form: {error}") from error
    if tls.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(tls.certificate, tls.key, partial(_no_password, tls.key))
    except ssl.SSLError as error:
        raise OSError(f"{tls.certificate} and {tls.key}: no certificate with its key in PEM form: {error}") from error
    return context


def _no_password(key: Path) -> str:
    """Asked for by OpenSSL, which else would ask at the terminal and keep the whole node waiting."""
    raise OSError(f"{key}: is encrypted; a node has nobody who could type a password")


async def serve_clients(
    desk: Desk,
    settings: ListenerSettings,
    task_status: trio.TaskStatus[tuple[tuple[str, int], Callable[[], None]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen and serve. Started with (address, function that stops listening); sessions go on after that."""
    context = server_context(settings.tls) if settings.tls is not None else None
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
