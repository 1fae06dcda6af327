"""What pyright says of the client: programs of the pages in its strict mode, and each public name with its type.

`make pyright` runs this. basedpyright is pyright with the Node.js that it needs: 280 MB, which no other test has.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_page import PROGRAMS

pytest.importorskip("basedpyright")

AWAITED = """
import qmq.client.{module}
from collections.abc import Mapping
from typing import assert_type
from qmq.client.{module} import Client, Message, Receipt, Statistics, Subscription, Transaction


async def main() -> None:
    async with qmq.client.{module}.connect(["here:1"], login="ann", beat_seconds=1) as client:
        assert_type(client, Client)
        assert_type(await client.send("/queue/q", b"", {{"a": "b"}}, timeout_seconds=1), Receipt)
        assert_type(await client.request("/queue/q", b"", retry=True), Message)
        assert_type(client.statistics(), Statistics)
        subscription = client.subscribe("/queue/q", ack="client", prefetch=1, timeout_seconds=5)
        assert_type(subscription, Subscription)
        async with subscription as messages:
            assert_type(messages.position + messages.destination, str)
            assert_type(messages.dropped, int)
            assert_type(await messages.receive(timeout_seconds=1), Message)
            async for message in messages:
                async with message:
                    assert_type(message.body, bytes)
                    assert_type(message.headers, Mapping[str, str])
                    assert_type(message.gap, Mapping[str, tuple[int, int]])
                    assert_type(message.delivery_count, int)
                    assert_type(message.is_stale or message.is_redelivered, bool)
                    assert_type(await message.ack(), Receipt | None)
                    assert_type(await message.nack(requeue=False), None)
                    assert_type(await message.reply(b""), bool)
            messages.stop()
        async with client.transaction(timeout_seconds=1) as together:
            assert_type(together, Transaction)
            together.send("/queue/q", b"")
        assert_type(together.receipt, Receipt | None)
"""
BLOCKING = AWAITED.replace("async ", "").replace("await ", "")
WRONG = """
import qmq.client.blocking

with qmq.client.blocking.connect("here:1", pass_code="typo") as client:
    client.send("/queue/q", "no bytes")
    client.subscribe("/queue/q", ack="sometimes")
"""


def pyright(folder: Path, *words: str) -> dict[str, Any]:
    """What it finds, as JSON. It takes the packages of the environment that stands first in the path."""
    environment = {
        **os.environ,
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "basedpyright", "--outputjson", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def errors(folder: Path, programs: dict[str, str]) -> dict[str, set[int]]:
    """Name → the lines with an error, in strict mode. What is only deprecated is none."""
    for name, code in programs.items():
        (folder / f"{name}.py").write_text(code)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "reportDeprecated": "none"}))
    found: dict[str, set[int]] = {}
    for one in pyright(folder)["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).stem, set()).add(one["range"]["start"]["line"])
    return found


def test_each_whole_program_of_the_page_passes_strict_pyright(tmp_path: Path) -> None:
    programs = {f"program_{number}": code for number, code in enumerate(PROGRAMS) if "django" not in code}
    assert len(programs) >= 6

    assert errors(tmp_path, programs) == {}  # Django has no types.


def test_each_public_name_has_the_type_that_it_is_used_with_and_a_wrong_use_is_found(tmp_path: Path) -> None:
    programs = {
        "on_trio": AWAITED.format(module="on_trio").replace("qmq.client.on_trio", "qmq.client"),
        "on_asyncio": AWAITED.format(module="aio"),
        "blocking": BLOCKING.format(module="blocking"),
        "wrong": WRONG,
    }

    assert errors(tmp_path, programs) == {"wrong": {3, 4, 5}}


@pytest.mark.parametrize("module", ["qmq.client", "qmq.client.aio", "qmq.client.blocking", "qmq.testing"])
def test_no_public_type_is_unknown(module: str, tmp_path: Path) -> None:
    # Attributes whose type follows from their assignment count as ambiguous, and are no finding.
    found = pyright(tmp_path, "--verifytypes", module, "--ignoreexternal")["typeCompleteness"]

    unknown = [one["name"] for one in found["symbols"] if not (one["isTypeKnown"] or one["isTypeAmbiguous"])]
    assert found["symbols"]
    assert [name for name in unknown if not name.startswith("qmq.client.django.")] == []  # Django has no types.
