"""The Python of the README, the first ones of the client's page, and the commands of the page for people of NATS, Kafka
and Redis print what they promise when they are pasted.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.pages import blocks, commands_of, output_of, paste

# Where the pages say the nodes are.
PORTS = {"127.0.0.1:61613": "a", "127.0.0.1:61614": "b", "127.0.0.1:61615": "c"}


README_OUTPUTS = ("/queue/hello hello, mesh\n", "/queue/jobs resize 18\n")


@pytest.mark.parametrize(("code", "output"), list(zip(blocks("README.md", "python"), README_OUTPUTS, strict=True)))
def test_each_example_of_the_readme_prints_its_message_and_ends(mesh: Cluster, code: str, output: str) -> None:
    for address in ('"127.0.0.1:61613"', '"127.0.0.1", 61613'):
        host, port = mesh.at("a").rsplit(":", 1)
        code = code.replace(address, f'"{host}:{port}"' if ":" in address else f'"{host}", {port}')
    assert "61613" not in code

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


@pytest.mark.parametrize("number", [0, 1], ids=["blocking", "asyncio"])
def test_the_example_of_the_client_prints_its_message_and_waits_for_more(mesh: Cluster, number: int) -> None:
    code = blocks("docs/client.md", "python")[number]
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


def test_the_commands_for_people_of_logs_print_what_the_page_shows(mesh: Cluster, tmp_path: Path) -> None:
    (block,) = blocks("docs/nats-kafka-redis.md", "console")

    done = paste(commands_of(block), tmp_path, QMQ_AT=mesh.at("a"))

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == output_of(block)
