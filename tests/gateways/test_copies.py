"""SENDs that bindings copy to queues: to topics, fanouts and exchanges."""

import pytest

from qmq.access.rights import Rights
from qmq.access.rules import ANONYMOUS
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import COPY_COST, COST_MAX, DEAD_LETTER_COST, Outcome
from qmq.broker.messages.dedup import dedup_key
from qmq.broker.messages.limits import COPIES_BYTES_MAX, COPIES_MAX
from qmq.broker.messages.message import Message
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC
from qmq.broker.messages.rules import QueueRules
from qmq.broker.routing.binding import Binding, Exchange
from qmq.gateways import copies, retries
from qmq.gateways.paused import PauseReason
from qmq.gateways.retries import ELSEWHERE, HERE, Marks
from qmq.gateways.rules import Rules
from tests.gateways.test_stomp import NOW_US, ORIGIN, Client

LETTERS_AT_ONCE = COST_MAX // DEAD_LETTER_COST


def rules_of(client: Client) -> Rules:
    return client.gateway._rules


def bind(
    client: Client, source: str, *queues: str, key: str = "", arguments: dict[str, str | None] | None = None
) -> None:
    for queue in queues:
        rules_of(client).routing.add(Binding(source, f"/queue/{queue}", key, arguments or {}))
    rules_of(client).generation += 1


def send(destination: str, body: str = "x", **headers: str) -> str:
    lines = "".join(f"\n{name.replace('_', '-')}:{value}" for name, value in headers.items())
    return f"SEND\ndestination:{destination}{lines}\n\n{body}"


def records(out: Outcome) -> list[tuple[str, bytes]]:
    return [(one.envelope.destination, one.body) for one in out.records if isinstance(one, Message)]


def headers_of(out: Outcome, queue: str) -> list[str]:
    """The header lines of the record in this queue."""
    (found,) = [one for one in out.records if isinstance(one, Message) and one.envelope.destination == queue]
    return found.envelope.headers.decode().splitlines()


def refusal(client: Client, *frames: str) -> str:
    """The code of the refusal; nothing was recorded."""
    out = client.say(*frames)
    assert not out.records
    return client.error(out)["error-code"]


@pytest.mark.parametrize("persistent", ["true", "false"])
def test_others_have_their_turn_between_many_copies(persistent: str) -> None:
    client = Client()
    bind(client, "/exchange/amq.fanout", *map(str, range(COPIES_MAX)))
    each = COST_MAX // (COPY_COST * COPIES_MAX)

    client.outcomes(*[send("/exchange/amq.fanout", persistent=persistent)] * (2 * each + 1))
    outs = client.outcomes(*[send("/exchange/amq.fanout", persistent=persistent)] * (2 * each + 1))

    assert len(outs) == 3
    assert client.broker.totals.node().accepted == 2 * (2 * each + 1) * COPIES_MAX


def test_others_have_their_turn_between_many_dead_letters() -> None:
    rules = QueueRules(dead_letter="/exchange/dead")
    letters = [f"/queue/{number}" for number in range(COPIES_MAX)]
    broker = Broker(ORIGIN, 2, rules_of=lambda name: rules, route=lambda exchange, key, headers: (letters, 0))
    client, each = Client(broker=broker), LETTERS_AT_ONCE // COPIES_MAX
    count = 2 * each + 1
    client.say(f"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\nprefetch-count:{count}")
    acks = [headers["ack"] for headers, _ in client.read(client.say(*[send("/queue/q")] * count))]

    outs = client.outcomes(*[f"NACK\nid:{ack}\nrequeue:false" for ack in acks])

    assert [len(out.records) for out in outs] == [LETTERS_AT_ONCE, LETTERS_AT_ONCE, COPIES_MAX]


def test_others_have_their_turn_between_many_dead_letters_of_messages_that_expire() -> None:
    rules = QueueRules(dead_letter="/exchange/dead", keeps_dropped=True)
    letters = [f"/queue/{number}" for number in range(COPIES_MAX)]
    broker = Broker(ORIGIN, 2, rules_of=lambda name: rules, route=lambda exchange, key, headers: (letters, 0))
    client, each = Client(broker=broker), LETTERS_AT_ONCE // COPIES_MAX
    client.say(*[send("/queue/q", ttl="1000")] * (2 * each + 1))

    outs = [client.later(2_000_000), client.later(0), client.later(0), client.later(0)]

    assert [len(out.records) for out in outs] == [LETTERS_AT_ONCE, LETTERS_AT_ONCE, COPIES_MAX, 0]


