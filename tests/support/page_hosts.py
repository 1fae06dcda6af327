"""The machines of docs/first-mesh.md, as folders of this one: its commands run here as they are written.

What is not real are `ssh`, `rsync`, `systemctl` and `chown`: they run what they are given for such a folder. The nodes,
their files, certificates and commands are real, with free ports in place of the usual ones.
"""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from qmq.testing.ports import free_ports

from .cluster_mesh import ROOT

HOSTS: Final = {
    "10.0.0.1": "127.0.0.2",
    "10.0.0.2": "127.0.0.3",
    "10.0.0.3": "127.0.0.4",
    "10.0.0.4": "127.0.0.5",
    "10.0.0.5": "127.0.0.6",
    "10.0.1.1": "127.0.1.2",
    "10.0.1.2": "127.0.1.3",
    "10.0.1.3": "127.0.1.4",
}
STAND_INS: Final = {
    "qmq": 'exec "$PYTHON" -m qmq "$@"',
    # rsync -a --chown=… FROM root@HOST:/etc/qmq/
    "rsync": 'to=${4#root@}; mkdir -p "$HOSTS/${to%%:*}${to#*:}" && cp -a "$3." "$HOSTS/${to%%:*}${to#*:}"',
    # ssh root@HOST COMMAND, which has no variables of the operator
    "ssh": "export HOST=$HOSTS/${1#root@}; shift; unset ${!QMQ_@}; words=${*//\\/var\\/lib\\/qmq/$HOST\\/data}; "
    'words=${words//\\/opt\\/qmq\\/bin\\/pip/true}; bash -c "${words//\\/opt\\/qmq\\/bin\\/qmq/qmq}"',
    "chown": "true",
    "systemctl": """
start() {
  words=$(sed -n 's/^ExecStart=.opt.qmq.bin.//p' "$HOST/etc/qmq/qmq.service")
  words=${words//\\/etc\\/qmq/$HOST\\/etc\\/qmq}; words=${words//\\/var\\/lib\\/qmq/$HOST\\/data}
  "$PYTHON" - "$HOST" $words <<'PY'
import os, socket, subprocess, sys
host, *words = sys.argv[1:]
listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening.bind("\\0" + host)
listening.settimeout(120)
log = open(host + "/log", "ab")
environment = {**os.environ, "NOTIFY_SOCKET": "@" + host}
node = subprocess.Popen([*words], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
open(host + "/pid", "w").write(str(node.pid))
assert listening.recv(100) == b"READY=1"
PY
}
stop() { kill -TERM $(cat "$HOST/pid") 2>/dev/null; while kill -0 $(cat "$HOST/pid") 2>/dev/null; do sleep 0.1; done; }
case $1 in
  enable|start) start;;
  restart) stop; start;;
  reload) kill -HUP $(cat "$HOST/pid");;
  kill) kill -KILL $(cat "$HOST/pid");;
  stop) stop;;
  *) echo "systemctl $*: no stand-in" >&2; exit 1;;
esac
""",
}


def section(page: str, heading: str) -> str:
    """The commands in the section of a page whose heading or number begins so. They are those of its bash blocks."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    parts = re.split(r"^(?:## (?=\w)|(?=\d+\. \*\*))", text, flags=re.MULTILINE)
    (found,) = [part for part in parts if part.startswith(heading)]
    blocks = re.findall(r"^( *)```bash\n(.*?)^\1```", found, re.DOTALL | re.MULTILINE)
    assert blocks, f"{page} has no commands in {heading}"
    return "".join(re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in blocks)


def typed(commands: str) -> list[str]:
    """One for each command that a person types: a loop is as many as it has inside."""
    whole = re.sub(r"(\\\n|(?<=\|)\n|(?<=&&)\n) *", " ", commands)
    return [line for line in whole.splitlines() if line and not re.fullmatch(r"for \w+ in .*; do|done", line)]


class PageHosts:
    """An operator's machine, the folder `operator`, and hosts beside it. Used in a `with`, which ends all processes."""

    def __init__(self, folder: Path) -> None:
        self.hosts = folder / "hosts"
        self.operator = folder / "operator"
        commands = folder / "bin"
        for made in (self.hosts, self.operator, commands):
            made.mkdir()
        (self.port, self.prometheus_port) = free_ports(2)
        prometheus = f'exec /usr/bin/prometheus "$@" --web.listen-address=127.0.0.1:{self.prometheus_port}'
        for name, text in {**STAND_INS, "prometheus": prometheus}.items():
            (commands / name).write_text(f"#!/bin/bash\n{text}\n", "utf-8")
            (commands / name).chmod(stat.S_IRWXU)
        paths = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("QMQ_")}
        self._environment = {**inherited, **paths, "HOSTS": str(self.hosts), "PYTHON": sys.executable}
        self._sessions: list[int] = []
        self._exports = ""
        self.printed = ""

    def __enter__(self) -> "PageHosts":
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)

    def address(self, host: str) -> str:
        """Where the host with this address of the page serves STOMP."""
        return f"{HOSTS[host]}:{self.port}"

    def here(self, commands: str) -> str:
        """The commands with the addresses of this machine: STOMP at `port`, the others at their distance from it."""
        for address, ours in HOSTS.items():
            commands = re.sub(rf"(=){re.escape(address)}\b(?!:)", rf"\g<1>{ours}:{self.port}", commands)
            commands = commands.replace(f"{address}:61613", f"{ours}:{self.port}")
            commands = commands.replace(f"{address}:61680", f"{ours}:{self.port + 67}")
        assert "10.0." not in commands
        return commands.replace("localhost:9090", f"127.0.0.1:{self.prometheus_port}")

    def run(self, sections: Iterable[str], seconds: float = 600) -> str:
        """Run commands of the page as one script, in the shell of the operator; returns what they print."""
        commands = self.here("".join(sections))
        self._exports += "".join(re.findall(r"^export (?:.*\\\n)*.*\n", commands, re.MULTILINE))
        script = f"set -eo pipefail\n{self._exports}{commands}"
        output_file = self.operator.parent / "output"
        with output_file.open("w") as output:
            # A session of its own: when a command hangs, the nodes end with it.
            running = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.operator,
                env=self._environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            self._sessions.append(running.pid)
            code = running.wait(timeout=seconds)
        printed = output_file.read_text("utf-8")
        self.printed += printed
        assert code == 0, f"{printed}\n{self.logs()}"
        return printed

    def logs(self) -> str:
        """The ends of all logs."""
        files = sorted(self.hosts.glob("*/log"))
        return "".join(f"{log.parent.name}: {log.read_text('utf-8')[-2000:]}\n" for log in files)
