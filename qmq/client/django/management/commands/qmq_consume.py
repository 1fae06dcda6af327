"""`manage.py qmq_consume`: give the messages of queues to functions of the project.

Each message is settled when its function has returned: ACK, or NACK if it raised. What fails again and again becomes a
dead letter of the mesh. SIGTERM and SIGINT let the functions that run finish; what was prefetched returns to its queue.
"""

import logging
import signal
from argparse import ArgumentParser
from queue import SimpleQueue
from threading import Thread
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import import_string

from qmq.client import blocking
from qmq.client.django import client, close
from qmq.client.django.conf import Handler, consumers
from qmq.errors import NotConnected, Refused

log = logging.getLogger("qmq.django")

Ends = SimpleQueue[BaseException | None]
"""Why the command stops: a signal or a thread that is done (None), or the failure of a thread. A handler of signals may
put into it."""


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
        ends = Ends()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ends.put(None))
        try:
            connected = client()
            taken = [
                (connected.subscribe(destination, **options), function)
                for destination, function in chosen.items()
                for _ in range(given["threads"])
            ]
        except (NotConnected, Refused, ValueError) as error:
            close()
            raise CommandError(str(error)) from error
        threads = [Thread(target=_consume, args=(messages, function, ends)) for messages, function in taken]
        for thread in threads:
            thread.start()
        self.stderr.write(f"consuming {', '.join(chosen)}")
        failures = [ends.get()]
        for messages, _function in taken:
            messages.stop()
        for thread in threads:
            thread.join()
        close()
        while not ends.empty():
            failures.append(ends.get())
        for failure in failures:
            if failure is not None:
                raise CommandError(str(failure)) from failure


def _chosen(destination: str | None, function: str | None) -> dict[str, Handler]:
    if destination is not None and function is not None:
        paths = {destination: function}
    else:
        paths = {key: path for key, path in consumers().items() if destination in (None, key)}
        if not paths and destination is not None:
            raise CommandError(f"QMQ has no consumer for {destination}: name its function, too")
        if not paths:
            raise CommandError("QMQ has no consumers: name a destination and a function")
    try:
        return {key: import_string(path) for key, path in paths.items()}
    except ImportError as error:
        raise CommandError(str(error)) from error


def _consume(messages: blocking.Subscription, function: Handler, ends: Ends) -> None:
    """One thread, until the subscription is stopped. One that fails stops all of them."""
    failure: BaseException | None = None
    try:
        with messages:
            for message in messages:
                _process(message, function)
    except BaseException as error:
        failure = error
    ends.put(failure)


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