def test_copies_that_are_too_many_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(keep_open=True)
    bind(client, "/exchange/amq.fanout", *map(str, range(COPIES_MAX + 1)))
    monkeypatch.setattr(copies, "queue_block", None)

    assert refusal(client, send("/exchange/amq.fanout")) == "too-many-copies"


def test_a_topic_message_is_copied_to_the_queues_that_are_bound_to_it() -> None:
    client = Client()
    bind(client, "/topic/prices.*", "all")
    bind(client, "/topic/prices.eu", "eu", "all")

    out = client.say("SUBSCRIBE\nid:1\ndestination:/topic/prices.eu", send("/topic/prices.eu", "10", receipt="r"))

    assert records(out) == [("/queue/all", b"10"), ("/queue/eu", b"10")]
    assert headers_of(out, "/queue/eu") == ["qmq-copies-left:500", "original-destination:/topic/prices.eu"]
    assert [message.body for run in out.topic_runs for message in run.messages] == [b"10"]
    assert "original-destination" not in str([run.messages[0].envelope.headers for run in out.topic_runs])
    assert out.needs_commit and out.receipts == ["r"]


def test_topics_with_and_without_bindings_have_plans_of_their_own() -> None:
    client = Client()
    alike = object()
    rules_of(client).likeness = lambda name: alike
    rules_of(client).level = lambda name: 2 if name == "/queue/q" else FSYNC
    bind(client, "/topic/b.*", "q")

    # Blocks that differ only in their destinations share a form; it must not carry copies or levels to another one.
    for turn in range(5):
        for letter in "abacb":
            out = client.say(send(f"/topic/{letter}.{turn}", letter, receipt="r"))
            assert records(out) == ([("/queue/q", b"b")] if letter == "b" else []), (turn, letter)
            assert out.levels == ([(0, 2)] if letter == "b" else []), (turn, letter)


def test_keys_of_one_exchange_have_plans_of_their_own() -> None:
    client = Client()
    alike = object()
    rules_of(client).likeness = lambda name: alike
    bind(client, "/exchange/amq.direct", "q", key="b")

    for letter in "aabcab":
        out = client.say(send(f"/exchange/amq.direct/{letter}"))
        assert records(out) == ([("/queue/q", b"x")] if letter == "b" else []), letter


def test_a_new_binding_counts_for_blocks_that_were_sent_before() -> None:
    client = Client()
    assert records(client.say(send("/topic/a"))) == []

    bind(client, "/topic/a", "q")

    assert records(client.say(send("/topic/a"))) == [("/queue/q", b"x")]


def test_a_fanout_is_copied_to_its_children_and_to_what_is_bound_once_each() -> None:
    client = Client()
    rules_of(client).children = lambda name: ("/queue/child", "/queue/both")
    bind(client, "/fanout/news", "both", "bound")

    out = client.say(send("/fanout/news"))

    assert [name for name, _ in records(out)] == ["/fanout/news", "/queue/child", "/queue/both", "/queue/bound"]
    assert headers_of(out, "/queue/bound") == ["qmq-copies-left:333", "original-destination:/fanout/news"]
    assert headers_of(out, "/queue/both") == ["qmq-copies-left:333"]


@pytest.mark.parametrize(
    ("delay", "is_delayed", "added"),
    [("5000", True, ["delay:5000"]), ("0", True, []), ("-5", True, []), ("5000", False, []), ("soon", False, [])],
)
def test_copies_of_a_delayed_exchange_have_the_delay_of_its_sender(
    delay: str, is_delayed: bool, added: list[str]
) -> None:
    client = Client()
    rules_of(client).routing.put_exchange(Exchange("later", "direct", delayed=is_delayed))
    bind(client, "/exchange/later", "q", key="k")

    out = client.say(send("/exchange/later/k", x_delay=delay))

    assert headers_of(out, "/queue/q") == [f"x-delay:{delay}", "exchange:later", "routing-key:k", *added]


@pytest.mark.parametrize("delay", ["soon", "1.5", "", "99999999999999999", "9" * 5000])
def test_a_delay_that_means_nothing_is_refused(delay: str) -> None:
    client = Client(keep_open=True)
    rules_of(client).routing.put_exchange(Exchange("later", "direct", delayed=True))
    bind(client, "/exchange/later", "q", key="k")

    assert refusal(client, send("/exchange/later/k", x_delay=delay)) == "bad-header"


