"""`manage.py qmq_consume`: give the messages of queues to functions of the project.

Each message is settled when its function has returned: ACK, or NACK if it raised. What fails again and again becomes a
dead letter of the mesh. SIGTERM and SIGINT let the functions that run finish; what was prefetched returns to its queue.
"""

import logging
import signal
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import import_string

from qmq.client import blocking
from qmq.client.django import client, close
from qmq.client.django.conf import Handler, handlers
from qmq.errors import NotConnected, Refused

LOOK_SECONDS: Final = 1.0
"""How often a thread that waits for a message looks whether the command stops."""

log = logging.getLogger("qmq.django")


class QmqConsume(BaseCommand):
    """Ends with exit code 1 if a node refuses it, or none is reachable for `connect_timeout_seconds`."""

    help = "Give the messages of queues to functions: those of the setting QMQ, or the one that is named."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("destination", nargs="?", help="for example /queue/jobs; without it, all of the setting")
        parser.add_argument("function", nargs="?", help="for example shop.jobs.resize; else that of the setting")
        parser.add_argument("--threads", type=int, default=1, help="for each destination (default: 1)")
        parser.add_argument("--prefetch", type=int, help="messages in flight for each thread (default: 1)", default=1)
        parser.add_argument("--durable", metavar="NAME", help="the durable subscription, for a fanout")

    def handle(self, *_: Any, **given: Any) -> None:
        chosen = _chosen(given["destination"], given["function"])
        if given["threads"] < 1 or given["prefetch"] < 1:
            raise CommandError("--threads and --prefetch are at least 1")
        options = {"prefetch": given["prefetch"], **({"durable": given["durable"]} if given["durable"] else {})}
        stopping, failures = Event(), SimpleQueue[BaseException]()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        try:
            connected = client()
        except (NotConnected, Refused) as error:
            raise CommandError(str(error)) from error
        threads = [
            Thread(
                target=_until_failed,
                args=(partial(_consume, connected, destination, one, options, stopping), stopping, failures),
            )
            for destination, one in chosen.items()
            for _ in range(given["threads"])
        ]
        for thread in threads:
            thread.start()
        self.stderr.write(f"consuming {', '.join(chosen)}")
        for thread in threads:
            thread.join()
        close()
        if not failures.empty():
            raise CommandError(str(failures.get()))


def _chosen(destination: str | None, function: str | None) -> dict[str, Handler]:
    try:
        if destination is not None and function is not None:
            return {destination: import_string(function)}
        known = handlers()
    except ImportError as error:
        raise CommandError(str(error)) from error
    if destination is not None and destination not in known:
        raise CommandError(f"QMQ has no consumer for {destination}: name its function, too")
    if not known:
        raise CommandError("QMQ has no consumers: name a destination and a function")
    return known if destination is None else {destination: known[destination]}


def _until_failed(work: Callable[[], None], stopping: Event, failures: "SimpleQueue[BaseException]") -> None:
    """One thread that fails stops all of them."""
    try:
        work()
    except BaseException as error:
        failures.put(error)
        stopping.set()


def _consume(
    connected: blocking.Client, destination: str, function: Handler, options: dict[str, Any], stopping: Event
) -> None:
    with connected.subscribe(destination, **options) as messages:
        while not stopping.is_set():
            with suppress(TimeoutError):
                _process(messages.receive(timeout_seconds=LOOK_SECONDS), function)


def _process(message: blocking.Message, function: Handler) -> None:
    # As at the ends of a request: a connection of the database may have ended since the message before.
    close_old_connections()
    try:
        with message:  # ACK at its end; NACK, if it raises
            function(message)
    except Exception:
        log.exception("! %s failed at message %s", getattr(function, "__name__", function), message.id)
    finally:
        close_old_connections()


Command = QmqConsume
"""The name that Django looks for."""
