"""dramatiq on a mesh: workers in this process, whole nodes behind real listeners."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import qmq.client.blocking
from tests.client.styles import Nodes, nodes
from tests.client.test_styles import ANN, eventually

dramatiq = pytest.importorskip("dramatiq")

from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound  # noqa: E402
from dramatiq.middleware import GroupCallbacks  # noqa: E402
from dramatiq.rate_limits.backends import StubBackend as StubLimits  # noqa: E402
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout  # noqa: E402

from qmq.config import DestinationPolicy, DestinationSettings  # noqa: E402
from qmq.dramatiq import QmqBroker, QmqResults  # noqa: E402
from qmq.errors import Refused  # noqa: E402

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "dramatiq.md").read_text("utf-8")
PATIENCE_MS = 20_000
PATIENCE_SECONDS = 20.0
SMALL = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/dramatiq.small", max_messages=1),))


@pytest.fixture
def mesh() -> Iterator[Nodes]:
    with nodes(destinations=SMALL) as mesh:
        yield mesh


@pytest.fixture
def broker(mesh: Nodes) -> Iterator[QmqBroker]:
    broker = QmqBroker(mesh.addresses, redial_seconds_max=0.2)
    yield broker
    broker.close()


@contextmanager
def worker(broker: QmqBroker, threads: int = 4) -> Iterator[Any]:
    running = dramatiq.Worker(broker, worker_timeout=50, worker_threads=threads)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def dead_letters(mesh: Nodes, count: int) -> list[Any]:
    with qmq.client.blocking.connect(mesh.addresses) as client, client.subscribe("/queue/dead-letters") as letters:
        return [letters.receive(timeout_seconds=PATIENCE_SECONDS) for _ in range(count)]


def test_actors_get_what_was_sent_with_its_arguments(broker: QmqBroker) -> None:
    seen: list[object] = []

    @dramatiq.actor(broker=broker)
    def add(one: int, *, other: str) -> None:
        seen.append((one, other))

    for number in range(50):
        add.send(number, other=str(number))
    with worker(broker):
        broker.join(add.queue_name, timeout=PATIENCE_MS)

    assert sorted(seen) == [(number, str(number)) for number in range(50)]  # type: ignore[type-var]


def test_an_actor_is_tried_again_and_its_message_is_a_dead_letter_in_the_end(broker: QmqBroker, mesh: Nodes) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=10, max_backoff=20)
    def fail(number: int) -> None:
        attempts.append(number)
        raise ZeroDivisionError

    fail.send(7)
    with worker(broker):
        broker.join(fail.queue_name, timeout=PATIENCE_MS)

    assert attempts == [7, 7, 7]
    (letter,) = dead_letters(mesh, 1)
    assert letter.headers["dead-letter-reason"] == "rejected"
    assert letter.headers["dead-letter-from"] == "/queue/dramatiq.default"
    assert letter.headers["dramatiq-actor"] == "fail"
    assert b"ZeroDivisionError" in letter.body


def test_a_delayed_message_waits_in_the_mesh_and_not_in_a_worker(broker: QmqBroker) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(word: str) -> None:
        seen.append(word)

    note.send_with_options(args=("later",), delay=700)
    note.send("now")
    with worker(broker) as running:
        with pytest.raises(QueueJoinTimeout):
            broker.join(note.queue_name, timeout=200)
        assert seen == ["now"]
        assert all(one.delay_queue.empty() for one in running.consumers.values())
        broker.join(note.queue_name, timeout=PATIENCE_MS)

    assert seen == ["now", "later"]


def test_a_message_with_a_higher_priority_goes_first(broker: QmqBroker) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker, broker_priority=2)
    def low(word: str) -> None:
        seen.append(word)

    @dramatiq.actor(broker=broker)
    def high(word: str) -> None:
        seen.append(word)

    for number in range(3):
        low.send(f"low {number}")
    high.send_with_options(args=("high",), broker_priority=9)
    with worker(broker, threads=1):
        broker.join(low.queue_name, timeout=PATIENCE_MS)

    assert seen == ["high", "low 0", "low 1", "low 2"]


def test_groups_and_pipelines_have_results(broker: QmqBroker) -> None:
    broker.add_middleware(Results(backend=QmqResults(broker)))
    broker.add_middleware(GroupCallbacks(StubLimits()))
    is_complete = threading.Event()

    @dramatiq.actor(broker=broker, store_results=True)
    def double(number: int) -> int:
        return 2 * number

    @dramatiq.actor(broker=broker)
    def complete() -> None:
        is_complete.set()

    with worker(broker):
        group = dramatiq.group([double.message(number) for number in range(5)], broker=broker)
        group.add_completion_callback(complete.message())
        group.run()
        assert list(group.get_results(block=True, timeout=PATIENCE_MS)) == [0, 2, 4, 6, 8]
        assert is_complete.wait(PATIENCE_SECONDS)

        pipeline = dramatiq.pipeline([double.message(1), double.message(), double.message()], broker=broker).run()
        assert pipeline.get_result(block=True, timeout=PATIENCE_MS) == 8


@pytest.fixture
def apart() -> Iterator[tuple[QmqBroker, QmqBroker]]:
    """Brokers of two nodes of one mesh."""
    with nodes("abc") as mesh:
        both = QmqBroker(mesh.addresses[0]), QmqBroker(mesh.addresses[1])
        yield both
        for one in both:
            one.close()


def test_a_result_is_read_on_another_node_as_often_as_one_likes(apart: tuple[QmqBroker, QmqBroker]) -> None:
    at_worker, at_caller = apart
    results = QmqResults(at_caller)
    at_worker.add_middleware(Results(backend=QmqResults(at_worker)))

    @dramatiq.actor(broker=at_worker, store_results=True)
    def double(number: int) -> int:
        return 2 * number

    @dramatiq.actor(broker=at_worker, store_results=True, max_retries=0)
    def fail() -> None:
        raise ZeroDivisionError("by nothing")

    message, failing = double.send(21), fail.send()
    with pytest.raises(ResultMissing):
        message.get_result(backend=results)
    with pytest.raises(ResultTimeout):
        message.get_result(backend=results, block=True, timeout=50)
    with worker(at_worker):
        assert message.get_result(backend=results, block=True, timeout=PATIENCE_MS) == 42
        for _ in range(30):  # More often than a message may be lost with its consumer.
            assert message.get_result(backend=results) == message.get_result(backend=results, block=True) == 42
        with pytest.raises(ResultFailure, match="ZeroDivisionError: by nothing"):
            failing.get_result(backend=results, block=True, timeout=PATIENCE_MS)


def test_a_result_waits_for_all_that_read_it_at_once(broker: QmqBroker) -> None:
    results = QmqResults(broker)
    message = dramatiq.Message(queue_name="default", actor_name="work", args=(), kwargs={}, options={})

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(message.get_result, backend=results, block=True, timeout=PATIENCE_MS) for _ in range(8)]
        results.store_result(message, "done", 60_000)
        assert [reader.result(PATIENCE_SECONDS) for reader in readers] == ["done"] * 8


def test_a_result_expires_and_the_first_of_two_stays(broker: QmqBroker) -> None:
    results = QmqResults(broker, use_namespace_prefix_keys=True)
    kept, expiring = (
        dramatiq.Message(queue_name="default", actor_name="work", args=(), kwargs={}, options={}) for _ in range(2)
    )
    results.store_result(kept, "first", 60_000)
    results.store_result(kept, "second", 60_000)
    results.store_result(expiring, "soon gone", 100)

    def has_expired() -> bool:
        try:
            results.get_result(expiring)
        except ResultMissing:
            return True
        return False

    eventually(has_expired)
    assert results.get_result(kept) == "first"


def test_a_join_waits_for_messages_of_all_nodes(apart: tuple[QmqBroker, QmqBroker]) -> None:
    here, there = apart

    @dramatiq.actor(broker=there)
    def work() -> None:
        pass

    here.declare_queue(work.queue_name)
    work.send()

    with pytest.raises(QueueJoinTimeout):
        here.join(work.queue_name, timeout=0)


def test_results_raise_the_errors_of_dramatiq_without_a_node(broker: QmqBroker, mesh: Nodes) -> None:
    results = QmqResults(broker)
    message = dramatiq.Message(queue_name="default", actor_name="work", args=(), kwargs={}, options={})
    results.store_result(message, 1, 60_000)
    mesh.kill("a")
    broker.timeout_seconds = 0.3

    with pytest.raises(ConnectionClosed):
        results.store_result(message, 1, 60_000)
    with pytest.raises(ConnectionClosed):
        results.get_result(message)
    with pytest.raises(ResultTimeout):
        results.get_result(message, block=True, timeout=100)


def test_what_no_actor_can_take_is_a_dead_letter(broker: QmqBroker, mesh: Nodes) -> None:
    broker.declare_queue("default")
    unknown = dramatiq.Message(queue_name="default", actor_name="unknown", args=(), kwargs={}, options={})
    broker.client.send("/queue/dramatiq.default", b"no message of dramatiq")
    broker.enqueue(unknown)
    with worker(broker):
        letters = dead_letters(mesh, 2)

    assert {letter.body for letter in letters} == {b"no message of dramatiq", unknown.encode()}


def test_what_a_stopped_worker_had_prefetched_is_taken_by_the_next_one(broker: QmqBroker) -> None:
    seen: list[int] = []
    is_working, may_end = threading.Event(), threading.Event()

    @dramatiq.actor(broker=broker)
    def work(number: int) -> None:
        seen.append(number)
        is_working.set()
        may_end.wait(PATIENCE_SECONDS)

    for number in range(5):
        work.send(number)
    with worker(broker, threads=1):
        assert is_working.wait(PATIENCE_SECONDS)
        may_end.set()
    with worker(broker):
        broker.join(work.queue_name, timeout=PATIENCE_MS)

    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_workers_go_on_when_their_line_breaks(broker: QmqBroker, mesh: Nodes) -> None:
    seen: set[int] = set()

    @dramatiq.actor(broker=broker)
    def work(number: int) -> None:
        seen.add(number)

    with worker(broker):
        for number in range(30):
            if number % 10 == 5:
                mesh.break_lines()
            work.send(number)
        broker.join(work.queue_name, timeout=PATIENCE_MS)

    assert seen == set(range(30))


def test_errors_are_those_of_dramatiq(broker: QmqBroker, mesh: Nodes) -> None:
    @dramatiq.actor(broker=broker, queue_name="small")
    def work() -> None:
        pass

    work.send()
    with pytest.raises(Refused, match="queue-full"):
        work.send()
    broker.flush("small")
    work.send()
    broker.flush_all()
    broker.join("small", timeout=PATIENCE_MS)
    for call in (broker.flush, broker.join, broker.consume):
        with pytest.raises(QueueNotFound):
            call("unknown")
    nowhere = QmqBroker("127.0.0.1:1", timeout_seconds=0.3)
    nowhere.declare_queue("small")
    with pytest.raises(ConnectionClosed, match=r"127\.0\.0\.1:1"):
        nowhere.enqueue(work.message())
    mesh.kill("a")
    broker.timeout_seconds = 0.3
    for wait in (work.send, partial(broker.consume, "small")):
        with pytest.raises(ConnectionClosed, match="no node has confirmed"):
            wait()


def test_a_broker_connects_again_after_it_was_closed(broker: QmqBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None:
        pass

    work.send()
    broker.close()
    work.send()
    with worker(broker):
        broker.join(work.queue_name, timeout=PATIENCE_MS)


def test_a_broker_connects_again_after_a_refused_login() -> None:
    passcode = "right"
    with nodes(users=(ANN,)) as mesh:
        broker = QmqBroker(mesh.addresses, login="ann", passcode=lambda: passcode)

        is_done = threading.Event()

        @dramatiq.actor(broker=broker)
        def work() -> None:
            is_done.set()

        work.send()
        passcode = "wrong"
        mesh.break_lines()
        for _ in range(2):  # The client gives up, and so does the one that replaces it.
            with pytest.raises((ConnectionClosed, Refused)):
                work.send()
        passcode = "right"

        work.send()
        with worker(broker):
            assert is_done.wait(PATIENCE_SECONDS)
        broker.close()


def test_a_child_of_a_fork_sends_whatever_the_threads_of_its_parent_hold(mesh: Nodes) -> None:
    script = f"""
