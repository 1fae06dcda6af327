"""Requests made of strange parts: each gets a response, none costs the node more than its connection."""

import json
import logging
import random

import pytest
from trio.testing import MockClock

from tests.node.rig import send
from tests.protocols.http.rig import dial, web_rig

REQUESTS = 300

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
SEGMENTS = (
    "", "v1", "queues", "topics", "fanouts", "exchanges", "messages", "receive", "events", "acks", "control", "list",
    "queue", "q", "%2F", "%00", "%C3%A9", "a*", "%23", "..", "openapi.json", "metrics", "livez", "stomp", "kick", "a/1",
    "x" * 300, "definitions", "put", "policy", "peek", "status", "%FF", "purge", "move", "trace", "redrive", "export",
)  # fmt: skip
PATHS = (
    "/v1/queues/q/messages", "/v1/queues/q/receive", "/v1/topics/t/messages", "/v1/fanouts/f/messages", "/v1/acks",
    "/v1/exchanges/e/messages", "/v1/control/peek/queue/q", "/v1/control/definitions/put/policy/queue%2Fq",
    "/v1/control/move/queue/q", "/v1/topics/*.%23/messages", "/v1/queues/a%0Ab/messages", "/v1/control/trace/queue/q/1",
)  # fmt: skip
QUERIES = (
    "", "?", "?a=b", "?limit=-1", "?limit=%00", "?from=first", "?after=%2C", "?selector=%22", "?access_token=x",
    "?a&b=&=c", "?scope=mesh", "?reply_to=/queue/x", "?limit=99999999999999999999", "?user=%ED%A0%80",
)  # fmt: skip
HEADERS = (
    ("content-type", "application/json"), ("content-type", "text/plain"), ("content-type", ";"), ("qmq-batch", "true"),
    ("qmq-ttl", "-1"), ("qmq-delay", "1e999"), ("qmq-expires", "\xff"), ("qmq-priority", "\u0664"), ("qmq-retain", "x"),
    ("qmq-dedup-id", "d"), ("qmq-dedup-id", ""), ("qmq-receipt-level", "replicas=99"), ("qmq-header-a:b", "c"),
    ("qmq-header-é", "c"), ("qmq-header-transaction", "t"), ("authorization", "Basic YTpi"),
    ("authorization", "Bearer "),
    ("origin", "null"), ("expect", "100-continue"), ("connection", "close"), ("qmq-reply-to", "/temp-queue/x"),
    ("last-event-id", "=,="), ("qmq-persistent", "maybe"), ("qmq-mandatory", "true"), ("qmq-group", "g" * 9000),
    ("qmq-correlation-id", "\ufffd"), ("qmq-retry", "true"), ("transfer-encoding", "chunked"), ("upgrade", "websocket"),
)  # fmt: skip
VALUES = (
    None, True, -1, 0, 10**30, 1.5, "", "x", "\0", "\ud800", "\n", [], [[]], {}, {"a": 1}, "queue", "/queue/q",
    "1" * 70000,
)  # fmt: skip
MEMBERS = (
    "messages", "body", "body_base64", "headers", "priority", "ttl", "delay", "dedup_id", "acks", "ack_token", "action",
    "requeue", "max", "wait_seconds", "ack_timeout_seconds", "selector", "receipt_level", "content_type", "reply_to",
    "\0",
)  # fmt: skip


def facts(rng: random.Random, depth: int = 3) -> object:
    """JSON whose members are often those of requests."""
    kind = rng.randrange(4) if depth else 0
    if kind == 0:
        return rng.choice(VALUES)
    if kind == 1:
        return [facts(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {rng.choice(MEMBERS): facts(rng, depth - 1) for _ in range(rng.randrange(1, 4))}


def body(rng: random.Random) -> bytes:
    kind = rng.randrange(7)
    if kind == 0:
        return rng.randbytes(rng.randrange(40))
    if kind == 1:
        return json.dumps({"messages": [facts(rng, 2) for _ in range(2)]}).encode()
    if kind == 2:
        return json.dumps({"acks": [{"ack_token": facts(rng, 0), "action": "ack"}]}).encode()
    if kind in (3, 4):
        return json.dumps({"messages": [{"body": "x", rng.choice(MEMBERS): facts(rng, 1)}]}).encode()
    return json.dumps(facts(rng)).encode()


def path(rng: random.Random) -> str:
    if rng.random() < 0.85:
        return rng.choice(PATHS)
    return "/" + "/".join(rng.choice(SEGMENTS) for _ in range(rng.randrange(1, 6)))


@pytest.mark.parametrize("seed", range(4))
async def test_strange_requests_cost_no_more_than_their_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    rng = random.Random(seed)
    caplog.set_level(logging.ERROR)
    async with web_rig(limits={"login_seconds": 600.0}).run() as rig:
        for number in range(REQUESTS):
            client = await dial(rig)
            data = body(rng) if rng.random() < 0.8 else b""
            lines = {"host": "localhost", "content-length": str(len(data)), "content-type": "application/json"}
            lines |= dict(rng.sample(HEADERS, rng.randrange(3)))
            if "transfer-encoding" in lines:
                del lines["content-length"]
            method = "POST" if rng.random() < 0.8 else rng.choice(METHODS)
            query = rng.choice(QUERIES) if rng.random() < 0.3 else ""
            head = f"{method} {path(rng)}{query} HTTP/1.1\r\n"
            request = (
                (head + "".join(f"{name}: {value}\r\n" for name, value in lines.items())).encode() + b"\r\n" + data
            )
            if rng.random() < 0.1:
                at = rng.randrange(len(request))
                request = request[:at] + rng.randbytes(1) + request[at + 1 :]
            await client.write(request)
            if b"/events" in head.encode() or b"chunked" in request:
                client.pipe.close()
                continue
            client.pipe.end_sending()
            said = await client.until_closed()

            assert said.startswith(b"HTTP/1.1 "), (seed, number, request[:3000], said[:300])
            assert said[9:12] != b"500"
            assert not caplog.records, (seed, number, request[:3000], caplog.text[-3000:])

        stomp = await rig.connect()
        await stomp.send(send("/queue/after", "x", "r"))
        assert await stomp.receipt() == "r"
