"""pika and Celery as users with few rights: those that only send, and workers of two users that share their queues."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import argon2
import pika
import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")

GROUPS = {"root": ["administrator"], "one": ["client"], "two": ["client"], "caller": []}

USERS = "".join(
    f'[[users]]\nname = "{name}"\npassword_hash = "{HASH}"\ngroups = {groups}\n' for name, groups in GROUPS.items()
)

CALLER = """
[[permissions]]
user = "caller"
allow = ["send"]
destinations = ["/queue/jobs", "/exchange/work/jobs", "/queue/celery", "/exchange/celery/celery"]
"""

TASKS = """
import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    task_ignore_result=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
)


@app.task
def mark(number):
    print(f"marked {number} as {os.environ['BROKER'].partition('//')[2].partition(':')[0]}", flush=True)
"""

FINISH_SECONDS = 90.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with users."""
    with Cluster(tmp_path_factory.mktemp("rights"), node_files=dict.fromkeys("abc", USERS + CALLER)) as made:
        made.logins = dict.fromkeys("abc", ("root", "secret"))
        yield made


@contextmanager
def channel(mesh: Cluster, name: str, user: str) -> Iterator[Any]:
    login = pika.PlainCredentials(user, "secret")
    parameters = pika.ConnectionParameters("127.0.0.1", mesh.amqp_port(name), credentials=login)
    with closing(pika.BlockingConnection(parameters)) as connection:
        yield connection.channel()


def declare(on: Any) -> None:
    """What producer and consumer of one application both say."""
    on.exchange_declare("work", "direct", durable=True)
    arguments = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    on.queue_declare("jobs", durable=True, arguments=arguments)
    on.queue_bind("jobs", "work", "jobs")


def test_a_producer_of_pika_needs_send_only(mesh: Cluster) -> None:
    with channel(mesh, "a", "one") as consumer:
        declare(consumer)
    with channel(mesh, "b", "caller") as producer:
        declare(producer)
        producer.confirm_delivery()
        producer.basic_publish("work", "jobs", b"by the exchange", mandatory=True)
        producer.basic_publish("", "jobs", b"by the queue", mandatory=True)
        assert producer.queue_declare("jobs", passive=True).method.queue == "jobs"
    with channel(mesh, "c", "two") as consumer:
        declare(consumer)
        bodies = [body for _, _, body in (next(consumer.consume("jobs")) for _ in range(2))]
        assert sorted(bodies) == [b"by the exchange", b"by the queue"]
    for step in ("declare", "bind", "consume"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused, channel(mesh, "a", "caller") as producer:
            if step == "declare":
                producer.queue_declare("another")
            elif step == "bind":
                producer.queue_bind("jobs", "amq.fanout", "")
            else:
                producer.basic_consume("jobs", lambda *_: None)
        assert refused.value.reply_code == 403, step


def test_workers_of_two_users_share_their_queues_and_a_caller_needs_send_only(mesh: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)

    def environment(user: str, node: str) -> dict[str, str]:
        url = f"amqp://{user}:secret@127.0.0.1:{mesh.amqp_port(node)}//"
        return {**os.environ, "PYTHONPATH": str(tmp_path), "BROKER": url}

    def celery(user: str, node: str, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment(user, node),
            capture_output=True,
            text=True,
            timeout=FINISH_SECONDS,
        )

    def log(user: str) -> str:
        return (tmp_path / f"{user}.log").read_text("utf-8")

    with ExitStack() as stack:
        for user, node in (("one", "a"), ("two", "b")):
            out = stack.enter_context(open(tmp_path / f"{user}.log", "wb"))
            command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-l", "INFO"]
            worker = subprocess.Popen(
                [*command, "-n", f"{user}@here"], cwd=tmp_path, env=environment(user, node), stdout=out, stderr=out
            )
            stack.callback(worker.wait)
            stack.callback(worker.send_signal, signal.SIGKILL)
            eventually(lambda user=user: " ready." in log(user), lambda user=user: log(user)[-3000:], 60.0)

        call = "from tasks import mark\nfor number in range(20): mark.delay(number)"
        called = celery("caller", "c", "-c", call)
        assert called.returncode == 0, called.stderr
        eventually(
            lambda: sum(log(user).count("marked ") for user in ("one", "two")) == 20,
            lambda: f"{log('one')[-2000:]}\n{log('two')[-2000:]}",
            60.0,
        )
        eventually(
            lambda: "2 nodes online" in celery("two", "c", "-m", "celery", "-A", "tasks", "inspect", "ping").stdout,
            lambda: "not both workers have replied",
            60.0,
        )
        for user in ("one", "two"):
            assert re.search(f"marked [0-9]+ as {user}", log(user)), log(user)[-2000:]
            assert "ACCESS_REFUSED" not in log(user), log(user)[-2000:]
