"""The first Python of the README and of the client's page prints what it promises when it is pasted."""

import re
import subprocess
import sys
from pathlib import Path

from ..support.cluster_mesh import Cluster

ROOT = Path(__file__).parents[2]
# Where the pages say the nodes are.
PORTS = {"127.0.0.1:61613": "a", "127.0.0.1:61614": "b", "127.0.0.1:61615": "c"}


def first_python(page: str) -> str:
    found = re.search(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_stomp_py_of_the_readme_prints_its_message_and_ends(mesh: Cluster) -> None:
    host, port = mesh.at("b").rsplit(":", 1)
    code = first_python("README.md").replace('("127.0.0.1", 61614)', f'("{host}", {port})')

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr, done.returncode) == ("/queue/jobs resize 18\n", "", 0)


def test_the_example_of_the_client_prints_its_message_and_waits_for_more(mesh: Cluster) -> None:
    code = first_python("docs/client.md")
    for address, name in PORTS.items():
        assert address in code
        code = code.replace(address, mesh.at(name))

    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        try:
            assert running.stdout.readline() == "resize 17\n", running.stderr.read()
            assert running.poll() is None
        finally:
            running.kill()
