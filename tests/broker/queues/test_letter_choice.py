"""Which queues get a letter, and what it says, at the bounds: one `DeadLetters` without a broker around it."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.limits import COPIES_BYTES_MAX
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.rules import DEAD_LETTERS
from qmq.broker.queues.dead_letters import (
    DELIVERY_LIMIT,
    EXPIRED,
    OVERFLOW,
    PATH_MAX,
    REJECTED,
    DeadLetters,
    dead_letter_bytes_of,
)
from qmq.model.dots import Dot, Origin

from ..rig import JOBS, NOW_US, message_of

A = Origin("a", 1)
X = "/exchange/x/k"


class Letters:
    """Accepts letters, with these queues behind each exchange. `nested` is called in the midst of each."""

    def __init__(self, routes: Sequence[str] = (), defaults: Mapping[str, str] | None = None) -> None:
        self.accepted: list[Envelope] = []
        self.settles: Dot | None = None
        self.nested: Callable[[], object] = lambda: None
        self.dead = DeadLetters(self._publish, lambda _: defaults or {}, lambda *_: (routes, 0))

    def _publish(self, letters: Sequence[Envelope], body: bytes, out: Outcome, source: str, dot: Dot | None) -> int:
        self.accepted += letters
        self.settles = dot
        self.nested()
        return 1

    def accept(self, message: Message, target: str, reason: str = OVERFLOW) -> list[str]:
        """The queues that got a letter of it, first those of the letters that this one led to."""
        self.accepted = []
        self.dead.accept(message, reason, target, Outcome(now_us=NOW_US))
        return [one.destination for one in self.accepted]


def message(queue: str = JOBS, headers: bytes = b"", body: bytes = b"m", sequence: int = 1) -> Message:
    return message_of(A, sequence, body, queue, headers=headers)


@pytest.mark.parametrize(("left", "count", "is_copied"), [(2, 2, True), (2, 3, False), (0, 1, True), (1, 2, False)])
def test_as_many_queues_get_a_letter_as_copies_are_left(left: int, count: int, is_copied: bool) -> None:
    queues = [f"/queue/q{number}" for number in range(count)]
    letters = Letters(queues)

    found = letters.accept(message(headers=b"qmq-copies-left:%d\n" % left), X)

    assert found == (queues if is_copied else [DEAD_LETTERS])


@pytest.mark.parametrize("part", ["body", "headers"])
def test_letters_of_a_message_have_room_for_exactly_their_bytes(part: str) -> None:
    half = COPIES_BYTES_MAX // 2 - dead_letter_bytes_of(message(body=b""))
    queues = ["/queue/q1", "/queue/q2"]

    def large(size: int) -> Message:
        return (
            message(body=b"b" * size) if part == "body" else message(headers=b"h:%b\n" % (b"h" * (size - 3)), body=b"")
        )

    assert Letters(queues).accept(large(half), X) == queues
    assert Letters(queues).accept(large(half + 1), X) == [DEAD_LETTERS]


def test_message_that_is_dropped_for_a_letter_does_not_go_where_that_one_comes_from() -> None:
    letters = Letters()

    def nest() -> None:
        letters.nested = lambda: None
        letters.dead.accept(message("/queue/full"), OVERFLOW, JOBS, Outcome(now_us=NOW_US))

    letters.nested = nest

    assert letters.accept(message(), "/queue/full") == ["/queue/full", DEAD_LETTERS]
    assert letters.accept(message("/queue/full"), JOBS) == [JOBS]


def test_letters_that_lead_to_each_other_end_in_the_default_queue_at_the_bound() -> None:
    letters = Letters()
    depth = 0

    def nest() -> None:
        nonlocal depth
        depth += 1
        if depth <= PATH_MAX:
            letters.dead.accept(message(f"/queue/q{depth}"), OVERFLOW, f"/queue/q{depth + 1}", Outcome(now_us=NOW_US))

    letters.nested = nest

    found = letters.accept(message("/queue/q0"), "/queue/q1")

    assert found == [f"/queue/q{number}" for number in range(1, PATH_MAX + 1)] + [DEAD_LETTERS]


@pytest.mark.parametrize("reason", [EXPIRED, OVERFLOW])
def test_default_queue_gets_no_letter_of_itself(reason: str) -> None:
    letters = Letters()
    found: list[Sequence[str]] = []

    assert letters.accept(message(DEAD_LETTERS), X, reason) == []
    letters.nested = lambda: found.append(letters.dead.queues_of(message(), reason, X))

    assert letters.accept(message(DEAD_LETTERS), "/queue/other", reason) == ["/queue/other"]
    assert found == [()]
    assert letters.dead.queues_of(message(), reason, X) == (DEAD_LETTERS,)


def test_letter_of_what_never_got_into_its_queue_settles_nothing_and_names_no_id() -> None:
    letters = Letters()

    letters.accept(message(sequence=0), "/queue/other")
    assert letters.settles is None
    assert b"dead-letter-id:" not in letters.accepted[0].headers
    letters.accept(message(sequence=7), "/queue/other")

    assert letters.settles == Dot(A, 7)
    assert b"dead-letter-id:" in letters.accepted[0].headers


@pytest.mark.parametrize("reason", [REJECTED, DELIVERY_LIMIT])
def test_refused_message_may_return_to_a_queue_that_it_had_left_by_itself(reason: str) -> None:
    been = message("/queue/now", b"dead-letter-path:/queue/jobs\n")

    assert Letters().accept(been, JOBS, reason) == [JOBS]
    assert Letters().accept(been, JOBS, EXPIRED) == [DEAD_LETTERS]


def test_default_of_a_queue_does_not_replace_a_header_of_the_message_wherever_it_is() -> None:
    for headers, block in (
        (b"", b"priority:3\n"),
        (b"priority:5\n", b"priority:5\n"),
        (b"a:1\npriority:5\n", b"a:1\npriority:5\n"),
        (b"x-priority:5\n", b"x-priority:5\npriority:3\n"),
    ):
        letters = Letters(defaults={"priority": "3"})
        letters.dead.move(message(headers=headers), JOBS, 0, 0, Outcome(now_us=NOW_US), is_redrive=False)
        assert letters.accepted[0].headers == block


@pytest.mark.parametrize(("after_us", "line"), [(-1, b""), (0, b""), (1, b"delay:1\n"), (1500, b"delay:2\n")])
def test_moved_message_is_not_due_before_its_time(after_us: int, line: bytes) -> None:
    letters = Letters()

    letters.dead.move(message(), JOBS, NOW_US + after_us, 0, Outcome(now_us=NOW_US), is_redrive=False)

    assert letters.accepted[0].headers == line


@pytest.mark.parametrize("is_redrive", [False, True])
def test_only_a_redrive_takes_away_what_the_dead_letter_said(is_redrive: bool) -> None:
    said = b"dead-letter-reason:rejected\nqmq-copies-left:3\n"
    letters = Letters()

    letters.dead.move(message(headers=said + b"a:1\n"), JOBS, 0, 0, Outcome(now_us=NOW_US), is_redrive=is_redrive)

    assert letters.accepted[0].headers == (b"a:1\n" if is_redrive else said + b"a:1\n")
