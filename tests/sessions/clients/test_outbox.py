"""What a client is sent is whole frames in order, whatever the kernel takes of them at once."""

from collections.abc import Awaitable, Callable

import pytest

from qmq.sessions.clients.outbox import ClientOutbox

FIRST, SECOND, LAST = b"MESSAGE\n\none\0", b"MESSAGE\n\ntwo\0", b"ERROR\n\nlast words\0"


class Kernel:
    """A pipe that takes `room` bytes now, and everything from who waits."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""

    def send_now(self, data: bytes) -> int:
        sent, self.room = data[: self.room], max(0, self.room - len(data))
        self.taken += sent
        return len(sent)

    async def send_all(self, data: bytes) -> None:
        self.taken += data


class Starts:
    """The session's nursery: tasks begin when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], Awaitable[None]]] = []
        self.counted: list[int] = []

    def waiting_grew(self, delta: int) -> None:
        self.counted.append(delta)

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        self.tasks.append(task)

    async def run(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            await task()


def outbox_with(room: int) -> tuple[Kernel, Starts, ClientOutbox]:
    kernel, starts = Kernel(room), Starts()
    outbox = ClientOutbox(kernel, starts)  # type: ignore[arg-type]  # of a pipe it only sends
    outbox.put(FIRST)
    outbox.put(SECOND)
    outbox.flush()
    return kernel, starts, outbox


@pytest.mark.parametrize("room", range(len(FIRST + SECOND) + 1))
async def test_what_the_kernel_does_not_take_at_once_follows(room: int) -> None:
    kernel, starts, outbox = outbox_with(room)
    outbox.put(LAST)
    outbox.flush()
    await starts.run()

    assert kernel.taken == FIRST + SECOND + LAST
    assert outbox.size == 0


@pytest.mark.parametrize("room", range(len(FIRST + SECOND) + 1))
async def test_last_words_do_not_begin_in_the_midst_of_a_frame(room: int) -> None:
    """Also when they come before the writer of what was not taken has begun to run."""
    kernel, starts, outbox = outbox_with(room)
    outbox.drop_waiting()
    outbox.put(LAST)
    outbox.flush()
    await starts.run()

    assert kernel.taken == (FIRST + SECOND + LAST if room else LAST)
    assert outbox.size == 0


async def test_heartbeat_that_the_kernel_did_not_take_leads_no_frame() -> None:
    kernel, starts = Kernel(0), Starts()
    outbox = ClientOutbox(kernel, starts)  # type: ignore[arg-type]
    outbox.put_answer(b"\n")
    outbox.flush()
    outbox.put(FIRST)
    outbox.flush()
    await starts.run()

    assert kernel.taken == FIRST
    assert outbox.size == 0

    outbox.put_answer(b"\n")
    outbox.flush()
    await starts.run()
    assert kernel.taken == FIRST + b"\n"


async def test_what_is_held_back_is_counted_until_it_has_gone_out() -> None:
    kernel, starts = Kernel(1000), Starts()
    outbox = ClientOutbox(kernel, starts)  # type: ignore[arg-type]  # of a pipe it only sends
    outbox.await_answer()
    outbox.put(FIRST)
    outbox.flush()
    assert (kernel.taken, sum(starts.counted)) == (b"", len(FIRST))

    outbox.put_answer(SECOND)
    outbox.answered()
    outbox.flush()

    assert kernel.taken == SECOND + FIRST
    assert sum(starts.counted) == outbox.size == 0


async def test_what_is_held_back_is_dropped_with_the_rest_to_make_room_for_an_error() -> None:
    kernel, starts = Kernel(1000), Starts()
    outbox = ClientOutbox(kernel, starts)  # type: ignore[arg-type]  # of a pipe it only sends
    outbox.await_answer()
    outbox.put(FIRST)

    outbox.drop_waiting()
    outbox.put_answer(LAST)
    outbox.await_nothing()
    outbox.flush()

    assert kernel.taken == LAST
    assert sum(starts.counted) == outbox.size == 0


async def test_hooks_wait_for_what_is_held_back() -> None:
    kernel, starts = Kernel(1000), Starts()
    outbox = ClientOutbox(kernel, starts)  # type: ignore[arg-type]  # of a pipe it only sends
    written: list[bytes] = []
    outbox.await_answer()
    outbox.put(FIRST)
    outbox.when_written(lambda: written.append(kernel.taken))
    outbox.put_answer(SECOND)
    outbox.flush()
    assert not written

    outbox.answered()
    outbox.flush()

    assert written == [SECOND + FIRST]


async def test_what_a_client_takes_without_bytes_makes_no_call_of_the_kernel() -> None:
    kernel, _, outbox = outbox_with(1000)
    kernel.send_now = None  # type: ignore[assignment, method-assign]
    outbox.put(b"")
    outbox.flush()

    assert kernel.taken == FIRST + SECOND