def test_an_exchange_has_no_record_and_its_copies_say_where_they_come_from() -> None:
    client = Client()
    bind(client, "/exchange/amq.topic", "q", key="a.#")
    bind(client, "/exchange/amq.topic", "r", key="#")

    out = client.say(
        send("/exchange/amq.topic/a.b", colour="red", exchange="forged", routing_key="forged", mandatory="true")
    )

    assert records(out) == [("/queue/q", b"x"), ("/queue/r", b"x")]
    assert headers_of(out, "/queue/q") == ["colour:red", "qmq-copies-left:500", "exchange:amq.topic", "routing-key:a.b"]
    assert [record.sequence for record in out.records] == [2, 3]


def test_headers_of_these_names_travel_unchanged_where_no_exchange_is_concerned() -> None:
    client = Client()

    out = client.say(send("/queue/q", exchange="NYSE", mandatory="yes"))

    assert headers_of(out, "/queue/q") == ["exchange:NYSE", "mandatory:yes"]


def test_a_headers_exchange_compares_what_travels() -> None:
    client = Client()
    bind(client, "/exchange/amq.headers", "red", arguments={"colour": "red"})
    bind(client, "/exchange/amq.headers", "receipts", arguments={"receipt": None})

    assert records(client.say(send("/exchange/amq.headers", colour="red", receipt="r"))) == [("/queue/red", b"x")]
    assert records(client.say(send("/exchange/amq.headers", colour="blue"))) == []


def test_an_exchange_without_key_and_one_with_slashes_in_the_key() -> None:
    client = Client()
    bind(client, "/exchange/amq.direct", "empty", key="")
    bind(client, "/exchange/amq.direct", "deep", key="a/b")

    assert records(client.say(send("/exchange/amq.direct"))) == [("/queue/empty", b"x")]
    assert records(client.say(send("/exchange/amq.direct/"))) == [("/queue/empty", b"x")]
    assert records(client.say(send("/exchange/amq.direct/a/b"))) == [("/queue/deep", b"x")]


def test_what_is_unroutable_is_dropped_unless_the_sender_asks() -> None:
    client = Client(keep_open=True)

    out = client.say(send("/exchange/amq.direct/none", receipt="r"))
    assert (out.receipts, out.records, out.frames) == (["r"], [], [])

    assert refusal(client, send("/exchange/amq.direct/none", mandatory="true")) == "unroutable"
    assert refusal(client, send("/exchange/amq.direct/none", mandatory="perhaps")) == "bad-header"


def test_an_unroutable_message_leaves_a_client_connected_that_asked_for_it() -> None:
    client = Client(keep_open=True)

    out, after = client.outcomes(send("/exchange/amq.direct/none", mandatory="true"), send("/queue/q"))

    assert not out.ending and records(after) == [("/queue/q", b"x")]


def test_an_unknown_exchange_is_refused() -> None:
    client = Client(keep_open=True)

    assert refusal(client, send("/exchange/missing/key")) == "unknown-destination"
    assert refusal(client, send("/exchange/amq.topic/a.*")) == "bad-destination"


def test_the_name_of_rabbitmq_for_a_queue_is_the_queue() -> None:
    client = Client()

    out = client.say("SUBSCRIBE\nid:1\ndestination:/amq/queue/jobs", send("/amq/queue/jobs", "one"))

    assert records(out) == [("/queue/jobs", b"one")]
    assert [headers["destination"] for headers, _ in client.read(out)] == ["/queue/jobs"]
    assert client.error(client.say(send("/amq/topic/jobs")))["error-code"] == "bad-destination"


def test_a_receipt_waits_for_what_the_strongest_queue_wants() -> None:
    client = Client(memory_only=("/queue/memory",))
    levels = {"/queue/two": 2, "/queue/one": 1, "/queue/memory": 5, "/topic/t": 7}
    rules_of(client).level = lambda name: levels.get(name, FSYNC)
    rules_of(client).level_max = 7
    bind(client, "/topic/t", "one", "two", "memory")
    bind(client, "/topic/m", "memory")

    assert client.say(send("/topic/t", receipt="r")).levels == [(0, 2)]
    assert client.say(send("/topic/t", receipt="r", receipt_level="replicas=1")).levels == [(0, 1)]
    assert client.say(send("/topic/t", receipt="r", receipt_level="accepted")).levels == [(0, ACCEPTED)]
    assert client.say(send("/topic/m", receipt="r")).levels == []
    assert client.say(send("/topic/other", receipt="r")).levels == []