import os, signal, dramatiq
from qmq.dramatiq import QmqBroker
broker = QmqBroker({mesh.addresses!r})
actor = dramatiq.actor(print, broker=broker)
actor.send(1)
with broker._connected._lock, broker._connected._client.runner.locked():
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        actor.send(2)
        broker.close()
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
actor.send(3)
broker.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)

    assert (done.stdout, done.stderr) == ("7\n", "")


def test_the_program_of_the_page_does_all_its_jobs_in_several_processes(mesh: Nodes, tmp_path: Path) -> None:
    program, with_results, caller = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    program = program.replace("dramatiq.set_broker(QmqBroker(NODES))\n", with_results)
    (command,) = re.findall(r"^dramatiq (resizes .*)$", PAGE, re.MULTILINE)
    for port in (61613, 61614, 61615):
        program = program.replace(f"127.0.0.1:{port}", mesh.addresses[0])
    (tmp_path / "resizes.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = partial(subprocess.Popen, cwd=tmp_path, env=environment, text=True)

    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done: set[int] = set()
    with run([sys.executable, "-m", "dramatiq", *command.split()], **both) as workers:
        try:
            with run([sys.executable, "resizes.py"]) as sender:
                assert sender.wait(PATIENCE_SECONDS) == 0
            assert workers.stdout is not None
            for line in workers.stdout:
                # Threads print at the same time, and the ends of their lines may come later.
                done.update(map(int, re.findall(r"done resize (\d+)", line)))
                if len(done) == 101:
                    break
            (tmp_path / "caller.py").write_text(caller)
            with run([sys.executable, "caller.py"], stdout=subprocess.PIPE) as calling:
                printed, _ = calling.communicate(timeout=PATIENCE_SECONDS)
        finally:
            workers.terminate()

    assert (done, printed) == (set(range(1, 102)), "42\n")
