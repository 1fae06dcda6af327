"""`qmq send`: send messages and wait for their receipts."""

import os
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from typing import BinaryIO

import click

from .client import CommandClient, Endpoint
from .options import client_options, header_option, json_option, keep_own_headers
from .output import Failed, print_json

RECEIPT_WINDOW = 256
"""Messages sent and not yet confirmed: enough for the node to record many with one fsync."""

WRITE_BYTES = 64 << 10
"""Frames are collected up to this size before they are written."""

OWN_HEADERS = ("destination", "receipt")


@click.command
@click.argument("destination")
@click.argument("body", required=False)
@header_option()
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Number of times to send the body."
)
@click.option(
    "--lines", type=click.File("rb"), help="Send each line of this file as a message, without its newline (LF)."
)
@click.option(
    "--receipt/--no-receipt", default=True, show_default=True, help="Wait until the node has confirmed every message."
)
@client_options
@json_option
def send(
    destination: str,
    body: str | None,
    headers: list[tuple[str, str]],
    count: int,
    lines: BinaryIO | None,
    receipt: bool,
    node: Endpoint,
    as_json: bool,
) -> None:
    """Send messages to a destination.

    BODY is the text of the message. With -, standard input is the body, byte for byte. Without BODY it is empty.

    \b
      qmq send /queue/jobs "resize 17"
      qmq send /topic/news - < article.html
      qmq send /fanout/log --lines notes.txt --at 127.0.0.1:61614
    """
    if lines is not None and (body is not None or count != 1):
        raise click.UsageError("--lines excludes BODY and --count")
    keep_own_headers(headers, OWN_HEADERS)
    bodies = _lines(lines) if lines is not None else repeat(_body(body), count)
    window = SendWindow(destination, headers, receipt)
    started = time.monotonic()
    with node.connect() as client:
        try:
            for one in bodies:
                window.send(client, one)
            window.finish(client)
        except Failed as failure:
            raise Failed(f"{failure.message}; {window.summary()}") from failure
    if as_json:
        seconds = round(time.monotonic() - started, 6)
        counts = {"sent": window.sent, "receipted": window.confirmed, "copies": window.copies}
        print_json({"destination": destination, **counts, "seconds": seconds})
    else:
        click.echo(window.summary())


class SendWindow:
    """Sends messages, with at most RECEIPT_WINDOW of them unconfirmed, and counts both."""

    def __init__(self, destination: str, headers: list[tuple[str, str]], needs_receipts: bool) -> None:
        self.destination = destination
        self.headers = [("destination", destination), *headers]
        self.needs_receipts = needs_receipts
        self.sent = 0
        self.confirmed = 0
        self.copies: int | None = None
        """The smallest number of disks that a receipt named; None if no receipt named one."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unanswered: set[str] = set()

    def send(self, client: CommandClient, body: bytes) -> None:
        """Add one message. It is written at once or together with the next ones."""
        headers = self.headers
        if self.needs_receipts:
            receipt = client.next_receipt()
            headers = [*headers, ("receipt", receipt)]
            self._unanswered.add(receipt)
        frame = client.frame("SEND", headers, body)
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._pending_bytes >= WRITE_BYTES or len(self._unanswered) >= RECEIPT_WINDOW:
            self._write(client)
        if len(self._unanswered) >= RECEIPT_WINDOW:
            self._wait(client, RECEIPT_WINDOW // 2)

    def finish(self, client: CommandClient) -> None:
        """Write the rest, wait for every receipt, and disconnect."""
        self._write(client)
        self._wait(client, 0)
        client.leave()

    def summary(self) -> str:
        messages = f"{self.sent} message{'' if self.sent == 1 else 's'}"
        if not self.needs_receipts:
            return f"sent {messages} to {self.destination}, no receipts requested"
        copies = "" if self.copies is None else f", copies {self.copies}"
        return f"sent {messages} to {self.destination}, {self.confirmed} confirmed{copies}"

    def _write(self, client: CommandClient) -> None:
        client.write(b"".join(self._pending))
        self.sent += len(self._pending)
        self._pending.clear()
        self._pending_bytes = 0

    def _wait(self, client: CommandClient, unanswered_max: int) -> None:
        while len(self._unanswered) > unanswered_max:
            frame = client.receive(client.timeout_seconds)
            if frame is None:
                raise Failed(f"{client.address}: no receipt within {client.timeout_seconds:g} s")
            receipt = frame.head.headers.get("receipt-id", "")
            if frame.head.command == "RECEIPT" and receipt in self._unanswered:
                self._unanswered.remove(receipt)
                self.confirmed += 1
                copies = frame.head.headers.get("copies", "")
                if copies.isdecimal():
                    self.copies = int(copies) if self.copies is None else min(self.copies, int(copies))


def _body(text: str | None) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(text or "")  # the bytes that the shell passed


def _lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        yield line.removesuffix(b"\n")  # the CR of a CRLF stays, so that the file can be restored byte for byte
