"""The examples of docs/client.md: each whole program passes strict mypy, and those for a framework run in it. The
examples in all docstrings do what they say.
"""

import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import qmq.client
import qmq.client.aio
import qmq.client.blocking
from qmq.client.options import SubscribeOptions
from tests.client.styles import nodes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PROGRAMS = [code for code in EXAMPLES if re.search(r"^import qmq", code, re.MULTILINE)]
AT = "127.0.0.1:61613"

FASTAPI = """
import asyncio

async def serve():
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"from FastAPI"}
    async def send(event):
        sent.append(event)
    scope = {"type": "http", "method": "POST", "path": "/orders", "headers": [], "query_string": b""}
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
    print(sent[0]["status"], sent[1]["body"].decode())

asyncio.run(serve())
"""

DJANGO = """
import django.conf
from django.test import RequestFactory

django.conf.settings.configure()
request = RequestFactory().post("/orders", b"from Django", content_type="text/plain")
print(order(request).status_code, order(request).status_code)
"""


def program(words: str) -> str:
    (code,) = [code for code in PROGRAMS if words in code]
    return code


def run(code: str, address: str) -> str:
    code = code.replace(AT, address).replace("127.0.0.1:61614", address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


@pytest.mark.parametrize(
    ("framework", "code", "said", "sent"),
    [
        ("fastapi", FASTAPI, '200 {"is_duplicate":false}\n', [b"from FastAPI"]),
        ("django", DJANGO, "202 202\n", [b"from Django"] * 2),
    ],
)
def test_the_example_for_a_framework_sends_what_is_posted(
    framework: str, code: str, said: str, sent: list[bytes]
) -> None:
    pytest.importorskip(framework)
    with nodes() as mesh:
        assert run(program(f"from {framework}") + code, mesh.addresses[0]) == said

        with qmq.client.blocking.connect(mesh.addresses) as client, client.subscribe("/queue/orders") as messages:
            assert [messages.receive(timeout_seconds=20).body for _ in sent] == sent


def test_the_cell_of_a_notebook_reads_a_fanout() -> None:
    with nodes() as mesh, qmq.client.blocking.connect(mesh.addresses) as client:
        for number in range(3):
            client.send("/fanout/log", b"%d" % number)

        # As in a notebook: in the thread of an event loop that is running.
        cell = f"import asyncio\nasync def kernel():\n    exec({program('/fanout/log')!r}, {{}})\nasyncio.run(kernel())"
        assert run(cell, mesh.addresses[0]) == "[b'0', b'1', b'2']\n"


def test_the_example_with_traces_prints_its_message() -> None:
    pytest.importorskip("opentelemetry")
    with nodes() as mesh:
        assert run(program("OpenTelemetry()"), mesh.addresses[0]) == "resize 17\n"


def test_the_script_works_until_nothing_comes() -> None:
    with nodes() as mesh, qmq.client.blocking.connect(mesh.addresses) as client:
        client.send("/queue/jobs", b"one")

        code = program("no more jobs").replace("timeout_seconds=10", "timeout_seconds=1")
        assert run(code, mesh.addresses[0]) == "one\nno more jobs\n"


def test_the_programs_of_the_page_pass_strict_mypy(tmp_path: Path) -> None:
    files = [tmp_path / f"example_{number}.py" for number in range(len(PROGRAMS))]
    for file, code in zip(files, PROGRAMS, strict=True):
        file.write_text(code)
    assert len(files) >= 6

    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = true\nmypy_path = "
        + str(ROOT)
        + "\n[mypy-django.*,opentelemetry.*]\nignore_missing_imports = true\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "pages"),
    ]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 0, done.stdout


def test_the_examples_in_docstrings_do_what_they_say() -> None:
    files = [path.relative_to(ROOT) for path in (ROOT / "qmq").rglob("*.py") if ">>> " in path.read_text("utf-8")]
    results = [doctest.testmod(import_module(".".join(path.with_suffix("").parts))) for path in files]

    assert sum(one.failed for one in results) == 0
    assert sum(one.attempted for one in results) >= 5


def named() -> dict[str, list[str]]:
    """Class → its public names, as the page lists them: calls with their parameters."""
    section = PAGE.partition("\n## Names\n")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for cell in re.findall(r"^\| (`.+?) \| w? ?\|", section, re.MULTILINE):
        owner = ""
        for text in re.findall(r"`([^`]+)`", cell):
            before, dot, last = text.rpartition(".") if "(" not in text else text.partition(".")
            owner = before if dot else owner
            found.setdefault(owner, []).append(last if dot else text)
    return found


def parameters(call: Callable[..., object]) -> set[str]:
    """All names of its parameters, but for the first one of a method."""
    names = set(inspect.signature(call).parameters) - {"self"}
    return (names - {"options"}) | set(SubscribeOptions.__annotations__) if "options" in names else names


@pytest.mark.parametrize("module", [qmq.client, qmq.client.aio, qmq.client.blocking])
def test_each_style_has_the_names_that_the_page_lists(module: Any) -> None:
    listed = named()

    assert callable(module.connect) and set(listed) >= {"Client", "Subscription", "Message", "Transaction", "Receipt"}
    for owner in ("Client", "Subscription", "Message", "Transaction", "Receipt"):
        kind = getattr(module, owner)
        for text in listed[owner]:
            name, is_call, rest = text.partition("(")
            found = getattr(kind, name, None)
            assert found is not None or name == "receipt", f"{owner}.{name}"
            if is_call:
                wanted = set(re.findall(r"\w+", re.sub(r"=\w+", "", rest)))
                assert found is not None and parameters(found) == wanted, f"{owner}.{text}"
