"""trio's loop for simulations: the same steps of the same tasks in the same rounds, at a third of the cost.

A simulated second has some thousand rounds of trio's loop. In trio each of them asks the system for events, and each
wait makes several objects. In a simulation there are no events, and only the clock of `moments` wakes a loop that has
nothing to do. So the loop, and what a task does to wait, are replaced here for the time of one run. Everything that is
rare stays trio's: nurseries, cancellation, exceptions, instruments.

Surprising: these are private names of trio. A seed must have the same trace with and without this module, and
`tests/simulation/self_tests/test_determinism.py` compares them. If trio moves a name, that test fails, and simulations
still work without this module.
"""

import types
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from heapq import heappush
from math import inf
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import trio
from outcome import Error, Value
from trio._core import _run as scheduler
from trio._core._traps import Abort, CancelShieldedCheckpoint, WaitTaskRescheduled

from tests.support.moments import Moments

CONTEXT = scheduler.GLOBAL_RUN_CONTEXT
SIGNALS_ROUNDS = 256
"""So often the loop looks for a Ctrl-C that came while trio's own code ran."""

by_number = attrgetter("_counter")


class _Woken:
    """What a task is sent that was woken without a value; unlike those of `outcome`, it can be sent again."""

    def unwrap(self) -> None:
        pass


WOKEN = _Woken()


@contextmanager
def short_rounds(moments: Moments) -> Iterator[None]:
    """A `trio.run` inside goes by the loop of this module, and needs the clock of `moments`."""
    replaced = [
        (scheduler, "unrolled_run", partial(_run, moments)),
        (scheduler, "current_time", partial(getattr, moments, "now")),
        (trio, "current_time", partial(getattr, moments, "now")),
        (trio, "sleep", partial(_sleep, moments)),
        (trio, "sleep_until", partial(_sleep_until, moments)),
        (trio.Event, "wait", _wait_for_event),
        (scheduler.CancelScope, "__enter__", _enter_with(scheduler.CancelScope.__enter__, moments)),
        (scheduler.CancelScope, "__exit__", _exit_with(scheduler.CancelScope.__exit__)),
        *((module, "wait_task_rescheduled", _wait) for module in (scheduler, trio._core, trio.lowlevel)),
        *((module, "reschedule", _reschedule) for module in (trio._core, trio.lowlevel)),
        *((module, "cancel_shielded_checkpoint", _step) for module in (scheduler, trio._core, trio.lowlevel)),
        *((module, "checkpoint", _checkpoint) for module in (scheduler, trio._core, trio.lowlevel)),
    ]
    with ExitStack() as stack:
        for owner, name, substitute in replaced:
            stack.enter_context(patch.object(owner, name, substitute))
        yield


def _run(moments: Moments, runner: scheduler.Runner, async_fn: Any, args: Any, _: bool = False) -> Generator[float]:
    """As trio's `unrolled_run`, which see."""
    runq, tasks, deadlines, hooks = runner.runq, runner.tasks, runner.deadlines, runner.instruments.data
    rounds = 0
    try:
        runner.entry_queue.wakeup.wakeup_on_signals()
        runner.clock.start_clock()
        runner.init_task = runner.spawn_impl(runner.init, (async_fn, args), None, "<init>", system_task=True)
        while tasks:
            rounds += 1
            if rounds % SIGNALS_ROUNDS == 0:
                runner.io_manager.process_events(runner.io_manager.get_events(0))
            moments.count()
            has_work = bool(runq)
            heap = deadlines._heap
            has_expired = bool(heap) and heap[0][0] <= moments.now and deadlines.expire(moments.now)
            if not has_work and not has_expired:
                moments.jump()
            batch = list(runq)
            runq.clear()
            if len(batch) > 1:
                batch.sort(key=by_number)
                scheduler._r.shuffle(batch)
            while batch:
                task = CONTEXT.task = batch.pop()
                if "before_task_step" in hooks:
                    runner.instruments.call("before_task_step", task)
                send, sent = task._next_send_fn, task._next_send
                task._next_send_fn = task._next_send = None
                final: Any = None
                try:
                    message = task.context.run(send, sent)
                except StopIteration as stop:
                    final = Value(stop.value)
                except BaseException as error:
                    trace = error.__traceback__
                    final = Error(error.with_traceback(trace and trace.tb_next))
                    del trace
                if final is not None:
                    runner.task_exited(task, final)
                    final = None
                elif message is CancelShieldedCheckpoint:
                    _reschedule(task)
                else:
                    task._abort_func = message.abort_func if type(message) is WaitTaskRescheduled else message
                    if task._cancel_status.effectively_cancelled:
                        task._attempt_delivery_of_any_pending_cancel()
        yield from ()
    finally:
        runner.close()
        CONTEXT.__dict__.clear()
    if runner.ki_pending:
        raise KeyboardInterrupt


@types.coroutine
def _give_way(message: Any) -> Generator[Any, Any, Any]:
    """What the loop sends next."""
    return (yield message)


