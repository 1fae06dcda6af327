"""A PostgreSQL server for the tests that need one, started by them and gone with them; skipped where there is none.

It listens on a socket in its own directory only, so nothing else can meet it, and does without all that it does for
disks, replicas and large tables: what it promises about them is not what is tested here.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEBIAN = Path("/usr/lib/postgresql")
START_SECONDS = 60
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "50",
    "shared_buffers": "32MB",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "jit": "off",
}


def find_programs() -> Path:
    """Where initdb and postgres are. Skips the test when they are nowhere."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else []
    places += sorted((path / "bin" for path in DEBIAN.glob("*")), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    pytest.skip("no PostgreSQL server is installed here (initdb, postgres)")


def unprivileged() -> int | None:
    """Whom the server has to run as: it refuses to be root. None when we are somebody else already."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is nobody else")


class Server:
    """A running server. `url` leads to a database of it as its superuser."""

    def __init__(self, programs: Path, directory: Path, user: int | None) -> None:
        self.directory = directory
        self.url = f"postgresql:///postgres?host={directory}&user=qmq"
        self._programs = programs
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0

    def start(self) -> None:
        """Nothing if it runs. Raises AssertionError with the server's own words when it does not come up."""
        if self._process is not None:
            return
        log = (self.directory / "log").open("ab")
        command = [self._programs / "postgres", "-D", self.directory / "data", "-k", self.directory]
        for name, value in SETTINGS.items():
            command += ["-c", f"{name}={value}"]  # type: ignore[list-item]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user, cwd=self.directory)
        log.close()
        self._wait()

    def _wait(self) -> None:
        """Until it lets somebody in."""
        import psycopg

        assert self._process is not None
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                ended = self._process.poll()
                assert ended is None, f"PostgreSQL ended with {ended}:\n{(self.directory / 'log').read_text()}"

    def stop(self) -> None:
        """At once: whoever is connected is thrown out."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_SECONDS)
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It hangs: its host answers, and none of its processes does."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        pids = [self._process.pid, *map(int, children)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def fresh_schema(self) -> str:
        """A URL whose tables nobody has used yet."""
        import psycopg

        self._schemas += 1
        name = f"test_{self._schemas}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"


@contextmanager
def running_server() -> Iterator[Server]:
    """A server on an empty directory. Skips where that is not possible."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'qmq[postgres]')")
    programs, user = find_programs(), unprivileged()
    directory = Path(tempfile.mkdtemp(prefix="qmq-pg-"))
    try:
        if user is not None:
            os.chown(directory, user, -1)
        made = subprocess.run(
            [programs / "initdb", "-D", directory / "data", "-U", "qmq", "-A", "trust", "--no-sync", "-E", "UTF8"],
            capture_output=True,
            user=user,
            cwd=directory,
        )
        assert made.returncode == 0, made.stderr.decode()
        server = Server(programs, directory, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
