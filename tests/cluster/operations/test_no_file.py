"""A node without a disk, as a process: not one file is written, and a full memory is refused like a full disk."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster_client import Client, LostError
from tests.support.cluster_wait import eventually

CHANGES = "openat,open,creat,mkdir,mkdirat,mknod,mknodat,link,linkat,symlink,symlinkat,rename,renameat,renameat2,"
CHANGES += "unlink,unlinkat,truncate,bind"
"""System calls that could make, change or remove a file."""

READS = re.compile(r"open(at)?\((?!.*(O_WRONLY|O_RDWR|O_CREAT))")
HARMLESS = re.compile(r"open(at)?\(.*\"/dev/(null|urandom)\"|bind\(\d+, \{sa_family=AF_(INET6?|NETLINK)")
CALL = re.compile(r"^\d+ +(?P<call>\w+\(.*)$", re.MULTILINE)


@contextmanager
def serving(home: Path, *arguments: str, under: tuple[str, ...] = ()) -> Iterator[tuple[int, Client]]:
    """A process in the empty directory `home`, and a client of it. It is stopped at the end, in order."""
    command = [*under, sys.executable, "-m", "qmq", "serve", "--listen", "127.0.0.1:0", "--until-eof", *arguments]
    home.mkdir()
    # Python keeps compiled modules beside their source, whatever program it runs.
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
    with subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        port = 0
        while not port:
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
            found = re.search(r"serves STOMP on 127\.0\.0\.1:(\d+)", lines[-1])
            port = int(found[1]) if found else 0
        assert any("this node writes no file: everything is in memory" in line for line in lines)
        client = Client(("127.0.0.1", port))
        yield process.pid, client
        client.leave()
        _, rest = process.communicate("", timeout=60)
        assert process.returncode == 0, rest


def work(client: Client) -> None:
    """Something for each kind of file that another node has."""
    client.publish("/fanout/news", b"news")
    client.publish("/queue/jobs", *(b"job %d" % number for number in range(100)))
    jobs = client.subscribe("/queue/jobs", ack="client-individual")
    eventually(lambda: len(jobs) >= 50, "the jobs do not come")
    client.wait_receipts([client.acknowledge(one, receipt=True) for one in jobs[:50]])


def test_not_one_file_is_written(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if (
        strace is None
        or subprocess.run([strace, "-o", os.devnull, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("strace is missing, or may not trace")
    trace = tmp_path / "trace"
    under = (strace, "-f", "--seccomp-bpf", "-e", f"trace={CHANGES}", "-o", str(trace))

    with serving(tmp_path / "home", "--memory", under=under) as (_, client):
        work(client)

    calls = [found["call"] for found in CALL.finditer(trace.read_text())]
    assert any(one.startswith("bind(") for one in calls), "nothing was traced"
    assert [one for one in calls if not READS.match(one) and not HARMLESS.match(one)] == []


def test_its_directory_stays_empty_and_no_file_is_open_for_writing(tmp_path: Path) -> None:
    home = tmp_path / "home"

    with serving(home, "--memory") as (process, client):
        work(client)

        assert list(home.iterdir()) == written_by(process) == []
        conditions = client.status()["conditions"]

    assert [one["code"] for one in conditions] == ["no-disk"]
    assert list(home.iterdir()) == []


def written_by(process: int) -> list[str]:
    """The files that it has open for writing."""
    found = []
    for place in Path(f"/proc/{process}/fd").iterdir():
        flags = Path(f"/proc/{process}/fdinfo/{place.name}").read_text().split("flags:")[1].split()[0]
        if stat.S_ISREG(place.stat().st_mode) and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
            found.append(str(place.readlink()))
    return found


def test_a_full_memory_refuses_messages_until_consumers_have_made_room(tmp_path: Path) -> None:
    node_file = tmp_path / "node.toml"
    node_file.write_text('data = "memory"\n[storage]\nmemory_bytes_max = "64MiB"\n')
    body = b"x" * 500_000

    with serving(tmp_path / "home", "--config", str(node_file)) as (process, client):
        idle = resident_bytes(process)
        taken = 0
        with pytest.raises(LostError):
            while taken < 200:
                client.publish("/queue/jobs", body)
                taken += 1
        assert [one.headers["error-code"] for one in client.errors] == ["disk-full"]
        assert taken * len(body) > 16 << 20
        # The store, what of the queue is ready for consumers, and what the process itself has grown by.
        assert resident_bytes(process) - idle < 200 << 20

        consumer = Client(client.address)
        jobs = consumer.consume("/queue/jobs")
        eventually(lambda: len(jobs) >= taken, lambda: f"only {len(jobs)} of {taken} jobs come")
        eventually(lambda: not has_code(consumer, "disk-full"), "no room was made")
        consumer.publish("/queue/jobs", body)
        consumer.leave()


def has_code(client: Client, code: str) -> bool:
    return code in [one["code"] for one in client.status()["conditions"]]


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
