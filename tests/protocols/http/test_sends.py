"""Messages that are sent over HTTP, by themselves and in batches."""

import json
from typing import Any
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings, PermissionSettings, StorageSettings
from qmq.protocols.http import calls
from qmq.protocols.http.calls import FRAMES_AT_ONCE, THREAD_BYTES
from qmq.protocols.http.codec import HttpRequest
from qmq.protocols.http.gateway.avro import container
from qmq.protocols.http.gateway.bodies import MESSAGES_MAX
from qmq.protocols.http.gateway.sends import VALUE_BYTES, sends_of
from qmq.protocols.http.part import PARSED_AT_ONCE
from qmq.sessions.frame_loop import FrameLoop
from qmq.wire.stomp import Frame
from tests.node.rig import eventually, stick, subscribe
from tests.node.stuck_rig import SECOND, StuckRig
from tests.protocols.http.rig import WebClient, basic, batch, dial, dial_node, web_rig
from tests.protocols.http.test_connections import ANN
from tests.support.depths import depths

Q = "/v1/queues/q"


async def nothing_comes(client: WebClient, seconds: float = SECOND) -> None:
    with trio.move_on_after(seconds):
        raise AssertionError(f"came too early: {await client.response()}")


@pytest.mark.parametrize("body", [b"one", json.dumps(batch("one", "two")).encode()])
async def test_a_send_is_confirmed_only_after_its_commit(autojump_clock: MockClock, body: bytes) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        free = stick(rig)
        await client.write(client.bytes_of("POST", f"{Q}/messages", body))

        await nothing_comes(client)
        free.set()
        response = await client.response()

        assert response.status == 201
        assert {row["copies"] for row in response.rows} == {1}
        assert not any(row["duplicate"] for row in response.rows)
        assert len({row["id"] for row in response.rows}) == len(response.rows) == depths(rig.alive)["/queue/q"]


