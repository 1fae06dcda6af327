"""`qmq listen`: subscribe and print.

A message is acknowledged only after it is printed and flushed. So if a pipe breaks, its reader loses nothing: the node
still has all unacknowledged messages.
"""

import base64
import sys
import time

import click

from ..wire.stomp import Frame
from .client import Endpoint
from .options import SECONDS, client_options, header_option, json_option, keep_own_headers
from .output import Failed, body_text, print_json, printable

ACK_MODES = ("auto", "client", "client-individual")
SUBSCRIPTION = "0"
OWN_HEADERS = ("id", "destination", "ack")


@click.command
@click.argument("destination")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of messages.")
@click.option("--timeout", "timeout_seconds", type=SECONDS, metavar="SECONDS", help="Stop after this time.")
@click.option(
    "--ack",
    type=click.Choice(ACK_MODES),
    default="client-individual",
    show_default=True,
    help="auto: the node settles a message when it is sent. Otherwise each is acknowledged once it is printed.",
)
@header_option()
@click.option("--body-only", is_flag=True, help="Print only the bodies, byte for byte, each with a line end.")
@client_options
@json_option
def listen(
    destination: str,
    count: int | None,
    timeout_seconds: float | None,
    ack: str,
    headers: list[tuple[str, str]],
    body_only: bool,
    node: Endpoint,
    as_json: bool,
) -> None:
    """Print the messages of a destination as they arrive.

    Stops at Ctrl-C, after --count messages, or after --timeout seconds. Exit code 1 if --timeout ends before --count
    is reached.

    \b
      qmq listen /queue/jobs --count 1
      qmq listen /topic/news --at 127.0.0.1:61615 --json
      qmq listen /fanout/log --header x-stream-offset:first --body-only > log
    """
    if body_only and as_json:
        raise click.UsageError("--body-only and --json exclude each other")
    keep_own_headers(headers, OWN_HEADERS)
    subscribe = [("id", SUBSCRIPTION), ("destination", destination), ("ack", ack), *headers]
    if count is not None and not any(name == "prefetch-count" for name, _ in headers):
        subscribe.append(("prefetch-count", str(min(count, 100))))  # more would only be requeued
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    printed = 0
    is_interrupted = False
    with node.connect() as client:
        client.write(client.frame("SUBSCRIBE", subscribe))
        try:
            while count is None or printed < count:
                left = None if deadline is None else deadline - time.monotonic()
                # A busy topic always has a message here, so the client alone would never reach the timeout.
                frame = None if left is not None and left <= 0 else client.receive(left)
                if frame is None:
                    break
                if frame.head.command != "MESSAGE":
                    continue
                show(frame, body_only=body_only, as_json=as_json)
                printed += 1
                if ack != "auto":
                    client.write(client.frame("ACK", [("id", frame.head.headers.get("ack", ""))]))
            client.leave()  # its receipt confirms that the acknowledgements have arrived
        except KeyboardInterrupt:
            is_interrupted = True
            client.leave()
    if count is not None and printed < count:
        end = "until Ctrl-C" if is_interrupted else f"within {timeout_seconds:g} s"
        raise Failed(f"{printed} of {count} messages {end}")


def show(frame: Frame, *, body_only: bool, as_json: bool) -> None:
    """Print one MESSAGE, flushed."""
    headers = dict(frame.head.headers)
    if body_only:
        sys.stdout.buffer.write(frame.body + b"\n")
        sys.stdout.buffer.flush()
    elif as_json:
        destination = headers.pop("destination", "")
        print_json({"destination": destination, "headers": headers, **json_body(frame.body)})
    else:
        again = "  (redelivered)" if headers.get("redelivered") == "true" else ""
        click.echo(f"{printable(headers.get('destination', ''))}{again}  {body_text(frame.body)}")


def json_body(body: bytes) -> dict[str, str]:
    """`body` as text if it is UTF-8, else `body-base64`: the original bytes can always be restored."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body-base64": base64.b64encode(body).decode("ascii")}
