"""The client for threads and scripts: names and behaviour are those of `qmq.client`, without `async` and `await`.

Its thread keeps heart-beats, so a caller may work or sleep for as long as it likes. All threads may use one client.
A process that forks must connect after the fork: the thread of the client is not in the child.
"""

import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import update_wrapper
from types import FunctionType, TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, Unpack

from qmq.client.client import Client as Calls
from qmq.client.client import Statistics as Statistics
from qmq.client.core.encode import Headers
from qmq.client.core.feed import Delivered, Feed
from qmq.client.core.requests import Phase
from qmq.client.message import Message as AwaitedMessage
from qmq.client.message import MessageContent
from qmq.client.message import Receipt as Receipt
from qmq.client.options import ConnectOptions, ConnectPlan, SubscribeOptions, new_feed, plan
from qmq.client.styles import outside_of_block, wrong_style
from qmq.client.subscription import Reading, ended
from qmq.client.subscription import Subscription as AwaitedSubscription
from qmq.client.threads import ThreadRunner
from qmq.client.transaction import Collection
from qmq.client.transaction import Transaction as AwaitedTransaction

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    steps: Callable[Concatenate[Calls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """The call of `Calls` with the same name, as a method that blocks."""

    def blocking(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.runner.call(steps(client.calls, *args, **kwargs))

    update_wrapper(blocking, steps)
    return blocking


def _documented_as(original: type[Any]) -> Callable[[type[T]], type[T]]:
    """Gives the methods of a class the docstrings of those that are awaited."""

    def documented(blocking: type[T]) -> type[T]:
        for name, value in vars(blocking).items():
            if isinstance(value, FunctionType) and value.__doc__ is None:
                awaited = getattr(original, name.replace("__", "__a", 1), None) or getattr(original, name)
                value.__doc__ = awaited.__doc__
        return blocking

    return documented


@_documented_as(Calls)
class Client:
    """Made by `connect`; all of it may be used by several threads at once."""

    def __init__(self, calls: Calls, runner: ThreadRunner) -> None:
        self.calls = calls
        self.runner = runner

    send = _blocking(Calls.send)
    reply = _blocking(Calls.reply)
    settle = _blocking(Calls.settle)

    def request(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        timeout_seconds: float = math.inf,
        retry: bool = False,
    ) -> "Message":
        steps = self.calls.request_delivery(destination, body, headers, timeout_seconds=timeout_seconds, retry=retry)
        return Message(self, self.runner.call(steps), False)

    def subscribe(
        self,
        destination: str,
        *,
        confirm: bool = False,
        timeout_seconds: float = math.inf,
        **options: Unpack[SubscribeOptions],
    ) -> "Subscription":
        feed = new_feed(self.calls.core.client_id, destination, confirm=confirm, **options)
        return Subscription(self, feed, confirm, timeout_seconds)

    def transaction(self, *, timeout_seconds: float = math.inf) -> "Transaction":
        return Transaction(self, timeout_seconds)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or has given up: every call raises NotConnected."""
        return self.calls.core.phase is Phase.CLOSED

    def statistics(self) -> Statistics:
        with self.runner.locked():
            return self.calls.statistics()


@_documented_as(AwaitedMessage)
class Message(MessageContent):
    """As `qmq.client.Message`, with `with message`."""

    __slots__ = ("_block", "_client", "_confirm")

    def __init__(self, client: Client, delivery: Delivered, confirm: bool) -> None:
        super().__init__(client.calls.core, delivery)
        self._client = client
        self._confirm = confirm

    def ack(self) -> Receipt | None:
        return self._client.settle(self.delivery, True)

    def nack(self, *, requeue: bool = True) -> None:
        self._client.settle(self.delivery, False, requeue=requeue)

    def reply(self, body: bytes, headers: Headers | None = None, *, timeout_seconds: float = math.inf) -> bool:
        return self._client.reply(self, body, headers, timeout_seconds=timeout_seconds)

    def __enter__(self) -> "Message":
        self._block = self._client.calls.processing(self.delivery)
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)
        if kind is None and self._confirm:
            self.ack()
        elif kind is None or not self._client.runner.is_forked:
            with self._client.runner.locked():
                self._client.calls.schedule_settle(self.delivery, kind is None)


@_documented_as(AwaitedSubscription)
class Subscription(Reading):
    """As `qmq.client.Subscription`, with `with` and `for`."""

    BLOCK = "with"

    def __init__(self, client: Client, feed: Feed, confirm: bool, timeout_seconds: float) -> None:
        super().__init__(client.calls, feed, timeout_seconds)
        self._blocking = client
        self._confirm = confirm

    @property
    def position(self) -> str:
        with self._blocking.runner.locked():
            return super().position

    def stop(self) -> None:
        with self._blocking.runner.locked():
            super().stop()

    def __enter__(self) -> "Subscription":
        self._blocking.runner.call(self.begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._blocking.runner.is_forked:
            with self._blocking.runner.locked():
                self.end()

    def receive(self, *, timeout_seconds: float = math.inf) -> Message:
        delivery = self._blocking.runner.call(self.next(timeout_seconds))
        if delivery is None:
            raise ended()
        return Message(self._blocking, delivery, self._confirm)

    def __iter__(self) -> "Subscription":
        return self

    def __next__(self) -> Message:
        delivery = self._blocking.runner.call(self.next(math.inf))
        if delivery is None:
            raise StopIteration
        return Message(self._blocking, delivery, self._confirm)


@_documented_as(AwaitedTransaction)
class Transaction(Collection):
    """As `qmq.client.Transaction`, with `with`."""

    BLOCK = "with"

    def __init__(self, client: Client, timeout_seconds: float) -> None:
        super().__init__(client.calls, timeout_seconds)
        self._runner = client.runner

    def hold(self, message: MessageContent, is_ack: bool) -> None:
        with self._runner.locked():
            super().hold(message, is_ack)

    def __enter__(self) -> "Transaction":
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.call(self.finish(kind is not None))


class BlockingConnecting(AbstractContextManager[Client]):
    """What `connect` returns: a client inside `with`, connected as long as the block runs."""

    def __init__(self, open: Callable[[], AbstractContextManager[Client]]) -> None:
        self._open = open

    def __getattr__(self, name: str) -> NoReturn:
        raise outside_of_block(Client, name, "with")

    def __enter__(self) -> Client:
        self._opened = self._open()
        return self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._opened.__exit__(kind, error, trace)

    async def __aenter__(self) -> NoReturn:
        raise wrong_style("")

    async def __aexit__(self, *_: object) -> None: ...


def connect(addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> BlockingConnecting:
    """As `qmq.client.connect`, with `with`, in any thread."""
    return BlockingConnecting(lambda: _open(plan(addresses, **options)))


@contextmanager
def _open(plan: ConnectPlan) -> Iterator[Client]:
    runner = ThreadRunner(plan.core, plan.rotation, tls=plan.tls, attempt_seconds=plan.attempt_seconds)
    calls = Calls(plan.core, runner, plan.tracing)
    runner.start()
    try:
        runner.call(runner.online(plan.connect_timeout_seconds))
        yield Client(calls, runner)
        runner.call(calls.leave(plan.farewell_seconds))
    finally:
        if not runner.is_forked:
            with runner.locked():
                calls.close()
            runner.join()
