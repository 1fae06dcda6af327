"""Other brokers that Debian offers, started for a measurement: RabbitMQ with its STOMP plugin, and ActiveMQ.

    apt-get install --no-install-recommends rabbitmq-server activemq

Installing them is the person's; one that is not there is skipped with a line that says so. Each is started from the
files of its package, with a configuration and a data directory of its own that goes with it, on a free port of
loopback, all of it on one core; and ended by its process id. No service of the system is touched.

Durable means the same for all where they can: a message with a receipt is on the disk. What each does for that, and
what was set, is in `settings`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qmq.address import Address
from qmq.cli.launch import tail
from qmq.cli.throwaway import free_addresses

START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.2

RABBITMQ_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
ACTIVEMQ_HOME = Path("/usr/share/activemq")

RABBITMQ_CONFIG = """\
listeners.tcp = none
stomp.listeners.tcp.1 = {address}
log.file.level = warning
"""

ACTIVEMQ_CONFIG = """\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" useJmx="false" dataDirectory="{data}">
    <persistenceAdapter><kahaDB directory="{data}/kahadb"/></persistenceAdapter>
    <transportConnectors><transportConnector name="stomp" uri="stomp://{address}"/></transportConnectors>
  </broker>
</beans>
"""

Started = tuple[Sequence[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Other:
    """One kind of broker. `prepare` writes its configuration into a folder and gives its command and environment."""

    name: str
    package: str
    dialect: str
    options: str
    """Of `qmq bench`, to be let in."""
    settings: str
    is_installed: Callable[[], bool]
    prepare: Callable[[Path, Address], Started]

    @property
    def version(self) -> str:
        """As the package says; empty when it is not installed."""
        asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", self.package], capture_output=True, text=True)
        return asked.stdout.partition("+")[0] if asked.returncode == 0 else ""


def _prepare_rabbitmq(place: Path, address: Address) -> Started:
    (place / "rabbitmq.conf").write_text(RABBITMQ_CONFIG.format(address=address), "utf-8")
    (place / "plugins").write_text("[rabbitmq_stomp].\n", "utf-8")
    mapper, distribution = free_addresses(2)
    return [str(RABBITMQ_PROGRAM)], {
        "HOME": str(place),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
        "RABBITMQ_LOG_BASE": str(place / "log"),
        "RABBITMQ_DIST_PORT": str(distribution.port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper.port),
        # So that the script becomes the broker, and its process id is the broker's.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


def _prepare_activemq(place: Path, address: Address) -> Started:
    data = place / "data"
    (place / "activemq.xml").write_text(ACTIVEMQ_CONFIG.format(address=address, data=data), "utf-8")
    command = ["java", "-Xms512M", "-Xmx1G", f"-Dactivemq.home={ACTIVEMQ_HOME}", f"-Dactivemq.base={place}"]
    command += [f"-Dactivemq.data={data}", f"-Djava.io.tmpdir={place}", "-jar", f"{ACTIVEMQ_HOME}/bin/activemq.jar"]
    return [*command, "start", f"xbean:file:{place}/activemq.xml"], {}


RABBITMQ: Final = Other(
    "RabbitMQ",
    "rabbitmq-server",
    "rabbitmq",
    "--login guest --passcode guest",
    "STOMP plugin, classic durable queue, `persistent:true`, a publisher confirm behind each receipt; defaults",
    RABBITMQ_PROGRAM.exists,
    _prepare_rabbitmq,
)

OTHERS: Sequence[Other] = (
    RABBITMQ,
    Other(
        "ActiveMQ",
        "activemq",
        "activemq",
        "",
        "KahaDB, `journalDiskSyncStrategy=always` as by default, `persistent:true`; heap 512 MiB to 1 GiB",
        lambda: (ACTIVEMQ_HOME / "bin" / "activemq.jar").exists() and shutil.which("java") is not None,
        _prepare_activemq,
    ),
)


@contextlib.contextmanager
def started(other: Other, core: int | None, folder: Path | None = None) -> Iterator[tuple[Address, int]]:
    """(Where it listens, its process id). Raises OSError with the end of its log when it does not start."""
    with tempfile.TemporaryDirectory(prefix="qmq-bench-", dir=folder, ignore_cleanup_errors=True) as name:
        with started_in(Path(name), other, core) as (address, pid, _):
            yield address, pid


@contextlib.contextmanager
def started_in(place: Path, other: Other, core: int | None) -> Iterator[tuple[Address, int, Mapping[str, str]]]:
    """As `started`, with its files in `place`, and the environment that its own commands need."""
    (address,) = free_addresses(1)
    with contextlib.ExitStack() as stack:
        command, environment = other.prepare(place, address)
        if "ERL_EPMD_PORT" in environment:
            stack.enter_context(_port_mapper(environment["ERL_EPMD_PORT"]))
        process = stack.enter_context(_running(command, environment, place, core))
        deadline = time.monotonic() + START_SECONDS
        while not _listens(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"{other.name} did not start:\n{tail(place / 'output')}")
            time.sleep(POLL_SECONDS)
        yield address, process.pid, environment


@contextlib.contextmanager
def _port_mapper(port: str) -> Iterator[None]:
    """Erlang's, on loopback: one of our own, because the one that a node starts for itself would stay."""
    process = subprocess.Popen(["epmd", "-address", "127.0.0.1", "-port", port], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], place: Path, core: int | None
) -> Iterator["subprocess.Popen[bytes]"]:
    pinned = command if core is None else ["taskset", "-c", str(core), *command]
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            pinned,
            env={**os.environ, **environment},
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(address: Address) -> bool:
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return False
    return True


def resident_kib(pid: int) -> int:
    """What a process has in memory."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1])
