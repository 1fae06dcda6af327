"""The fixtures for pytest: the example of docs/client.md, and each kind of test, run by a pytest of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster_mesh import ROOT

PAGE = ROOT / "docs" / "client.md"

ANYIO = """
import pytest
import qmq.client.aio

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_asyncio(qmq_node):
    async with qmq.client.aio.connect(qmq_node.at) as client:
        await client.send("/queue/q", b"one")
    await qmq_node.kill()
"""

PLAIN = """
import qmq.client.blocking

def test_plain(qmq_mesh):
    with qmq.client.blocking.connect(qmq_mesh.addresses) as client:
        client.send("/queue/q", b"one")
    qmq_mesh.kill("a")
"""


def run(folder: Path, test: str, *options: str) -> str:
    (folder / "test_mine.py").write_text(test, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "qmq.testing.plugin", "-p", "no:cacheprovider", *options]
    ran = subprocess.run([*command, "test_mine.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    section = PAGE.read_text("utf-8").partition("## Tests with real nodes\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)

    assert "2 passed" in run(tmp_path, example, "-o", "trio_mode=true")


@pytest.mark.parametrize("test", [ANYIO, PLAIN])
def test_the_fixtures_fit_each_kind_of_test(tmp_path: Path, test: str) -> None:
    assert "1 passed" in run(tmp_path, test, "-p", "no:trio")


def test_the_plugin_imports_nothing_of_the_product() -> None:
    code = "import sys, qmq.testing.plugin; print(*sorted(name for name in sys.modules if name.startswith('qmq')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert found.split() == ["qmq", "qmq.testing", "qmq.testing.plugin"]
