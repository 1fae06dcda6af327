"""What dramatiq's tests import beside themselves, which its source distribution leaves out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dramatiq import Worker

RABBITMQ_CREDENTIALS = RABBITMQ_PASSWORD = RABBITMQ_USERNAME = None
skip_unless_rabbit_mq = pytest.mark.skip(reason="of RabbitMQ alone")


def skip_in_ci(test: Callable[..., object]) -> Callable[..., object]:
    return test


skip_on_windows = skip_on_pypy = skip_in_ci


@contextmanager
def worker(*args: Any, **options: Any) -> Iterator[Worker]:
    running = Worker(*args, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()
