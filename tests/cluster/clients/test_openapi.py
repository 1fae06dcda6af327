"""The HTTP API against its own description: schemathesis makes requests of every kind from it, right and wrong ones."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from qmq.config import load_peers
from tests.support.cluster_mesh import Cluster

EXAMPLES = 15
"""Of each request."""

PROCESS_SECONDS = 270.0

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SKIPPED = "events|receive|/v1/control/"
"""Streams do not end, a receive waits for a minute if it is asked to, and requests of administration have their own
description (docs/administration.md).
"""


@pytest.mark.timeout(300)
def test_responses_are_as_described_whatever_is_requested(mesh: Cluster) -> None:
    peer = load_peers(mesh.peers_path).peer("b")
    assert peer is not None and peer.http is not None
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")

    run = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"http://{peer.http}/v1/openapi.json"),
            *("--max-examples", str(EXAMPLES), "--seed", str(seed), "--phases", "fuzzing", "--checks", CHECKS),
            *("--exclude-path-regex", SKIPPED, "--request-timeout", "20", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
    )

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    mesh.client("b").publish("/queue/after", b"still here")
