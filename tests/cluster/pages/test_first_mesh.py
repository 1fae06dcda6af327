"""The commands of "three machines in fifteen minutes" work as they are written, on addresses of this machine.

Hosts are folders here. What is not real are `ssh`, `rsync` and `systemctl`: they run what they are given for such a
folder. The nodes, their files, certificates and commands are real, with free ports in place of the usual ones.
"""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qmq.testing.ports import free_ports
from tests.support.cluster_mesh import ROOT

PAGE = (ROOT / "docs/first-mesh.md").read_text("utf-8")
HOSTS = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4", "d": "127.0.0.5", "e": "127.0.0.6"}

STAND_INS = {
    "qmq": 'exec "$PYTHON" -m qmq "$@"',
    # rsync -a --chown=… FROM root@HOST:/etc/qmq/
    "rsync": 'to=${4#root@}; mkdir -p "$HOSTS/${to%%:*}${to#*:}" && cp -a "$3." "$HOSTS/${to%%:*}${to#*:}"',
    # ssh root@HOST COMMAND
    "ssh": "export HOST=$HOSTS/${1#root@}; shift; words=${*//\\/var\\/lib\\/qmq/$HOST\\/data}; "
    'bash -c "${words//\\/opt\\/qmq\\/bin\\/pip/true}"',
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
for key in [key for key in environment if key.startswith("QMQ_")]:
    del environment[key]
node = subprocess.Popen([*words], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
open(host + "/pid", "w").write(str(node.pid))
assert listening.recv(100) == b"READY=1"
PY
}
stop() { kill -TERM $(cat "$HOST/pid") 2>/dev/null; while kill -0 $(cat "$HOST/pid") 2>/dev/null; do sleep 0.1; done; }
case $1 in
  enable) start;;
  restart) stop; start;;
  reload) kill -HUP $(cat "$HOST/pid");;
  kill) kill -KILL $(cat "$HOST/pid");;
  stop) stop;;
  *) echo "systemctl $*: no stand-in" >&2; exit 1;;
esac
""",
}


def script(port: int) -> str:
    """All blocks of the page, with our addresses: STOMP at `port`, the others at their distance from it."""
    text = "set -e\n" + "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    for number, address in enumerate(HOSTS.values(), start=1):
        text = re.sub(rf"(=)10\.0\.0\.{number}\b(?!:)", rf"\g<1>{address}:{port}", text)
        text = text.replace(f"10.0.0.{number}:61613", f"{address}:{port}")
        text = text.replace(f"10.0.0.{number}:61680", f"{address}:{port + 67}")
    assert "10.0.0" not in text
    return text


@pytest.mark.timeout(900)
def test_the_commands_of_the_page_make_a_mesh_upgrade_it_grow_it_and_replace_a_machine(tmp_path: Path) -> None:
    commands, hosts = tmp_path / "bin", tmp_path / "hosts"
    commands.mkdir()
    hosts.mkdir()
    for name, text in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n", "utf-8")
        (commands / name).chmod(stat.S_IRWXU)
    paths = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **paths, "HOSTS": str(hosts), "PYTHON": sys.executable}
    (port,) = free_ports(1)

    # A session of its own: when a command hangs, the nodes end with it.
    command = ["bash", "-c", script(port)]
    output_file = tmp_path / "output"
    with output_file.open("w") as output:
        running = subprocess.Popen(
            command, cwd=tmp_path, env=environment, start_new_session=True, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = running.wait(timeout=840)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    printed = output_file.read_text("utf-8")

    logs = "".join(f"{log.parent.name}: {log.read_text('utf-8')[-2000:]}\n" for log in sorted(hosts.glob("*/log")))
    assert code == 0, f"{printed}\n{logs}"
    assert "/queue/hello  hello, mesh" in printed
    assert "qmq_up" in printed or "# TYPE qmq_" in printed
    last = printed.rpartition("NODE ")[2]
    assert [line.split()[0] for line in last.splitlines()[1:6]] == list("abcde"), printed
    assert "none ends within 30 days" in printed