def test_copies_of_what_is_not_persistent_are_kept_in_memory() -> None:
    client = Client()
    bind(client, "/topic/t", "q")

    out = client.say(send("/topic/t", persistent="false"))

    assert not out.records and client.broker.queues.by_name["/queue/q"].held == 1


def test_copies_get_what_the_policies_of_their_queues_add() -> None:
    client = Client()
    rules_of(client).defaults = lambda name: {"ttl": "5000"} if name == "/queue/short" else {}
    bind(client, "/exchange/amq.fanout", "long", "short")

    out = client.say(send("/exchange/amq.fanout"))

    assert "ttl:5000" in headers_of(out, "/queue/short") and "ttl:5000" not in headers_of(out, "/queue/long")
    assert [one.envelope.options is None for one in out.records if isinstance(one, Message)] == [True, False]


def test_options_that_mean_nothing_to_a_queue_are_refused_before_anything_is_copied() -> None:
    client = Client()
    bind(client, "/topic/t", "q")

    assert refusal(client, send("/topic/t", priority="eleven")) == "bad-priority"
    assert "/queue/q" not in client.broker.queues.by_name


@pytest.mark.parametrize("destination", ["/topic/t", "/fanout/t", "/exchange/amq.fanout"])
def test_all_copies_are_accepted_or_none(destination: str) -> None:
    limited = Broker(ORIGIN, 2, rules_of=lambda name: QueueRules(messages_max=1 if name == "/queue/full" else 0))
    client = Client(broker=limited, keep_open=True)
    bind(client, destination, "free", "full")
    client.say(send("/queue/full"))

    assert refusal(client, send(destination)) == "queue-full"

    assert "/queue/free" not in client.broker.queues.by_name


def test_a_full_disk_refuses_what_would_be_copied_to_durable_queues() -> None:
    client = Client(keep_open=True)
    bind(client, "/topic/t", "q")
    client.broker.send_limits.disk_full = True

    assert refusal(client, send("/topic/t")) == "disk-full"
    assert client.say(send("/topic/other", receipt="r")).receipts == ["r"]


