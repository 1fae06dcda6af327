"""The codec of qmq.js, by Node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest


def test_frames() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js (Debian: apt install nodejs)")
    run = subprocess.run(
        [node, "--test", str(Path(__file__).with_name("frames.test.mjs"))], capture_output=True, text=True, timeout=60
    )

    assert run.returncode == 0, run.stdout + run.stderr
