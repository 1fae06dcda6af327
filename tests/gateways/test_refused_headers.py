"""What happens to each word of other brokers, on each kind of destination: it is obeyed, refused, or harmless.

The rows of SUBSCRIBE and SEND have the headers of docs/migration.md and docs/stomp.md. `test_every_word…` looks at
these pages, so a word that is added there needs a row here.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from qmq.access.rights import AccessTable
from qmq.access.rules import ANONYMOUS
from qmq.broker.consumers.outcome import Outcome
from qmq.gateways.paused import PauseReason
from qmq.gateways.refused_headers import ARGUMENTS, ELSEWHERE, NOT_SENT, TEXTS
from qmq.gateways.stomp import StompGateway
from qmq.protocols.amqp.gateway.declares import READERS
from qmq.wire.stomp import Version
from tests.gateways.test_copies import rules_of
from tests.gateways.test_stomp import Client

DOCS = Path(__file__).parents[2] / "docs"

QUEUE, TOPIC, FANOUT = "/queue/q", "/topic/t", "/fanout/f"
EXCHANGE, TEMP = "/exchange/amq.topic/k", "/temp-queue/t"

EVERYTHING = AccessTable().rights_of(ANONYMOUS)

OBEYED, HARMLESS = "", ""
"""Both are confirmed; what an obeyed word does has tests of its own."""
DECLARES = "declares"
"""The session declares the queue first (`tests/settings/routing/test_queue_words.py`)."""
NO = "not-supported"

SUBSCRIBE: Mapping[str, tuple[str, str, str, str, str]] = {
    # header and value: on a queue, a topic, a fanout, an exchange, a temporary queue
    "id:7": (OBEYED, OBEYED, OBEYED, DECLARES, OBEYED),
    "ack:auto": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "ack:client": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "ack:client-individual": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "ack:sometimes": ("bad-ack-mode",) * 5,
    "prefetch-count:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "prefetch:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "activemq.prefetchSize:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "activemq.prefetchSize:0": ("bad-prefetch",) * 5,
    "credit:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "consumer-window-size:0": (HARMLESS, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "ack-timeout:5": (OBEYED, NO, NO, DECLARES, NO),
    "delivery-limit:5": (OBEYED, NO, NO, DECLARES, NO),
    "redelivery-delay:5": (OBEYED, NO, NO, DECLARES, NO),
    "dead-letter:/queue/d": (OBEYED, NO, NO, DECLARES, NO),
    "selector:a = 1": (OBEYED, OBEYED, OBEYED, "bad-selector", OBEYED),
    "filter:a=1": (OBEYED, OBEYED, OBEYED, "bad-selector", OBEYED),
    "x-stream-offset:first": (NO, NO, OBEYED, NO, NO),
    "x-stream-offset:next": (NO, HARMLESS, OBEYED, NO, NO),
    "qmq-resume:a-0123456789abcdef=1": (NO, NO, OBEYED, NO, NO),
    "durable:true": (HARMLESS, DECLARES, OBEYED, DECLARES, HARMLESS),
    "persistent:true": (HARMLESS, DECLARES, OBEYED, DECLARES, HARMLESS),
    "durable:false": (DECLARES, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "persistent:false": (DECLARES, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "durable:maybe": ("bad-header", "bad-header", "bad-header", "bad-header", HARMLESS),
    "durable-subscription-name:n": (HARMLESS, DECLARES, OBEYED, DECLARES, HARMLESS),
    "durable-subscriber-name:n": (HARMLESS, DECLARES, OBEYED, DECLARES, HARMLESS),
    "activemq.subscriptionName:n": (HARMLESS, DECLARES, OBEYED, DECLARES, HARMLESS),
    "activemq.subcriptionName:n": (HARMLESS, DECLARES, OBEYED, DECLARES, HARMLESS),
    "auto-delete:true": (DECLARES, HARMLESS, NO, DECLARES, HARMLESS),
    "auto-delete:false": (HARMLESS, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "auto-delete:perhaps": ("bad-header", HARMLESS, NO, DECLARES, HARMLESS),
    "x-queue-name:n": (NO, DECLARES, NO, DECLARES, NO),
    "exclusive:true": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "activemq.exclusive:true": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "consumer-priority:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "x-priority:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "activemq.priority:5": (OBEYED, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "browser:true": (OBEYED, NO, NO, NO, NO),
    "browser:false": (HARMLESS, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "buffer-bytes:5": ("bad-buffer", OBEYED, OBEYED, "bad-buffer", OBEYED),
    "buffer-messages:5": ("bad-buffer", OBEYED, OBEYED, "bad-buffer", OBEYED),
    "overflow:drop-oldest": ("bad-buffer", OBEYED, OBEYED, "bad-buffer", OBEYED),
    "activemq.maximumPendingMessageLimit:5": (HARMLESS, OBEYED, OBEYED, DECLARES, OBEYED),
    "x-expires:5000": (DECLARES, HARMLESS, NO, DECLARES, HARMLESS),
    "x-message-ttl:5000": (DECLARES, HARMLESS, NO, DECLARES, HARMLESS),
    "x-max-length:5": (DECLARES, NO, NO, DECLARES, NO),
    "x-max-length-bytes:5": (DECLARES, NO, NO, DECLARES, NO),
    "x-overflow:drop-head": (DECLARES, NO, NO, DECLARES, NO),
    "x-max-priority:5": (DECLARES, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "x-single-active-consumer:true": (DECLARES, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "x-delivery-limit:5": (DECLARES, NO, NO, DECLARES, NO),
    "x-consumer-timeout:5000": (DECLARES, NO, NO, DECLARES, NO),
    "x-dead-letter-exchange:amq.topic": (DECLARES, NO, NO, DECLARES, NO),
    "x-dead-letter-routing-key:k": (DECLARES, NO, NO, DECLARES, NO),
    "x-queue-type:quorum": (DECLARES, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "x-max-age:1h": (NO,) * 5,
    "x-stream-filter:a": (NO,) * 5,
    "x-stream-match-unfiltered:true": (NO,) * 5,
    "activemq.noLocal:true": (NO,) * 5,
    "activemq.noLocal:false": (HARMLESS, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "no-local:true": (NO,) * 5,
    "activemq.retroactive:true": (HARMLESS, NO, HARMLESS, DECLARES, NO),
    "activemq.dispatchAsync:true": (HARMLESS, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "transformation:jms-map-json": (HARMLESS, HARMLESS, HARMLESS, DECLARES, HARMLESS),
    "subscription-type:ANYCAST": (HARMLESS, "bad-destination", "bad-destination", DECLARES, HARMLESS),
    "subscription-type:MULTICAST": ("bad-destination", HARMLESS, HARMLESS, "bad-destination", HARMLESS),
}

SEND: Mapping[str, tuple[str, str, str, str]] = {
    # header and value: to a queue, a topic, a fanout, an exchange
    "persistent:false": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "persistent:maybe": ("bad-header", HARMLESS, HARMLESS, HARMLESS),
    "receipt-level:fsync": (OBEYED, HARMLESS, OBEYED, OBEYED),
    "receipt-level:all": ("bad-receipt-level",) * 4,
    "reply-to:/temp-queue/x": (OBEYED,) * 4,
    "retain:set": (HARMLESS, OBEYED, HARMLESS, HARMLESS),
    "retain:always": (HARMLESS, "bad-retain", HARMLESS, HARMLESS),
    "JMSXGroupID:g": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "message_group:g": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "JMSXGroupSeq:1": (HARMLESS,) * 4,
    "priority:5": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "expires:1700000000000": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "expiration:1000": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "ttl:1000": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "delay:1000": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "AMQ_SCHEDULED_DELAY:1000": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "x-delay:1000": (HARMLESS, HARMLESS, HARMLESS, OBEYED),
    "AMQ_SCHEDULED_PERIOD:1000": (NO,) * 4,
    "AMQ_SCHEDULED_REPEAT:9": (NO,) * 4,
    "AMQ_SCHEDULED_REPEAT:0": (HARMLESS,) * 4,
    "AMQ_SCHEDULED_CRON:0 * * * *": (NO,) * 4,
    "AMQ_SCHEDULED_TIME:1700000000000": (NO,) * 4,
    "_AMQ_LVQ_NAME:a": (NO,) * 4,
    "ack-timeout:5": (OBEYED, HARMLESS, HARMLESS, OBEYED),
    "dedup-id:1": (OBEYED, HARMLESS, OBEYED, OBEYED),
    "qmq-dedup-id:1": (OBEYED, HARMLESS, OBEYED, OBEYED),
    "_AMQ_DUPL_ID:1": (OBEYED, HARMLESS, OBEYED, OBEYED),
    "redelivered:true": (HARMLESS,) * 4,
    "mandatory:true": (HARMLESS, NO, HARMLESS, "unroutable"),
    "mandatory:false": (HARMLESS,) * 4,
    'routing-keys:["b"]': (OBEYED, "bad-header", "bad-header", OBEYED),
    "destination-type:ANYCAST": (HARMLESS, "bad-destination", "bad-destination", HARMLESS),
    "destination-type:MULTICAST": ("bad-destination", HARMLESS, HARMLESS, HARMLESS),
    # It declares nothing: the SUBSCRIBE does. Clients of RabbitMQ say the same on both.
    "auto-delete:true": (HARMLESS,) * 4,
    "x-message-ttl:5000": (HARMLESS,) * 4,
    **{
        f"{name}:x": (HARMLESS,) * 4
        for name in (
            "app-id",
            "amqp-message-id",
            "content-encoding",
            "content-type",
            "correlation-id",
            "message-id",
            "timestamp",
            "transformation",
            "type",
            "user-id",
        )
    },
}

NAMES = {
    "/queue/Consumer.A.VirtualTopic": "",
    "/queue/Consumer.A.Topic.b": "",
    "/topic/prices.>": "bad-destination",
    "/topic/>": "bad-destination",
    "/queue/jobs.>": "bad-destination",
    "/topic/a>": "",
    "/fanout/a.>": "bad-destination",
    "/topic/a.>.b": "",
    "/queue/a,/queue/b": "bad-destination",
    "/queue/a, /topic/b": "bad-destination",
    "/queue/a,topic://b": "bad-destination",
    "/queue/a,b": "",
    "/queue/x?consumer.exclusive=true": "bad-destination",
    "/topic/x?consumer.retroactive=true": "bad-destination",
    "/queue/what?": "",
    "/queue/a\\cb c@d": "",
    "/queue/größe": "",
    "/queue/a\x85b": "bad-destination",
    "/queue/a\x9b31m": "bad-destination",
    "/queue/a\u202etxt": "bad-destination",
    "/queue/a\u2066b": "bad-destination",
    "/queue/a\\nb": "bad-destination",
    "/queue/a\tb": "bad-destination",
    "/temp-topic/x": "bad-destination",
    "jobs": "bad-destination",
}


def answer(frame: str) -> str:
    """`declares`, the code of the refusal, or nothing."""
    client = Client()
    gateway = StompGateway(
        client.session, client.broker, rules_of(client), Version.V12, True, rights=EVERYTHING, client_id="c"
    )
    out = Outcome(client.session)
    paused = gateway.handle(client.connection.receive(f"{frame}\n\n\0".encode()), 1, out)
    if paused is not None:
        assert paused.bound is not None or paused.queue or paused.reason is PauseReason.DEDUP
        return "" if paused.bound is None else DECLARES
    found = re.search(rb"error-code:([\w-]+)", b"".join(out.frames))
    return found[1].decode() if found else ""


KINDS = (QUEUE, TOPIC, FANOUT, EXCHANGE, TEMP)


@pytest.mark.parametrize(
    ("destination", "word", "expected"),
    [(kind, word, expected) for word, row in SUBSCRIBE.items() for kind, expected in zip(KINDS, row, strict=True)],
)
def test_a_word_of_subscribe_is_obeyed_or_refused_or_harmless(destination: str, word: str, expected: str) -> None:
    id = "" if word.startswith("id:") else "id:0\n"

    assert answer(f"SUBSCRIBE\n{id}destination:{destination}\n{word}\nreceipt:r") == expected


@pytest.mark.parametrize(
    ("destination", "word", "expected"),
    [(kind, word, expected) for word, row in SEND.items() for kind, expected in zip(KINDS[:4], row, strict=True)],
)
def test_a_word_of_send_is_obeyed_or_refused_or_harmless(destination: str, word: str, expected: str) -> None:
    assert answer(f"SEND\ndestination:{destination}\n{word}\nreceipt:r") == expected


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
@pytest.mark.parametrize("frame", ["SEND\n", "SUBSCRIBE\nid:0\n"])
def test_a_name_with_a_word_of_activemq_or_what_cannot_be_shown_is_refused(
    frame: str, name: str, expected: str
) -> None:
    assert answer(f"{frame}destination:{name}\nreceipt:r") == expected


@pytest.mark.parametrize("name", ["a\x9b31m", "a\u202etxt", "a.>"])
def test_such_a_name_is_refused_in_other_headers_too(name: str) -> None:
    keys = json.dumps([name], ensure_ascii=False)

    assert answer(f"SEND\ndestination:{QUEUE}\nrouting-keys:{keys}") == "bad-destination"
    is_key = name.isprintable()
    assert answer(f"SEND\ndestination:{EXCHANGE}\nrouting-keys:{keys}") == ("" if is_key else "bad-destination")
    assert answer(f"SUBSCRIBE\nid:0\ndestination:{QUEUE}\ndead-letter:/queue/{name}") == "bad-destination"


@pytest.mark.parametrize("key", ["a.>", ">", "a,/queue/b", "a?consumer.b"])
def test_a_routing_key_may_have_what_activemq_means_by_a_name(key: str) -> None:
    assert answer(f"SEND\ndestination:/exchange/amq.topic/{key}") == ""
    assert answer(f"SUBSCRIBE\nid:0\ndestination:/exchange/amq.topic/{key}") == DECLARES


def words_of_pages() -> set[str]:
    """The headers in the first cells of the tables about SUBSCRIBE and SEND."""
    found: set[str] = set()
    for page in ("migration.md", "stomp.md"):
        text = (DOCS / page).read_text("utf-8")
        for table in re.findall(r"^\| (?:header of )?(?:SUBSCRIBE|SEND) \|.*?(?=^$)", text, re.MULTILINE | re.DOTALL):
            for row in table.splitlines()[2:]:
                found.update(re.findall(r"`([\w.-]+)(?::[^`]*)?`", row.split(" | ")[0]))
    return found


def test_every_word_of_the_pages_is_in_these_tables() -> None:
    here = {word.partition(":")[0] for word in (*SUBSCRIBE, *SEND)} | {
        "client-id",
        "destination",
        "receipt",
        "transaction",
    }
    words = words_of_pages()

    assert len(words) > 60
    assert words - here == set()


def test_every_word_that_is_refused_or_declared_is_in_these_tables() -> None:
    assert {*ELSEWHERE, *ARGUMENTS} <= {word.partition(":")[0] for word in SUBSCRIBE}
    assert set(NOT_SENT) <= {word.partition(":")[0] for word in SEND}


def test_arguments_are_those_of_a_declaration_in_amqp() -> None:
    assert ARGUMENTS == set(READERS) | TEXTS