def test_copies_are_bounded_in_number_and_size() -> None:
    client = Client(keep_open=True)
    bind(client, "/topic/t", *map(str, range(COPIES_MAX + 1)))
    bind(client, "/topic/u", *map(str, range(99)))
    too_large = send("/topic/u", "x" * (COPIES_BYTES_MAX // 100))

    assert refusal(client, send("/topic/t")) == "too-many-copies"
    assert refusal(client, too_large) == "body-too-large"


def test_a_transaction_has_its_copies_in_one_batch_or_not_at_all() -> None:
    client = Client()
    bind(client, "/exchange/amq.direct", "q", "r", key="k")
    frame = send("/exchange/amq.direct/k", "one", transaction="t")

    assert not client.say("BEGIN\ntransaction:t", frame, frame).records
    out = client.say("COMMIT\ntransaction:t")

    assert [name for name, _ in records(out)] == ["/queue/q", "/queue/r"] * 2
    client.say("BEGIN\ntransaction:t", frame)
    assert not client.say("ABORT\ntransaction:t").records


def test_a_transaction_is_refused_whole_when_a_copy_has_no_room() -> None:
    client = Client(broker=Broker(ORIGIN, 2, rules_of=lambda name: QueueRules(messages_max=2)))
    bind(client, "/topic/t", "q")
    frames = [send("/queue/other", transaction="t")] + [send("/topic/t", transaction="t")] * 3
    client.say("BEGIN\ntransaction:t", *frames)

    out = client.say("COMMIT\ntransaction:t")

    assert client.error(out)["error-code"] == "queue-full" and not out.records


def test_the_copies_of_a_transaction_are_bounded_by_its_bytes() -> None:
    client = Client(keep_open=True)
    bind(client, "/exchange/amq.fanout", *map(str, range(COPIES_MAX)))
    frame = send("/exchange/amq.fanout", "", transaction="t")
    client.say("BEGIN\ntransaction:t")
    for _ in range(113):  # docs/limits.md says how many copies that are, and that one COMMIT makes them.
        assert not client.say(frame).frames

    assert refusal(client, frame) == "transaction-too-large"


@pytest.mark.parametrize("source", ["/topic/t", "/exchange/amq.fanout", "/fanout/f"])
def test_a_commit_copies_nothing_into_a_queue_to_which_no_binding_leads_any_more(source: str) -> None:
    client = Client()
    rules_of(client).children = lambda name: ("/queue/child",) if name == "/fanout/f" else ()
    bind(client, source, "gone", "left")
    frame = send(source, transaction="t", dedup_id="1")
    client.say("BEGIN\ntransaction:t", frame, "BEGIN\ntransaction:other")

    (binding,) = rules_of(client).routing.bindings_to("/queue/gone")
    rules_of(client).routing.remove(binding)
    out = client.say("COMMIT\ntransaction:t")

    kept = ["/fanout/f", "/queue/child"] if source == "/fanout/f" else []
    assert [name for name, _ in records(out)] == [*kept, "/queue/left"]
    assert client.broker.sessions[1].held_bytes == 0
    client.say("BEGIN\ntransaction:t", frame)
    assert not client.say("COMMIT\ntransaction:t").records


@pytest.mark.parametrize("destination", ["/topic/t", "/exchange/amq.direct/k"])
def test_a_dedup_id_counts_for_the_copies(destination: str) -> None:
    client = Client()
    bind(client, "/topic/t", "q")
    bind(client, "/exchange/amq.direct", "q", key="k")
    frame = send(destination, dedup_id="7", receipt="r")

    first = client.say(frame)
    assert records(first) == [("/queue/q", b"x")]

    out = Outcome(client.session)
    paused = client.gateway.handle(client.connection.receive(frame.encode() + b"\0"), NOW_US, out)
    assert paused is not None and not out.records
    assert not client.gateway.repeats.answer(paused.frames, NOW_US, out) and out.receipts == ["r"]


def attempt(client: Client, frame: str, *elsewhere: str) -> list[str] | Marks:
    """Where a SEND is recorded, or how its RECEIPT says that it is a duplicate.

    Other nodes have the messages of it in the destinations `elsewhere`, and this one does not.
    """
    there = {dedup_key(name, b"dedup-id:7\n") for name in elsewhere}
    repeats = client.gateway.repeats
    left = client.connection.receive(frame.encode() + b"\0")
    while True:
        out = Outcome(client.session)
        paused = client.gateway.handle(left, NOW_US, out)
        if paused is None:
            return [name for name, _ in records(client.told(out))]
        assert paused.reason is PauseReason.DEDUP
        repeats.answered(paused.keys, there.intersection(paused.keys))
        answer = Outcome(client.session)
        left = repeats.answer(paused.frames, NOW_US, answer)
        if not left:
            return answer.marks


def test_a_queue_that_is_bound_between_two_attempts_gets_the_message_once() -> None:
    client = Client()
    bind(client, "/topic/t", "old")
    client.say(send("/topic/t", dedup_id="7"))

    # One comes before it in the order of names, one behind it, and neither has the id.
    bind(client, "/topic/t", "new")
    assert attempt(client, send("/topic/t", dedup_id="7")) == ["/queue/new"]
    bind(client, "/topic/t", "other")
    assert attempt(client, send("/topic/t", dedup_id="7")) == ["/queue/other"]
    assert attempt(client, send("/topic/t", dedup_id="7")) == HERE


@pytest.mark.parametrize("source", ["/topic/t", "/exchange/amq.fanout", "/fanout/f"])
def test_a_message_is_a_duplicate_when_none_of_its_copies_is_missing(source: str) -> None:
    client = Client()
    bind(client, source, "a", "b")
    own = ["/fanout/f"] if source == "/fanout/f" else []
    every = [*own, "/queue/a", "/queue/b"]
    frame = send(source, dedup_id="7")
    first = client.say(frame)
    assert [name for name, _ in records(first)] == every

    for missing in (["/queue/a"], ["/queue/b"], own, ["/queue/b", "/queue/a"]):
        for name in missing:
            key = dedup_key(name, b"dedup-id:7\n")
            assert key is not None
            dot = client.broker.dedup.find(key, NOW_US)
            assert dot is not None
            client.broker.dedup.forget({dot: key})
        assert attempt(client, frame) == (sorted(missing) or HERE)
        assert attempt(client, frame) == HERE


@pytest.mark.parametrize("source", ["/topic/t", "/exchange/amq.fanout", "/fanout/f"])
def test_copies_that_only_other_nodes_have_are_not_appended(source: str) -> None:
    own = ["/fanout/f"] if source == "/fanout/f" else []
    every = [*own, "/queue/a", "/queue/b"]
    frame = send(source, dedup_id="7", redelivered="true")
    for there in ([], ["/queue/a"], ["/queue/b"], own, ["/queue/a", "/queue/b"], every):
        client = Client()
        bind(client, source, "a", "b")
        missing = [name for name in every if name not in there]

        assert attempt(client, frame, *there) == (missing or ELSEWHERE)
        assert attempt(client, frame, *there) == (ELSEWHERE if there else HERE)


@pytest.mark.parametrize("source", ["/topic/t", "/exchange/amq.fanout", "/fanout/f"])
def test_a_commit_appends_the_copies_that_are_missing(source: str) -> None:
    client = Client()
    bind(client, source, "a")
    client.say(send(source, dedup_id="7"))
    bind(client, source, "b")
    # It is not refused because of a queue that has the message.
    client.broker.queues.by_name["/queue/a"].rules = QueueRules(messages_max=1)
    frame = send(source, dedup_id="7", transaction="t")
    client.say("BEGIN\ntransaction:t", frame, frame)

    assert attempt(client, "COMMIT\ntransaction:t\n\n") == ["/queue/b"]
    client.say("BEGIN\ntransaction:t", frame)
    assert attempt(client, "COMMIT\ntransaction:t\n\n") == []
    assert attempt(client, frame.replace("transaction:t", "a:b")) == HERE


def test_a_repeated_message_is_not_refused_because_of_a_queue_that_has_it() -> None:
    client = Client()
    bind(client, "/topic/t", "a")
    client.say(send("/topic/t", dedup_id="7"))
    bind(client, "/topic/t", "b")
    client.broker.queues.by_name["/queue/a"].rules = QueueRules(messages_max=1)

    assert attempt(client, send("/topic/t", dedup_id="7")) == ["/queue/b"]


def test_a_query_about_many_copies_leaves_later_messages_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "KEYS_AT_ONCE", 3)
    client = Client()
    bind(client, "/topic/t", "a", "b")
    frames = "\0".join([send("/topic/t", dedup_id=str(number), redelivered="true") for number in range(5)])
    left = client.connection.receive(frames.encode() + b"\0")

    asked, kept = [], 0
    while left:
        out = Outcome(client.session)
        paused = client.gateway.handle(left, NOW_US, out)
        kept += len(records(client.told(out)))
        left = [] if paused is None else paused.frames
        if paused is not None:
            asked.append(len(paused.keys))
            client.gateway.repeats.answered(paused.keys, ())

    assert (asked, kept) == ([4, 4, 2], 10)


def test_a_retained_message_is_kept_and_copied() -> None:
    client = Client()
    bind(client, "/topic/t", "q")

    out = client.say(send("/topic/t", "last", retain="set"))

    assert records(out) == [("/queue/q", b"last")]
    assert list(client.broker.retained.values) == ["/topic/t"]


def test_an_alternate_exchange_gets_what_is_unroutable_and_the_copy_names_the_first() -> None:
    client = Client()
    rules_of(client).routing.put_exchange(Exchange("main", "direct", "rest"))
    rules_of(client).routing.put_exchange(Exchange("rest", "fanout"))
    bind(client, "/exchange/rest", "q")

    out = client.say(send("/exchange/main/none", mandatory="true"))

    assert headers_of(out, "/queue/q") == ["exchange:main", "routing-key:none"]


# Further routing keys


def test_a_message_with_further_keys_is_copied_to_the_queues_of_each_once() -> None:
    client = Client()
    bind(client, "/exchange/amq.direct", "q", key="a")
    bind(client, "/exchange/amq.direct", "both", key="a")
    bind(client, "/exchange/amq.direct", "both", key="b")
    bind(client, "/exchange/amq.direct", "empty", key="")

    out = client.say(send("/exchange/amq.direct/a", routing_keys='["b", "b", "c", ""]', receipt="r"))

    assert records(out) == [("/queue/both", b"x"), ("/queue/empty", b"x"), ("/queue/q", b"x")]
    assert headers_of(out, "/queue/both") == ["qmq-copies-left:333", "exchange:amq.direct", "routing-key:a"]


def test_a_message_to_a_queue_with_further_keys_goes_to_the_queues_that_they_name() -> None:
    client = Client(memory_only=("/queue/c",))
    levels = {"/queue/b": 2}
    rules_of(client).level = lambda name: levels.get(name, FSYNC)

    out = client.say(send("/queue/a", colour="red", routing_keys='["b","c","a"]', receipt="r"))

    assert records(out) == [("/queue/a", b"x"), ("/queue/b", b"x")]
    assert client.broker.queues.by_name["/queue/c"].depth == 1
    assert headers_of(out, "/queue/b") == ["colour:red", "qmq-copies-left:333"]
    assert out.levels == [(0, 2)]


def test_all_queues_that_further_keys_name_take_a_message_or_none() -> None:
    full = QueueRules(messages_max=1, overflow="refuse")
    client = Client(broker=Broker(ORIGIN, 2, rules_of=lambda name: full), keep_open=True)
    client.say(send("/queue/full"))

    assert refusal(client, send("/queue/a", routing_keys='["full"]')) == "queue-full"
    assert records(client.say(send("/queue/a", routing_keys='["b"]'))) == [("/queue/a", b"x"), ("/queue/b", b"x")]
    # In a transaction, each counts once in its queue.
    out = client.say(
        "BEGIN\ntransaction:t",
        send("/queue/c", routing_keys='["d"]', transaction="t"),
        "COMMIT\ntransaction:t",
    )
    assert records(out) == [("/queue/c", b"x"), ("/queue/d", b"x")]
    assert (
        refusal(
            client,
            "BEGIN\ntransaction:t",
            send("/queue/e", routing_keys='["f"]', transaction="t"),
            send("/queue/f", transaction="t"),
            "COMMIT\ntransaction:t",
        )
        == "queue-full"
    )


@pytest.mark.parametrize(
    ("destination", "keys", "code"),
    [
        ("/queue/a", "b", "bad-header"),
        ("/queue/a", '"b"', "bad-header"),
        ("/queue/a", "[5]", "bad-header"),
        ("/queue/a", "[" * 4000, "bad-header"),
        ("/queue/a", '["\\u0000"]', "bad-header"),
        ("/queue/a", '["\\ud800"]', "bad-header"),
        ("/exchange/amq.topic/a", '["\\ud800"]', "bad-header"),
        ("/exchange/amq.topic/a", str([*"b" * 101]).replace("'", '"'), "bad-header"),
        ("/queue/a", '["b*"]', "bad-destination"),
        ("/queue/a", '[""]', "bad-destination"),
        ("/queue/a", '["' + "b" * 300 + '"]', "destination-too-long"),
        ("/exchange/amq.topic/a", '["#"]', "bad-destination"),
        ("/topic/a", '["b"]', "bad-header"),
        ("/fanout/a", '["b"]', "bad-header"),
    ],
)
def test_further_keys_that_mean_nothing_are_refused(destination: str, keys: str, code: str) -> None:
    client = Client(keep_open=True)

    # A colon in a header of STOMP is escaped, a backslash too.
    assert refusal(client, send(destination, routing_keys=keys.replace("\\", "\\\\"))) == code


def test_a_queue_of_a_further_key_that_is_not_configured_is_refused() -> None:
    client = Client(keep_open=True, known=("/queue/a",))

    assert refusal(client, send("/queue/a", routing_keys='["b"]')) == "unknown-destination"


def test_each_further_key_needs_its_right_each_time() -> None:
    client = Client(keep_open=True)
    bind(client, "/exchange/amq.direct", "q", key="b")
    rights = client.gateway._rights
    asked: list[str] = []

    class Asked(Rights):
        def check_send(self, destination: str) -> None:
            asked.append(destination)

    client.gateway._plans._rights = Asked(ANONYMOUS)
    for _ in range(2):
        client.say(send("/exchange/amq.direct/a", routing_keys='["b"]'), send("/queue/a", routing_keys='["b"]'))
    client.gateway._plans._rights = rights

    once = ["/exchange/amq.direct/a", "/exchange/amq.direct/b", "/queue/a", "/queue/b"]
    assert asked == once + once
