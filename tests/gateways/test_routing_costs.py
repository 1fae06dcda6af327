"""What deciding costs is counted where it is done: bindings, patterns and keys of SENDs, one by one and in batches."""

import itertools
import json
from collections.abc import Callable, Iterator

import pytest

from qmq.broker.consumers.outcome import COST_MAX
from qmq.broker.messages.limits import COPIES_MAX
from qmq.broker.routing import matchers
from qmq.broker.routing.table import ROUTE_COST_MAX
from qmq.broker.topics import patterns
from qmq.broker.topics.word_trie import NODE_COST, WordNode, walk
from qmq.build import BUILD
from tests.gateways.test_copies import bind, refusal, send
from tests.gateways.test_stomp import Client

pytestmark = pytest.mark.skipif(BUILD == "compiled", reason="counts calls within what is compiled")

WORDS = 8
WIDE = [".".join(words) for words in itertools.product("a*", repeat=WORDS)]
"""Patterns of which a name visits 2 ** (WORDS + 1) nodes, if all its words are `a`."""


class Visits:
    """How many nodes of tries the frames of each Outcome have visited."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0

        def counted(root: WordNode[object], words: list[str], found: dict[object, None]) -> int:
            visited = walk(root, words, found)
            self.now += visited
            return visited

        patch.setattr(matchers, "walk", counted)
        patch.setattr(patterns, "walk", counted)

    def most(self, client: Client, *frames: str) -> int:
        """Of one turn."""
        found: list[int] = []
        handle = client.gateway.handle

        def measured(*arguments: object) -> object:
            self.now = 0
            try:
                return handle(*arguments)  # type: ignore[arg-type]
            finally:
                found.append(self.now)

        client.gateway.handle = measured  # type: ignore[method-assign]
        client.outcomes(*frames)
        del client.gateway.handle
        assert sum(found) * NODE_COST > 3 * COST_MAX, "a test that visits little shows nothing"
        return max(found)


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    return Visits(monkeypatch)


def names(last: int = 3000) -> Iterator[str]:
    for number in range(last):
        yield ".".join(["a"] * (WORDS - 1) + [str(number)])


def with_keys(**more: str) -> list[str]:
    """SENDs of which each is routed by further keys that no other has."""
    found = names()
    return [
        send("/exchange/amq.topic/x", routing_keys=json.dumps(list(itertools.islice(found, 10))), **more)
        for _ in range(40)
    ]


def to_topics(**more: str) -> list[str]:
    return [send(f"/topic/{name}", **more) for name in names(400)]


@pytest.mark.parametrize("sends", [with_keys, to_topics])
@pytest.mark.parametrize("transaction", [False, True])
def test_sends_that_visit_many_patterns_are_obeyed_in_turns(
    visits: Visits, sends: Callable[..., list[str]], transaction: bool
) -> None:
    client = Client()
    for pattern in WIDE:
        bind(client, "/exchange/amq.topic", "q", key=pattern)
        client.say(f"SUBSCRIBE\nid:{pattern}\ndestination:/topic/{pattern}")
    frames = sends(transaction="t") if transaction else sends()
    if transaction:
        frames = ["BEGIN\ntransaction:t", *frames, "COMMIT\ntransaction:t"]

    assert visits.most(client, *frames) * NODE_COST < COST_MAX + 2 * ROUTE_COST_MAX


def test_patterns_of_bound_queues_are_counted(visits: Visits) -> None:
    client = Client()
    for pattern in WIDE:
        bind(client, f"/topic/{pattern}", "q")

    assert visits.most(client, *to_topics()) * NODE_COST < COST_MAX + ROUTE_COST_MAX


def test_a_message_whose_keys_match_in_too_many_ways_is_refused(visits: Visits) -> None:
    client = Client(keep_open=True)
    for pattern in WIDE:
        bind(client, "/exchange/amq.topic", "q", key=pattern)
    keys = list(names(100))

    frame = send("/exchange/amq.topic/x", routing_keys=json.dumps(keys))
    # What was remembered of the first try makes no difference.
    assert [refusal(client, frame), refusal(client, frame)] == ["too-many-patterns"] * 2

    assert visits.now * NODE_COST < ROUTE_COST_MAX + NODE_COST * 2 ** (WORDS + 1)
    assert len(client.say(send("/exchange/amq.topic/x", routing_keys=json.dumps(keys[:5]))).records) == 1


def test_a_message_that_many_bindings_of_a_headers_exchange_compare_is_refused() -> None:
    client = Client(keep_open=True)
    for number in range(400):
        arguments: dict[str, str | None] = {"x-match": "any"}
        bind(client, "/exchange/amq.headers", f"q{number}", arguments=arguments | {f"h{one}": "1" for one in range(60)})
    compared = {f"h{one}": "1" for one in range(60)}

    assert refusal(client, send("/exchange/amq.headers", **compared)) == "too-many-patterns"

    few = dict(itertools.islice(compared.items(), 10))
    assert len(client.say(send("/exchange/amq.headers", **few)).records) == 400


def test_copies_are_worked_out_in_turns_in_a_transaction_too() -> None:
    client = Client()
    bind(client, "/exchange/amq.fanout", *map(str, range(COPIES_MAX)))
    sends = [send("/exchange/amq.fanout", number=str(number), transaction="t") for number in range(40)]

    outs = client.outcomes("BEGIN\ntransaction:t", *sends)

    assert len(outs) > 8


def test_a_message_whose_match_is_remembered_costs_nothing() -> None:
    client = Client()
    for pattern in WIDE:
        client.say(f"SUBSCRIBE\nid:{pattern}\ndestination:/topic/{pattern}")
    frame = send(f"/topic/{WIDE[0]}")
    first = client.say(frame)

    assert first.cost > 0 and client.say(frame).cost == 0
