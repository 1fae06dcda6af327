"""taskiq's broker for RabbitMQ on a real node: the program of docs/taskiq.md, delays, retries, kills and duplicates."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from qmq.testing.local import NodeUnderTest, node
from tests.support.cluster_mesh import ROOT

taskiq = pytest.importorskip("taskiq")
pytest.importorskip("taskiq_aio_pika")

from taskiq.api import run_receiver_task  # noqa: E402

PAGE = (ROOT / "docs/taskiq.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PATIENCE_SECONDS = 60.0


@pytest.fixture
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    with node(folder=tmp_path_factory.mktemp("node")) as made:
        yield made


class Program:
    """The names of the page's program; what it prints goes to `printed`."""

    def __init__(self, one: NodeUnderTest, text: str = PROGRAM) -> None:
        host, port = one.served("amqp")
        self.printed: asyncio.Queue[str] = asyncio.Queue()
        self.names: dict[str, Any] = {
            "__name__": __name__,  # taskiq puts the function of a task into its module
            "print": lambda text, **_: self.printed.put_nowait(text),
        }
        exec(text.replace("127.0.0.1:61672", f"{host}:{port}"), self.names)
        self.broker = self.names["broker"]

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """With a worker beside it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            self.broker.is_worker_process = True  # or it opens no connection for reading
            await self.broker.startup()
            worker = asyncio.create_task(run_receiver_task(self.broker))
            try:
                yield
            finally:
                worker.cancel()
                await asyncio.wait([worker])
                await self.broker.shutdown()

    async def prints(self, count: int) -> list[str]:
        return [await self.printed.get() for _ in range(count)]


def test_the_program_of_the_page_does_all_its_jobs(one: NodeUnderTest) -> None:
    async def main() -> list[str]:
        sender, program = Program(one), Program(one)
        async with program.working():
            await sender.names["main"]()
            return await program.prints(101)

    assert Counter(asyncio.run(main())) == Counter(f"done resize {number}" for number in range(1, 102))


def test_a_delayed_task_lets_those_go_first_that_were_sent_later(one: NodeUnderTest) -> None:
    async def main() -> list[str]:
        sender, program = Program(one, PROGRAM.replace("delay=1)", "delay=3600)")), Program(one)
        async with program.working():
            await sender.names["main"]()
            return await program.prints(100)

    assert set(asyncio.run(main())) == {f"done resize {number}" for number in range(1, 101)}


def test_a_task_that_fails_is_tried_again_as_often_as_the_middleware_says(one: NodeUnderTest) -> None:
    async def main() -> list[str]:
        program = Program(one)

        @program.broker.task(retry_on_error=True)  # type: ignore[untyped-decorator]
        async def fail(number: int) -> None:
            program.printed.put_nowait(f"attempt at {number}")
            raise ZeroDivisionError

        async with program.working():
            await fail.kiq(7)
            attempts = await program.prints(3)
            await program.names["resize"].kiq(8)
            return [*attempts, *await program.prints(1)]

    assert asyncio.run(main()) == ["attempt at 7"] * 3 + ["done resize 8"]


def test_a_task_that_a_killed_worker_had_is_delivered_to_another(one: NodeUnderTest, tmp_path: Path) -> None:
    host, port = one.served("amqp")
    text = PROGRAM.replace("127.0.0.1:61672", f"{host}:{port}")
    hangs = '    print("begun", flush=True)\n    await asyncio.sleep(3600)\n'
    (tmp_path / "hanging.py").write_text(text.replace('    print(f"done resize {number}", flush=True)\n', hangs))
    worker = subprocess.Popen(
        [sys.executable, "-m", "taskiq", "worker", "hanging:broker", "--workers", "1", "--no-configure-logging"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    async def main() -> list[str]:
        program = Program(one)
        await program.broker.startup()
        # taskiq calls a task by its module and name.
        task = program.broker.register_task(program.names["resize"].original_func, task_name="hanging:resize")
        await task.kiq(7)
        await program.broker.shutdown()
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "begun\n"
        os.killpg(worker.pid, signal.SIGKILL)
        second = Program(one)
        second.broker.register_task(second.names["resize"].original_func, task_name="hanging:resize")
        async with second.working():
            return await second.prints(1)

    try:
        assert asyncio.run(main()) == ["done resize 7"]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        with worker:  # This waits for it and closes its pipe.
            pass


def test_two_tasks_with_one_dedup_id_are_one(one: NodeUnderTest) -> None:
    async def main() -> list[str]:
        program = Program(one)
        once = program.names["resize"].kicker().with_labels(**{"dedup-id": "order 7"})
        async with program.working():
            await once.kiq(7)
            await once.kiq(7)
            await program.names["resize"].kiq(8)
            return await program.prints(2)

    assert sorted(asyncio.run(main())) == ["done resize 7", "done resize 8"]
