"""Record what a real RabbitMQ does in each case of `cases`.

    apt-get install --no-install-recommends rabbitmq-server
    python -m tests.protocols.amqp.rabbitmq.record_rabbitmq

It starts the broker of the Debian package on loopback, in a directory that goes with it, and writes `rabbitmq.json`.
`test_as_rabbitmq.py` runs the same at a node.
"""

import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from benchmarks.others import OTHERS, started_in
from qmq.address import Address
from tests.protocols.amqp.rabbitmq.cases import CASES
from tests.protocols.amqp.rabbitmq.script import Script
from tests.protocols.amqp.rig import AmqpClient

RECORDED = Path(__file__).with_name("rabbitmq.json")
TRIES = 100
TRY_SECONDS = 0.3


class SocketPipe:
    """What `AmqpClient` needs of a pipe, at a real socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive_some(self, most: int) -> bytes:
        try:
            return bytes(await self._stream.receive_some(most))
        except trio.BrokenResourceError:
            return b""


def _prepare(place: Path, address: Address) -> tuple[Sequence[str], Mapping[str, str]]:
    command, environment = OTHERS[0].prepare(place, address)
    (place / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {address}\nlog.file.level = warning\n", "utf-8")
    (place / "plugins").write_text("[].\n", "utf-8")
    return command, environment


async def _record(address: Address) -> dict[str, Any]:
    async def connect() -> AmqpClient:
        for left in reversed(range(TRIES)):
            client = AmqpClient(SocketPipe(await trio.open_tcp_stream(*address)))  # type: ignore[arg-type]
            try:
                await client.log_in()
            except (AssertionError, trio.BrokenResourceError):
                # It listens before it is ready.
                if not left:
                    raise
                await trio.sleep(TRY_SECONDS)
                continue
            return client
        raise AssertionError("unreachable")

    outcomes: dict[str, Any] = {}
    for number, (name, case) in enumerate(CASES.items()):
        script = Script(connect, f"c{number}.")
        await script.begin()
        await case(script)
        outcomes[name] = script.said
        print(name, script.said, file=sys.stderr)
    return outcomes


def main() -> None:
    """Record everything."""
    other = dataclasses.replace(OTHERS[0], prepare=_prepare)
    if not other.is_installed():
        raise SystemExit(f"{other.name} is not installed: apt-get install --no-install-recommends {other.package}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        with started_in(Path(name), other, None) as (address, _, _):
            outcomes = trio.run(_record, address)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in outcomes.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n", "utf-8")
    print(f"{other.version}: {len(outcomes)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