async def test_the_ids_of_a_batch_are_those_of_its_messages_in_order(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        sent = (await client.post(f"{Q}/messages", batch("a", "b", "a", ""))).rows

        received = await client.receive("q", 10)

        assert [(row["id"], row["body"]) for row in received] == [
            (row["id"], body) for row, body in zip(sent, ["a", "b", "a", ""], strict=True)
        ]


async def test_a_batch_with_one_bad_message_appends_none(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        messages = batch(*map(str, range(700)))["messages"]
        messages[650]["priority"] = "high"

        response = await client.post(f"{Q}/messages", {"messages": messages})

        assert (response.status, response.code) == (400, "bad-priority"), response.body
        assert depths(rig.alive).get("/queue/q", 0) == 0
        assert (await client.post(f"{Q}/messages", batch("x"))).status == 201
        assert depths(rig.alive)["/queue/q"] == 1


@pytest.mark.parametrize("body", ["", "a", "longer"])
async def test_a_batch_says_which_of_its_messages_were_sent_before(autojump_clock: MockClock, body: str) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        (first,) = (await client.send(Q, body.encode(), qmq_dedup_id="1")).rows
        assert first["duplicate"] is False

        rows = (
            await client.post(
                f"{Q}/messages",
                {"messages": [{"body": body, "dedup_id": id} for id in ("1", "2", "1", "3", "2")] + [{"body": body}]},
            )
        ).rows

        assert [row["duplicate"] for row in rows] == [True, False, True, False, True, False]
        assert [row["id"] is None for row in rows] == [row["duplicate"] for row in rows]
        received = await client.receive("q", 10)
        assert [one["id"] for one in received] == [first["id"]] + [row["id"] for row in rows if row["id"]]


@pytest.mark.parametrize("body", ["", "a", "longer"])
async def test_a_batch_to_an_exchange_has_one_row_for_each_message(autojump_clock: MockClock, body: str) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await declare_exchange(client)
        for queue in ("q1", "q2"):
            made = await client.post(
                f"/v1/control/definitions/put/binding/exchange%2Fe%20%2Fqueue%2F{queue}",
                {"source": "/exchange/e", "queue": f"/queue/{queue}"},
            )
            assert made.status == 200, made.body

        rows = (await client.post("/v1/exchanges/e/messages", batch(body, body))).rows

        assert [row["duplicate"] for row in rows] == [False, False]
        assert len({row["id"] for row in rows}) == 2
        assert depths(rig.alive) == {"/queue/q1": 2, "/queue/q2": 2}


async def declare_exchange(client: WebClient) -> None:
    made = await client.post("/v1/control/definitions/put/exchange/e", {"type": "fanout"})
    assert made.status == 200, made.body


async def test_a_message_that_no_binding_matches_is_no_duplicate(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await declare_exchange(client)

        (row,) = (await client.send("/v1/exchanges/e", b"x")).rows
        refused = await client.send("/v1/exchanges/e", b"x", qmq_mandatory="true")

        assert row == {"id": None, "copies": 0, "duplicate": False}
        assert (refused.status, refused.code) == (422, "unroutable")


async def test_a_batch_may_have_as_many_messages_as_it_says(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        rows = (await client.post(f"{Q}/messages", batch(*["x"] * MESSAGES_MAX))).rows
        refused = await client.post(f"{Q}/messages", batch(*["x"] * (MESSAGES_MAX + 1)))

        assert len({row["id"] for row in rows}) == MESSAGES_MAX
        assert (refused.status, refused.code) == (400, "bad-body")
        assert depths(rig.alive)["/queue/q"] == MESSAGES_MAX


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ({"body": "x", "headers": {"a": "\ud800"}}, 400, "bad-utf8"),
        ({"body": "x", "headers": {"a\0": "b"}}, 400, "bad-header"),
        ({"body": "x", "headers": {"a": "b\0"}}, 400, "bad-header"),
        ({"body": "x", "headers": {"a": "x" * 70_000}}, 431, "header-line-too-long"),
        ({"body": "x", "headers": {str(n): "" for n in range(200)}}, 431, "too-many-headers"),
        ({"body": "x", "reply_to": "\ud800"}, 400, "bad-utf8"),
        ({"body": "x", "routing_keys": ["\ud800"]}, 400, "bad-header"),
        ({"body": "x", "correlation_id": "\0"}, 400, "bad-header"),
        ({"body": "x" * 2_000_000}, 413, "body-too-large"),
    ],
)
async def test_a_message_that_no_stomp_client_could_send_is_refused(
    autojump_clock: MockClock, message: dict[str, Any], status: int, code: str
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        response = await client.post(f"{Q}/messages", {"messages": [{"body": "before"}, message]})

        assert (response.status, response.code) == (status, code), response.body
        assert depths(rig.alive).get("/queue/q", 0) == 0
        assert (await client.send(Q, b"after")).status == 201


async def test_a_raw_body_that_is_too_large_is_refused(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        response = await client.send(Q, b"x" * ((1 << 20) + 1))

        assert (response.status, response.code) == (413, "body-too-large")
        assert (await client.send(Q, b"x" * (1 << 20))).status == 201


async def test_a_full_queue_refuses_with_a_time_to_retry(autojump_clock: MockClock) -> None:
    full = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/*", max_messages=3),))
    async with web_rig(destinations=full).run() as rig:
        client = await dial(rig)
        assert (await client.post(f"{Q}/messages", batch("1", "2"))).status == 201

        refused = await client.post(f"{Q}/messages", batch("3", "4"))

        assert (refused.status, refused.code) == (429, "queue-full")
        assert int(refused.headers["retry-after"]) >= 1
        assert depths(rig.alive)["/queue/q"] == 2
        assert (await client.send(Q, b"3")).status == 201


async def test_a_full_disk_refuses_and_the_connection_goes_on(autojump_clock: MockClock) -> None:
    reserve = 1 << 20
    async with web_rig(storage=StorageSettings(disk_reserve_bytes=reserve, checkpoint_bytes=4096)).run() as rig:
        client = await dial(rig)
        assert (await client.send(Q, b"1")).status == 201
        rig.disk.capacity_bytes = rig.disk.used_bytes() + rig.disk.reserved_bytes
        await eventually(lambda: rig.alive.broker.send_limits.disk_full)

        assert (await client.send(Q, b"2")).status == 507
        assert (await client.post(f"{Q}/messages", batch("2", "3"))).code == "disk-full"

        rig.disk.capacity_bytes = rig.disk.used_bytes() + 8 * reserve
        await eventually(lambda: not rig.alive.broker.send_limits.disk_full)
        assert (await client.send(Q, b"2")).status == 201


async def test_options_and_headers_reach_a_stomp_consumer(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, stomp = await dial(rig), await rig.connect()
        of_body = {"content_type": "text/x", "content_encoding": "x-none"}
        await client.send(Q, b"raw", qmq_header_colour="red: \xe9", qmq_priority="7", qmq_correlation_id="c", **of_body)
        await client.post(f"{Q}/messages", batch("json", headers={"colour": "a\nb:c", "n": 1, "yes": True}, priority=3))

        await stomp.send(subscribe("/queue/q"))
        raw, one = await stomp.next("MESSAGE"), await stomp.next("MESSAGE")

        assert raw.body == b"raw"
        assert raw.head.headers.items() >= {
            ("colour", "red: \xe9"), ("priority", "7"), ("correlation-id", "c"), ("content-type", "text/x"),
            ("content-encoding", "x-none"),
        }  # fmt: skip
        assert one.head.headers.items() >= {("colour", "a\nb:c"), ("n", "1"), ("yes", "true"), ("priority", "3")}


async def test_a_retry_at_another_node_is_a_duplicate(autojump_clock: MockClock) -> None:
    async with StuckRig("a", "b").run() as rig:
        first, second = await dial_node(rig, "a"), await dial_node(rig, "b")
        assert (await first.send(Q, b"x", qmq_dedup_id="1")).rows[0]["duplicate"] is False

        (row,) = (await second.send(Q, b"x", qmq_dedup_id="1", qmq_retry="true")).rows
        rows = (await second.post(f"{Q}/messages", batch("x", "x", dedup_id="1", retry=True))).rows

        assert row["duplicate"] is True
        assert [one["duplicate"] for one in rows] == [True, True]


async def test_copies_are_the_disks_that_have_the_message(autojump_clock: MockClock) -> None:
    async with StuckRig("a", "b", "c").run() as rig:
        client = await dial_node(rig, "a")
        rig.stick("c")

        (two,) = (await client.send(Q, b"x")).rows
        (one,) = (await client.send(Q, b"x", qmq_receipt_level="fsync")).rows
        (short,) = (await client.send(Q, b"x", qmq_receipt_level="replicas=2")).rows
        asked = await client.post(f"{Q}/messages", {**batch("1", "2"), "receipt_level": "fsync"})

        assert (two["copies"], one["copies"], short["copies"]) == (2, 1, 2)
        assert [row["copies"] for row in asked.rows] == [1, 1]


async def test_a_topic_has_no_copies(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, stomp = await dial(rig), await rig.connect()
        await stomp.send(subscribe("/topic/t"))
        await stomp.receipt()

        (row,) = (await client.send("/v1/topics/t", b"x")).rows

        assert (row["copies"], row["duplicate"]) == (0, False)
        assert await stomp.messages(1) == [b"x"]


class Turns(trio.abc.Instrument):
    """The number of this turn of the event loop."""

    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


async def test_a_large_batch_is_decided_in_turns(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    numbers: list[int] = []
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    obey = FrameLoop.obey

    async def counted(loop: FrameLoop, frames: list[Frame]) -> None:
        sizes.append(len(frames))
        numbers.append(turns.number)
        await obey(loop, frames)

    monkeypatch.setattr(FrameLoop, "obey", counted)
    async with web_rig().run() as rig:
        client = await dial(rig)

        assert (await client.post(f"{Q}/messages", batch(*["x"] * 2000))).status == 201

        assert max(sizes) == FRAMES_AT_ONCE
        assert sum(sizes) == 2002
        assert len(set(numbers)) == len(numbers), "two portions were decided in one turn"


async def test_an_avro_file_is_unpacked_in_a_thread(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        calls: list[str] = []
        environment = rig.alive.environment
        run_blocking = environment._run_blocking

        async def counted(call: Any) -> Any:
            calls.append(getattr(getattr(call, "func", None), "__name__", ""))
            return await run_blocking(call)

        environment._run_blocking = counted  # type: ignore[assignment]  # generic
        file = container([{"id": "", "destination": "", "headers": {}, "body": b"x"}] * 2)

        assert len((await client.post(f"{Q}/messages", file, content_type="Avro/Binary")).rows) == 2

        assert "sends_of" in calls


LARGE = json.dumps(batch("x" * (THREAD_BYTES + 1))).encode()
FILE = container([{"id": "", "destination": "", "headers": {}, "body": b"x"}])


@pytest.mark.parametrize(
    ("body", "kind"),
    [(FILE, "avro/binary"), (LARGE, "application/json"), (json.dumps(batch("x")).encode(), "application/json")],
    ids=["avro", "large", "small"],
)
async def test_a_body_is_parsed_only_for_a_client_with_the_right_to_send(
    body: bytes, kind: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    parsed: list[str] = []

    def noted(request: HttpRequest, destination: str, *more: Any) -> list[Frame]:
        parsed.append(destination)
        return sends_of(request, destination, *more)

    monkeypatch.setattr(calls, "sends_of", noted)
    may = PermissionSettings(user="ann", allow=("send",), destinations=("/queue/mine",))
    async with web_rig(users=(ANN,), permissions=(may,)).run() as rig:
        client = await dial(rig, user="ann")
        asked = {"content_type": kind, "authorization": basic("ann")}

        refused = await client.post(f"{Q}/messages", body, **asked)
        sent = await client.post("/v1/queues/mine/messages", body, **asked)

        assert (refused.status, refused.code, sent.status) == (403, "not-allowed", 201)
        assert parsed == ["/queue/mine"]


async def test_few_batches_are_parsed_at_once_and_what_they_make_counts_as_memory(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        clients = [await dial(rig) for _ in range(6)]
        environment, budget = rig.alive.environment, rig.alive.session_parts.host.budget
        run_blocking = environment._run_blocking
        now: list[int] = []
        most = 0

        async def counted(call: Any) -> Any:
            nonlocal most
            if getattr(getattr(call, "func", None), "__name__", "") != "sends_of":
                return await run_blocking(call)
            now.append(1)
            most = max(most, len(now))
            await trio.sleep(1)
            now.pop()
            return await run_blocking(call)

        environment._run_blocking = counted  # type: ignore[assignment]  # generic
        held: list[int] = []
        obey = FrameLoop.obey

        async def watched(loop: FrameLoop, frames: list[Frame], **more: bool) -> None:
            held.append(budget.bytes)
            await obey(loop, frames, **more)

        headers = [{f"h{one}": f"{number}" for one in range(50)} for number in range(100)]
        records = [{"id": "", "destination": "", "headers": one, "body": b""} for one in headers]
        file = container(records)
        before = budget.bytes
        with patch.object(FrameLoop, "obey", watched):
            for client in clients:
                await client.write(client.bytes_of("POST", f"{Q}/messages", file, content_type="avro/binary"))
            for client in clients:
                assert (await client.response()).status == 201

        assert most == PARSED_AT_ONCE
        assert held[0] - before > 100 * 50 * VALUE_BYTES
        assert budget.bytes == before


@pytest.mark.parametrize("value", ["\ud800", "a\0b"], ids=["surrogate", "nul"])
async def test_a_header_that_no_frame_can_have_refuses_its_batch_and_no_later_one(
    autojump_clock: MockClock, value: str
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        response = await client.post(f"{Q}/messages", batch("one", headers={"kind": value}))
        assert response.status == 400

        assert (await client.post(f"{Q}/messages", batch("two"))).status == 201
        assert depths(rig.alive) == {"/queue/q": 1}