async def _wait(abort_func: Callable[[Any], Abort]) -> Any:
    sent = await _give_way(abort_func)
    return None if sent is WOKEN else sent.unwrap()


async def _step() -> None:
    await _give_way(CancelShieldedCheckpoint)


async def _checkpoint() -> None:
    await _give_way(CancelShieldedCheckpoint)
    task = CONTEXT.task
    if task._cancel_status.effectively_cancelled:
        await _wait(_abort)


def _abort(_: Any) -> Abort:
    return Abort.SUCCEEDED


def _reschedule(task: scheduler.Task, next_send: Any = WOKEN) -> None:
    assert task._next_send_fn is None
    runner = task._runner
    task._next_send_fn = task.coro.send
    task._next_send = next_send
    task._abort_func = None
    task.custom_sleep_data = None
    runner.runq.append(task)
    if "task_scheduled" in runner.instruments.data:
        runner.instruments.call("task_scheduled", task)


async def _wait_for_event(event: trio.Event) -> None:
    if event._flag:
        await _checkpoint()
        return
    task, tasks = CONTEXT.task, event._tasks
    tasks.add(task)

    def abort(_: Any) -> Abort:
        tasks.remove(task)
        return Abort.SUCCEEDED

    sent = await _give_way(abort)
    if sent is not WOKEN:
        sent.unwrap()


class _Sleeper:
    """Stands among trio's deadlines as a cancel scope does, for one task and one wait."""

    __slots__ = ("_registered_deadline", "_task")

    def __init__(self, task: scheduler.Task, deadline: float) -> None:
        self._task = task
        self._registered_deadline = deadline
        if deadline != inf:
            deadlines = task._runner.deadlines
            heappush(deadlines._heap, (deadline, id(self), self))
            deadlines._active += 1

    def _cancel(self, _: Any) -> None:
        """The time has come."""
        self._forget()
        _reschedule(self._task)

    def abort(self, _: Any) -> Abort:
        self._forget()
        return Abort.SUCCEEDED

    def _forget(self) -> None:
        if self._registered_deadline != inf:
            self._registered_deadline = inf
            self._task._runner.deadlines._active -= 1


async def _sleep(moments: Moments, seconds: float) -> None:
    if seconds < 0:
        raise ValueError("`seconds` must be non-negative")
    if seconds == 0:
        await _checkpoint()
    else:
        await _sleep_until(moments, moments.now + seconds)


async def _sleep_until(moments: Moments, deadline: float) -> None:
    task = CONTEXT.task
    if deadline <= moments.now:
        with trio.CancelScope(deadline=deadline):
            await _wait(_abort)
        return
    sent = await _give_way(_Sleeper(task, deadline).abort)
    if sent is not WOKEN:
        sent.unwrap()
    elif task._cancel_status.effectively_cancelled:
        # Time came, and in the same round somebody cancelled: trio's sleep ends by what is outside of it.
        reason = task._cancel_status._scope._cancel_reason
        raise trio.Cancelled._create(source=reason.source if reason else "unknown")


def _enter_with(enter: Any, moments: Moments) -> Callable[[trio.CancelScope], trio.CancelScope]:
    """A scope that is not cancelled yet is entered here, others as trio does it."""

    def short(scope: trio.CancelScope) -> trio.CancelScope:
        task = CONTEXT.task
        parent = task._cancel_status
        deadline = scope._deadline
        if scope._relative_deadline != inf:
            deadline = moments.now + scope._relative_deadline
        if scope._has_been_entered or scope._cancel_called or deadline <= moments.now or parent is None:
            return enter(scope)
        scope._has_been_entered = True
        scope._deadline, scope._relative_deadline = deadline, inf
        scope._cancel_status = status = scheduler.CancelStatus(scope=scope, parent=None)
        status._parent = parent
        parent._children.add(status)
        if parent.effectively_cancelled:
            status.recalculate()
        parent._tasks.remove(task)
        status._tasks.add(task)
        task._cancel_status = status
        if deadline != inf:
            scope._registered_deadline = deadline
            deadlines = task._runner.deadlines
            heappush(deadlines._heap, (deadline, id(scope), scope))
            deadlines._active += 1
        return scope

    return short


def _exit_with(leave: Any) -> Callable[[trio.CancelScope, Any, Any, Any], bool]:
    """A scope that ends as it should, without an exception, is left here, others as trio does it."""

    def short(scope: trio.CancelScope, kind: Any, error: BaseException | None, trace: Any) -> bool:
        task, status = CONTEXT.task, scope._cancel_status
        parent = status and status._parent
        if error is not None or parent is None or task._cancel_status is not status:
            return leave(scope, kind, error, trace)
        if status._children or len(status._tasks) > 1:
            return leave(scope, kind, error, trace)
        status._tasks.remove(task)
        parent._tasks.add(task)
        task._cancel_status = parent
        parent._children.remove(status)
        status._parent = scope._cancel_status = None
        if scope._registered_deadline != inf:
            scope._registered_deadline = inf
            task._runner.deadlines._active -= 1
        return False

    return short
