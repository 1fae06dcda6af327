"""`/system/journal`: the commit log as a subscription."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.engine.commit.committed_tail import CommittedTail
from qmq.model.dots import Origin
from qmq.storage.format.batch import batch_records, read_head
from qmq.storage.repair.range_snapshot import RangeSnapshot, snapshot_batch
from tests.node.rig import Client, Rig, eventually, send, subscribe

JOURNAL = "/system/journal"


def records(data: bytes) -> list[tuple[int, bytes]]:
    """Sequence and body of every record of whole batches."""
    found = []
    offset = 0
    while offset < len(data):
        head = read_head(data, offset)
        assert head is not None
        found += [(one.sequence, one.body) for one in batch_records(data[offset : offset + head.size])]
        offset += head.size
    return found


async def picture(client: Client) -> dict[str, Any]:
    message = await client.next("MESSAGE")
    assert message.head.headers["journal"] == "picture"
    found: dict[str, Any] = json.loads(message.body)
    return found


async def until_end(client: Client) -> list[tuple[int, bytes]]:
    found = []
    while True:
        message = await client.next("MESSAGE")
        if message.head.headers.get("journal") == "end":
            return found
        assert message.head.headers["content-type"] == "application/x-qmq-batches"
        found += records(message.body)


async def publish(client: Client, *bodies: str) -> None:
    for body in bodies:
        await client.send(send("/queue/q", body, receipt=body))
        await client.receipt()


async def test_the_status_names_what_the_node_has(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await publish(client, "one", "two")

        await client.send(subscribe(JOURNAL, **{"qmq-until": ""}))

        told = await picture(client)
        assert (told["node"], told["origin"]) == (rig.alive.origin.node, str(rig.alive.origin))
        assert told["vector"] == {str(rig.alive.origin): 3}
        assert (told["base"], told["given_up"], told["rests"], told["segments"]) == ({}, {}, {}, [])
        assert await until_end(client) == []


async def test_the_status_names_what_the_node_gave_up(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        rig.alive.mesh_parts.catch_up._losses.accept_gap(Origin("lost", 7), 77)

        await client.send(subscribe(JOURNAL, **{"qmq-until": ""}))

        assert (await picture(client))["given_up"] == {str(Origin("lost", 7)): 77}


async def test_the_status_names_where_snapshots_end_before_and_after_a_restart(autojump_clock: MockClock) -> None:
    rig, lost = Rig(), Origin("lost", 7)
    async with rig.run():
        journal = rig.alive.store.journal
        await trio.to_thread.run_sync(journal.append, [snapshot_batch(lost, 0, RangeSnapshot(20, 0, 0, []))])
        client = await rig.connect()

        await client.send(subscribe(JOURNAL, **{"qmq-until": ""}))

        assert (await picture(client))["rests"] == {str(lost): 20}
    async with rig.run():
        client = await rig.connect()

        await client.send(subscribe(JOURNAL, **{"qmq-until": ""}))

        assert (await picture(client))["rests"] == {str(lost): 20}


async def test_records_between_two_vectors_are_sent_and_then_the_end(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await publish(client, *(str(number) for number in range(2, 12)))
        origin = rig.alive.origin

        await client.send(subscribe(JOURNAL, **{"qmq-resume": f"{origin}=4", "qmq-until": f"{origin}=7"}))

        await picture(client)
        told = dict(await until_end(client))
        assert {5: b"5", 6: b"6", 7: b"7"}.items() <= told.items()
        assert 4 not in told and 8 not in told


async def test_without_an_end_what_comes_is_sent_once_it_is_durable(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await publish(client, "past")
        await reader.send(subscribe(JOURNAL))
        await picture(reader)
        past = records((await reader.next("MESSAGE")).body)

        await publish(client, "present")

        present = records((await reader.next("MESSAGE")).body)
        assert (past[-1][1], present) == (b"past", [(3, b"present")])


async def test_an_end_that_the_node_does_not_have_is_no_reason_to_wait(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await publish(client, "one")

        await client.send(subscribe(JOURNAL, **{"qmq-until": f"{rig.alive.origin}=99,other-00000000000000aa=5"}))

        await picture(client)
        assert [number for number, _ in await until_end(client)] == [1, 2]


async def test_what_is_written_and_not_sent_yet_is_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture may name it already: an end without it would look like a loss."""
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await publish(client, "one")
        told = rig.alive.engine.commits.committed_end
        await publish(client, "two")
        behind = replace(rig.alive.engine, tail=_Behind(rig.alive.engine.tail, told))
        monkeypatch.setattr(rig.alive.session_parts.journal_reads, "_engine", behind)

        await reader.send(subscribe(JOURNAL, **{"qmq-until": f"{rig.alive.origin}=3"}))

        await picture(reader)
        assert [number for number, _ in await until_end(reader)] == [1, 2, 3]


class _Behind:
    """The journal of a node that has delivered everything up to a position, until a reader waits for more."""

    def __init__(self, tail: CommittedTail, told: int) -> None:
        self._tail = tail
        self._told: int | None = told

    def committed_end(self) -> int:
        return self._tail.committed_end() if self._told is None else self._told

    async def grew(self, position: int) -> None:
        self._told = None
        await self._tail.grew(position)


async def test_records_of_others_do_not_send_a_reader_to_the_beginning(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await publish(client, "one", "two")
        journal = rig.alive.store.journal
        asked: list[int] = []

        def read(position: int, bytes_max: int) -> list[Any]:
            asked.append(position)
            return type(journal).read(journal, position, bytes_max)

        monkeypatch.setattr(journal, "read", read)

        await client.send(subscribe(JOURNAL, **{"qmq-until": "other-00000000000000aa=5"}))

        await picture(client)
        assert await until_end(client) == []
        assert asked == [journal.end]


async def test_readers_that_have_left_do_not_accumulate_while_nothing_is_written(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        reads = rig.alive.session_parts.journal_reads
        for number in range(5):
            await client.send(subscribe(JOURNAL, str(number)))
            await picture(client)
            await client.next("MESSAGE")
            await eventually(lambda: any(not reader.closed for reader in reads.waiting))
            await client.send(f"UNSUBSCRIBE\nid:{number}\nreceipt:u\n\n")
            assert await client.receipt() == f"sub-{number}"
            assert await client.receipt() == "u"

        assert len(reads.waiting) == 1


async def test_unsubscribing_ends_the_delivery(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await reader.send(subscribe(JOURNAL))
        await picture(reader)
        await reader.next("MESSAGE")

        await reader.send("UNSUBSCRIBE\nid:0\n\n", subscribe("/queue/q", id="1"))
        await publish(client, "for the queue")

        assert (await reader.next("MESSAGE")).head.headers["destination"] == "/queue/q"


@pytest.mark.parametrize("header", ["qmq-resume", "qmq-until"])
async def test_a_vector_that_is_none_is_refused(autojump_clock: MockClock, header: str) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        await client.send(subscribe(JOURNAL, **{header: "nonsense"}))

        error = await client.next("ERROR")
        assert error.head.headers["error-code"] == "bad-resume" and header in error.head.headers["message"]


async def test_a_status_has_room_for_some_of_many_readers(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        for number in range(150):
            reader = await rig.connect()
            said = {"qmq-reader": f"one-of-many-tasks-of-the-archive-{number:03}", "qmq-until": ""}
            await reader.send(subscribe(JOURNAL, **said))
            await picture(reader)
        client = await rig.connect()

        await client.send(send("/control/status", "", receipt="asked"))

        status = json.loads((await client.next("RECEIPT")).head.headers["status"])
        assert 10 < len(status["readers"]) < 150
        assert status["cut"]
