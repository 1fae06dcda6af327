"""A backup that another machine reads: its files are as of its beginning, one at a time, and nothing of it is left."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.backups import OUTGOING_SECONDS
from qmq.storage.backup_files import OUTGOING, OUTGOING_PIECE_BYTES
from qmq.storage.store import Store, open_store
from tests.admin.test_bulk_jobs import refusal
from tests.admin.test_connections import ask
from tests.node.rig import Client, Rig, send, subscribe
from tests.storage.rig import A, Writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """That of a node which runs elsewhere, so to speak: the node of the rig has its own one in memory."""
    made = open_store(tmp_path / "data", node="a")
    made.begin_incarnation(0xAA, 1_700_000_000_000_000)
    yield made
    made.close()


async def piece(client: Client, backup: str, **options: int) -> bytes:
    said = {name: str(value) for name, value in options.items()}
    return base64.b64decode((await ask(client, f"backup-piece/{backup}", **said))["data"])


async def test_the_files_are_read_as_they_were_when_it_began(
    autojump_clock: MockClock, tmp_path: Path, store: Store
) -> None:
    writer = Writer(A)
    store.journal.append([writer.published("/queue/q", b"." * (OUTGOING_PIECE_BYTES + 100))])
    store.journal.sync()
    (segment,) = (tmp_path / "data" / "journal").iterdir()
    before = segment.read_bytes()
    async with Rig(data=tmp_path / "data").run() as rig:
        client, watcher = await rig.connect(), await rig.connect()
        await watcher.send(subscribe("/system/audit"))
        await watcher.receipt()

        begun = await ask(client, "backup")
        store.journal.append([writer.published("/queue/q", b"later")])
        store.journal.sync()
        names = [path for path, _, _ in begun["files"]]
        number = names.index(f"journal/{segment.name}")
        first = await piece(client, begun["backup"], file=number)
        second = await piece(client, begun["backup"], file=number, offset=len(first))
        behind = await piece(client, begun["backup"], file=number, offset=len(before))
        none = await refusal(client, f"backup-piece/{begun['backup']}", file=str(len(names)))
        assert (tmp_path / "data" / OUTGOING).exists()
        other = await rig.connect()
        await ask(other, f"backup/{begun['backup']}")

        assert names[:2] == ["catalog.sqlite", "queues.sqlite"]
        assert first + second == before and behind == b""
        assert len(first) == OUTGOING_PIECE_BYTES
        assert begun["node"] == "a" and begun["peers"] == {} and begun["members"] == ["a"]
        assert none == "bad-file"
        assert not (tmp_path / "data" / OUTGOING).exists()
        events = [json.loads((await watcher.next("MESSAGE")).body) for _ in range(2)]
        assert [(event["event"], event.get("backup")) for event in events] == [
            ("backup", None),
            ("backup", begun["backup"]),
        ]


async def test_one_is_read_at_a_time_and_ends_when_its_reader_asks_for_nothing(
    autojump_clock: MockClock, tmp_path: Path, store: Store
) -> None:
    async with Rig(data=tmp_path / "data").run() as rig:
        begun = await ask(await rig.connect(), "backup")

        await trio.sleep(OUTGOING_SECONDS - 1)
        assert await refusal(await rig.connect(), "backup") == "busy"
        await piece(await rig.connect(), begun["backup"])
        await trio.sleep(OUTGOING_SECONDS - 1)
        assert await refusal(await rig.connect(), "backup") == "busy"
        await trio.sleep(2)

        assert not (tmp_path / "data" / OUTGOING).exists()
        assert await refusal(await rig.connect(), f"backup-piece/{begun['backup']}") == "no-backup"
        again = await ask(await rig.connect(), "backup")
        assert again["backup"] != begun["backup"]


async def test_a_node_that_has_none_says_what_to_do_instead(
    autojump_clock: MockClock, tmp_path: Path, store: Store
) -> None:
    store.catalog.set_facts({"queues-in": "postgresql"})
    async with Rig(data=tmp_path / "data").run() as rig:
        assert "stop the node, then copy its directory and dump its database" in await reason(rig)
    async with Rig(data="memory").run() as rig:
        assert "keeps everything in memory" in await reason(rig)
    store.catalog.set_facts({"queues-in": "sqlite"})
    async with Rig(data=tmp_path / "data", storage={"disk_reserve_bytes": 1 << 50}).run() as rig:
        assert "the disk of the node has no room" in await reason(rig)


async def reason(rig: Rig) -> str:
    client = await rig.connect()
    await client.send(send("/control/backup", "", "r"))
    return (await client.next("ERROR")).head.headers["message"]


def test_the_next_start_removes_what_a_killed_node_has_left(tmp_path: Path, store: Store) -> None:
    store.close()
    (tmp_path / "data" / OUTGOING).mkdir()

    open_store(tmp_path / "data", node="a").close()

    assert not (tmp_path / "data" / OUTGOING).exists()
