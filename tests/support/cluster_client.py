"""A client as users have it: stomp.py from PyPI, with what it hears kept for tests to look at.

Nothing of QMQ's own codec is used here. Every wait is bounded and ends in LostError, which tells what the node said
last. Listener calls come on stomp.py's thread, one per connection; everything they change is appended or set once,
and `_heard` wakes whoever waits.

Surprising: one mistake of stomp.py is corrected (`_strip_heartbeats`). With it, what the client has thrown away looks
like what a node has lost.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import stomp

CONNECTIONS: Mapping[str, Callable[..., Any]] = {
    "1.0": stomp.Connection10,
    "1.1": stomp.Connection11,
    "1.2": stomp.Connection12,
}
ANSWER_SECONDS = 15.0
ALL_ANSWERS_SECONDS = 60.0
"""For the receipts of many messages, on a slow disk."""
HEARTBEAT = b"\n"

# It warns of every refused connection, and here nodes are down on purpose; what matters is raised as LostError.
logging.getLogger("stomp.py").setLevel(logging.CRITICAL)


class LostError(Exception):
    """The connection ended, was refused, or the node did not answer in time."""


@dataclass(frozen=True, slots=True)
class Message:
    """A MESSAGE as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["message-id"]

    @property
    def is_redelivered(self) -> bool:
        return self.headers.get("redelivered") == "true"

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery, which carries no header."""
        return int(self.headers.get("delivery-count", "1"))


OnMessage = Callable[["Client", Message], None]
OnReceipt = Callable[[Mapping[str, str]], None]


class Client(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """One connection. What comes stands in `messages` by subscription id, `receipts` and `errors`."""

    def __init__(
        self,
        address: tuple[str, int],
        version: str = "1.2",
        *,
        login: tuple[str, str] | None = None,
        authority: Path | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Connect and log in. Raises LostError when nobody answers or the node refuses.

        `login` is a name and its password; with `authority`, a file of certificates, TLS is spoken; `headers` go into
        CONNECT. `options` are stomp.py's.
        """
        self.address = (address[0], address[1])
        self.version = version
        self._speaks_tls = authority is not None
        self.messages: dict[str, list[Message]] = {}
        self.receipts: dict[str, Mapping[str, str]] = {}
        self.errors: list[Message] = []
        self.on_answer: OnReceipt | None = None
        """Called with each receipt's headers, on stomp.py's thread."""
        self.ended = threading.Event()
        self._connected = threading.Event()
        self._heard = threading.Condition()
        self._handlers: dict[str, OnMessage] = {}
        self._numbers = count(1)
        self._connection = CONNECTIONS[version](
            [self.address],
            auto_decode=False,
            reconnect_attempts_max=1,
            try_loopback_connect=False,
            reconnect_sleep_initial=0.0,
            **options,
        )
        self._connection.set_listener("tests", self)
        _strip_heartbeats(self._connection.transport)
        if authority is not None:
            self._connection.set_ssl(for_hosts=[self.address], ca_certs=str(authority))
        try:
            self._connection.connect(*(login or ()), wait=False, headers=dict(headers or {}))
        except (stomp.exception.ConnectFailedException, stomp.exception.NotConnectedException, OSError) as error:
            self.drop()
            raise LostError(f"{self._place}: cannot connect: {error!r}") from error
        try:
            self._wait(self._connected.is_set, "CONNECTED")
        except LostError:
            self.drop()
            raise

    # What stomp.py calls, on its thread

    def on_connected(self, frame: Any) -> None:
        with self._heard:
            self._connected.set()
            self._heard.notify_all()

    def on_message(self, frame: Any) -> None:
        message = Message(frame.headers, frame.body)
        # A 1.0 client may subscribe without an id, and its messages then name no subscription.
        subscription = frame.headers.get("subscription", "")
        handler = self._handlers.get(subscription)
        with self._heard:
            self.messages.setdefault(subscription, []).append(message)
            self._heard.notify_all()
        if handler is not None:
            handler(self, message)

    def on_receipt(self, frame: Any) -> None:
        with self._heard:
            self.receipts[frame.headers["receipt-id"]] = frame.headers
            self._heard.notify_all()
        if self.on_answer is not None:
            self.on_answer(frame.headers)

    def on_error(self, frame: Any) -> None:
        with self._heard:
            self.errors.append(Message(frame.headers, frame.body))
            self._heard.notify_all()

    def on_disconnected(self) -> None:
        with self._heard:
            self.ended.set()
            self._heard.notify_all()

    # What tests call

    def send(self, destination: str, body: bytes, *, receipt: bool = False, **headers: str) -> str:
        """SEND; returns the receipt id to wait for, "" without one."""
        receipt_id = self._new_receipt() if receipt else ""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if receipt:
            given["receipt"] = receipt_id
        self._say(self._connection.send, destination, body, headers=given)
        return receipt_id

    def publish(self, destination: str, *bodies: bytes, **headers: str) -> None:
        """SEND each with a receipt and wait until all are receipted."""
        receipts = [self.send(destination, body, receipt=True, **headers) for body in bodies]
        self.wait_receipts(receipts, ALL_ANSWERS_SECONDS)

    def subscribe(
        self,
        destination: str,
        subscription: str = "s",
        *,
        ack: str = "auto",
        on_message: OnMessage | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[Message]:
        """SUBSCRIBE, and wait until the node has done it. Returns the list that its messages will be in."""
        messages = self.messages.setdefault(subscription, [])
        if on_message is not None:
            self._handlers[subscription] = on_message
        receipt = self._new_receipt()
        given = {**(headers or {}), "receipt": receipt}
        self._say(self._connection.subscribe, destination, subscription, ack=ack, headers=given)
        self.wait_receipts([receipt])
        return messages

    def consume(self, destination: str, subscription: str = "s", prefetch: int = 100) -> list[Message]:
        """Subscribe and acknowledge each message by itself as soon as it is here."""
        return self.subscribe(
            destination,
            subscription,
            ack="client-individual",
            on_message=Client.acknowledge,
            headers={"prefetch-count": str(prefetch)},
        )

    def unsubscribe(self, subscription: str = "s") -> None:
        receipt = self._new_receipt()
        self._say(self._connection.unsubscribe, subscription, headers={"receipt": receipt})
        self.wait_receipts([receipt])

    def acknowledge(
        self, message: Message, *, receipt: bool = False, transaction: str | None = None, **headers: str
    ) -> str:
        """ACK; returns the receipt id to wait for, "" without one. `headers`, of 1.2 only, have `_` for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._settle(self._ack_with if given else self._connection.ack, message, receipt, transaction, given)

    def refuse(self, message: Message, *, receipt: bool = False, transaction: str | None = None, **headers: str) -> str:
        """NACK, as `acknowledge`."""
        return self._settle(self._connection.nack, message, receipt, transaction, headers)

    def begin(self, transaction: str) -> None:
        self._say(self._connection.begin, transaction)

    def commit(self, transaction: str, *, wait: bool = True) -> None:
        """COMMIT and wait for its receipt, which `on_message` must not do."""
        if not wait:
            self._say(self._connection.commit, transaction)
            return
        receipt = self._new_receipt()
        self._say(self._connection.commit, transaction, headers={"receipt": receipt})
        self.wait_receipts([receipt])

    def abort(self, transaction: str) -> None:
        """ABORT and wait for its receipt."""
        receipt = self._new_receipt()
        self._say(self._connection.abort, transaction, headers={"receipt": receipt})
        self.wait_receipts([receipt])

    def request(self, destination: str, seconds: float = ANSWER_SECONDS) -> Mapping[str, str]:
        """An empty SEND to a control destination; the headers of its RECEIPT."""
        receipt = self.send(destination, b"", receipt=True)
        self.wait_receipts([receipt], seconds)
        return self.receipts[receipt]

    def status(self, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """What the node says about itself."""
        facts = json.loads(self.request("/control/status", seconds)["status"])
        assert isinstance(facts, dict)
        return facts

    def wait_receipts(self, receipts: list[str], seconds: float = ANSWER_SECONDS) -> None:
        """Return once all of them are here. Raises LostError when that cannot come true any more."""
        left = receipts[::-1]

        def all_here() -> bool:
            while left and left[-1] in self.receipts:  # they come in order, so each wake-up looks at what is new
                left.pop()
            return not left

        self._wait(all_here, f"{len(receipts)} receipts", seconds)

    def leave(self) -> None:
        """DISCONNECT, wait for its receipt, and close."""
        if not self.ended.is_set():
            self._say(self._connection.disconnect, self._new_receipt())
            self._wait(self.ended.is_set, "the receipt of DISCONNECT")
        self.drop()

    def drop(self) -> None:
        """Close the socket without a word, as a client that dies. Idempotent."""
        transport = self._connection.transport
        if transport.socket is not None:
            # Its own thread may take the socket away while it is being closed here; then it closes it.
            with contextlib.suppress(AttributeError):
                transport.disconnect_socket()
        self.ended.set()
        # With TLS its thread waits on sockets that were taken away, for ever; it is a daemon.
        if transport.io_thread is not None and not self._speaks_tls:
            transport.io_thread.join(ANSWER_SECONDS)

    @property
    def said_last(self) -> str:
        """The node's last ERROR, "" when there was none."""
        return f"{self.errors[-1].headers.get('message')!r}" if self.errors else ""

    @property
    def _place(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _settle(
        self,
        call: Callable[..., Any],
        message: Message,
        receipt: bool,
        transaction: str | None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        receipt_id = self._new_receipt() if receipt else ""
        if self.version == "1.2":
            names: tuple[str, ...] = (message.headers["ack"],)
        elif self.version == "1.1":
            names = (message.id, message.headers["subscription"])
        else:
            names = (message.id,)
        self._say(call, *names, transaction=transaction, receipt=receipt_id or None, **(headers or {}))
        return receipt_id

    def _ack_with(self, id: str, transaction: str | None, receipt: str | None, **headers: str) -> None:
        """stomp.py's own takes no headers."""
        known = {"id": id, "transaction": transaction, "receipt": receipt}
        self._connection.send_frame("ACK", {name: value for name, value in known.items() if value} | headers)

    def _new_receipt(self) -> str:
        return f"r{next(self._numbers)}"

    def _say(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            call(*arguments, **named)
        except (stomp.exception.NotConnectedException, OSError) as error:
            raise LostError(f"{self._place}: cannot send: {error!r} {self.said_last}") from error
        except AttributeError as error:
            # The thread that reads takes the socket away when the connection ends, even between a check and its use.
            if self._connection.transport.socket is not None:
                raise
            raise LostError(f"{self._place}: cannot send: the connection has ended {self.said_last}") from error

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = ANSWER_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        with self._heard:
            while not condition():
                # An ERROR ends a connection; with TLS stomp.py does not notice that the node has closed it.
                if self.ended.is_set() or self.errors:
                    raise LostError(f"{self._place}: connection ended before {what} {self.said_last}")
                if time.monotonic() > deadline:
                    raise LostError(f"{self._place}: no {what} within {seconds:g} s {self.said_last}")
                self._heard.wait(0.2)


def _strip_heartbeats(transport: Any) -> None:
    """Pass stomp.py each frame without the EOLs before it.

    If it gets two or more heartbeats in one read, it takes them for a part of the next frame, and drops that frame
    without a word (9.0.0). A client that a busy machine holds up for a second gets them so.
    """
    receive = transport.receive
    is_done = True  # with what it has got before, but for what is in its buffer

    def receive_stripped() -> Any:
        nonlocal is_done
        chunk = receive()
        if not chunk:
            return chunk
        begins_frame = is_done and not transport._BaseTransport__recvbuf
        if begins_frame:
            chunk = chunk.lstrip(b"\r\n") or HEARTBEAT
        is_done = b"\0" in chunk or (begins_frame and chunk == HEARTBEAT)
        return chunk

    transport.receive = receive_stripped
