"""The fixtures of dramatiq's tests: the broker is QmqBroker, of the node at QMQ_AT; queues have names of their own."""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.rate_limits.backends import StubBackend

from qmq.dramatiq import QmqBroker, QmqResults


class Broker(QmqBroker):
    """Its tests call `join` with options that those of RabbitMQ and of tests have."""

    def join(self, queue_name: str, *, timeout: int | None = None, **_: Any) -> None:
        super().join(queue_name, timeout=timeout or 30_000)


@pytest.fixture(name="stub_broker")
def stub_broker_() -> Iterator[Broker]:
    broker = Broker([os.environ["QMQ_AT"]], prefix=f"{uuid.uuid4().hex}.")
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture(name="stub_worker")
def stub_worker_(stub_broker: Broker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(stub_broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def rabbitmq_broker(stub_broker: Broker) -> Broker:
    return stub_broker


@pytest.fixture
def rabbitmq_worker(stub_worker: dramatiq.Worker) -> dramatiq.Worker:
    return stub_worker


@pytest.fixture
def result_backend(stub_broker: Broker) -> QmqResults:
    return QmqResults(stub_broker, namespace=uuid.uuid4().hex)


@pytest.fixture
def rate_limiter_backend() -> StubBackend:
    return StubBackend()
