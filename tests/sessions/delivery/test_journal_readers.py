"""Named readers of the journal: how far each is behind, and the condition of archives that are too far behind."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.model.dots import Origin
from qmq.sessions.delivery.journal_readers import BEHIND, CHECK_SECONDS, ReaderRow
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.sessions.delivery.test_journal_reads import JOURNAL, picture, publish, until_end

ARCHIVE = Key("archive", "archive")
VALUE = {"table": "/data/archive", "behind_seconds_max": 60}


def rows(rig: Rig) -> list[ReaderRow]:
    return rig.alive.session_parts.journal_reads.readers.rows()


def conditions(rig: Rig) -> list[str]:
    return [one.message for one in rig.alive.conditions.present() if one.code == BEHIND]


async def define(rig: Rig, value: dict[str, Any] | None) -> None:
    await rig.alive.settings_parts.definitions.change({ARCHIVE: value})


def have(rig: Rig) -> int:
    return rig.alive.store.journal.vector()[rig.alive.origin]


async def report(rig: Rig, reader: Client, sequence: int, name: str = "archive") -> dict[str, Any]:
    said = {"qmq-reader": name, "qmq-resume": f"{rig.alive.origin}={sequence}", "qmq-until": ""}
    await reader.send(subscribe(JOURNAL, **said))
    found = await picture(reader)
    assert await until_end(reader) == []
    await reader.send("UNSUBSCRIBE\nid:0\n\n")
    return found


async def test_a_reader_is_shown_with_records_and_seconds_while_it_is_connected(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await publish(client, "1", "2", "3")
        await report(rig, reader, have(rig))
        await publish(client, "4", "5")
        await trio.sleep(7)

        (row,) = rows(rig)

        assert row._replace(seconds=None) == ("archive", 2, None, True)
        assert row.seconds is not None and 7 <= row.seconds < 8
        await reader.send("DISCONNECT\n\n")
        await eventually(lambda: rows(rig) == [])


async def test_the_seconds_are_unknown_until_a_reader_was_level(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await publish(client, "1", "2", "3")

        await report(rig, reader, 2)

        assert rows(rig) == [("archive", 2, None, True)]


async def test_a_report_may_leave_out_origins_of_which_the_journal_holds_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await publish(client, "1")
        journal, gone = rig.alive.store.journal, Origin("gone", 7)
        vector, base = journal.vector(), journal.base()
        monkeypatch.setattr(journal, "vector", lambda: {**vector, gone: 50})
        monkeypatch.setattr(journal, "base", lambda: {**base, gone: 50})

        await report(rig, reader, vector[rig.alive.origin])

        assert rows(rig)[0].behind == 0


async def test_an_archive_of_the_mesh_is_shown_after_its_archiver_has_left(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await define(rig, VALUE)
        await report(rig, reader, have(rig))
        await reader.send("DISCONNECT\n\n")
        await eventually(lambda: not rows(rig)[0].connected)

        await publish(client, "1")

        assert rows(rig)[0].behind == 1
        await define(rig, None)
        assert rows(rig) == []


async def test_a_condition_names_an_archive_that_is_too_far_behind_until_it_has_caught_up(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await define(rig, VALUE)
        await report(rig, reader, have(rig))
        await reader.send("DISCONNECT\n\n")
        await trio.sleep(200)
        assert conditions(rig) == [], "nothing is lacking"

        await publish(client, "1")
        await trio.sleep(50)
        assert conditions(rig) == []
        await trio.sleep(10 + CHECK_SECONDS)

        assert conditions(rig) == ["The archive archive lacks records that this node has had for more than 60 s."]
        successor = await rig.connect()
        await report(rig, successor, have(rig))
        await trio.sleep(CHECK_SECONDS)
        assert conditions(rig) == []


async def test_an_archive_that_is_never_level_is_too_far_behind_at_last(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await define(rig, VALUE)
        await publish(client, "1")
        await report(rig, reader, 0)

        await trio.sleep(60 + 2 * CHECK_SECONDS)

        assert len(conditions(rig)) == 1
        await define(rig, None)
        await trio.sleep(2 * CHECK_SECONDS)
        assert conditions(rig) == []


async def test_a_reader_with_another_name_than_an_archive_raises_no_condition(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await define(rig, VALUE)
        await publish(client, "1")

        await report(rig, reader, 0, name="stream")
        await trio.sleep(200)

        assert conditions(rig) == []


async def test_readers_hear_which_archives_the_mesh_has(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        reader = await rig.connect()
        assert (await report(rig, reader, 0))["archives"] == {}

        await define(rig, VALUE)

        assert (await report(rig, reader, 0))["archives"] == {"archive": VALUE}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("archive", {}, "table: is required"),
        ("archive", {"table": "data/archive"}, "must be an absolute path"),
        ("archive", {"table": "ftp://host/archive"}, "no address of a table"),
        ("archive", {"table": "s3://bucket/x?signature=hidden"}, "must have no keys"),
        ("archive", {"table": "s3://id:hidden@bucket/x"}, "must have no keys"),
        ("archive", {"table": "abfss://id:hidden@account.dfs.core.windows.net/x"}, "must have no keys"),
        ("archive", {"table": "/data", "destinations": []}, "at least one of destinations"),
        ("archive", {"table": "/data", "destinations": ["/topic/x"]}, "must be a queue or a fanout"),
        ("archive", {"table": "/data", "behind_seconds_max": 1}, "must be at least 10"),
        ("archive", {"table": "/data", "secret_key": "x"}, "unknown key"),
        ("a b", {"table": "/data"}, "1 to 127 characters"),
    ],
)
async def test_a_definition_that_cannot_be_is_refused(
    autojump_clock: MockClock, name: str, value: dict[str, Any], problem: str
) -> None:
    async with Rig().run() as rig:
        with pytest.raises(Refused, match=problem) as refused:
            await rig.alive.settings_parts.definitions.change({Key("archive", name): value})
        assert "hidden" not in str(refused.value)


async def test_a_status_shows_readers_of_the_journal(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await report(rig, reader, have(rig))

        await client.send(send("/control/status", "", receipt="asked"))

        status = (await client.next("RECEIPT")).head.headers["status"]
        assert '"readers":[{"name":"archive","behind":0,"seconds":0.0,"connected":true}]' in status
