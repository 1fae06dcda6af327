"""`qmq demo` tells its story, ends at Ctrl-C, and counts what happened."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.cluster_mesh import ROOT

STEPS = ("a program sends to a queue", "kill -9 of node a", "node a is back", "traffic goes on until Ctrl-C")


def test_a_node_is_killed_and_comes_back_and_no_message_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "qmq", "demo", "--seconds", "2"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        lines = []
        try:
            for line in running.stdout:
                lines.append(line)
                if line.startswith(STEPS[-1]):
                    break
            running.send_signal(signal.SIGINT)
            lines += running.stdout.readlines()
            running.wait(60)
        finally:
            running.kill()

    printed = "".join(lines)
    assert running.returncode == 0, printed
    assert [step for line in lines for step in STEPS if line.startswith(step)] == list(STEPS), printed
    assert re.search(r"^console: http://127\.0\.0\.1:[0-9]+/", printed, re.MULTILINE)
    totals = re.fullmatch(
        r"([0-9]+) messages? confirmed, ([0-9]+) received, 0 lost, [0-9]+ delivered twice\n", lines[-1]
    )
    assert totals is not None, printed
    assert totals[1] == totals[2] != "0"
    assert list(tmp_path.iterdir()) == []
