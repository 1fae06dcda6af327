"""What only the queue store on PostgreSQL does; the common behaviour is in test_queue_stores."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from qmq.errors import DirectoryInUse, FutureVersion, LogBroken, StorageError
from qmq.model.dots import Dot, Origin
from qmq.storage.format.queue_store import QueueRow, QueueStore
from qmq.storage.format.row_checksum import number_checksum
from qmq.storage.format.settings import StoreSettings
from qmq.storage.queues import postgres_sql as sql
from qmq.storage.queues.choice import QUEUES_FILE, open_queue_store, stored_rows
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.store import open_store
from tests.support.postgres import Server

from ..rig import NOW, A, B, Writer, all_rows

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'qmq[postgres]')")
module = pytest.importorskip("qmq.storage.queues.postgres_store")
ROW = QueueRow(Dot(A, 1), "/queue/q", NOW, 0, 4, 0, 0, b"k:v\n", b"body")


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """Leads to tables that no other test has used. The test may stop the server."""
    yield postgres.fresh_schema()
    postgres.start()


def test_a_second_process_is_kept_out_until_the_first_is_gone(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.fresh_schema()
    store = module.PostgresQueueStore(url, "a")

    with monkeypatch.context() as patch, pytest.raises(DirectoryInUse, match="another process"):
        patch.setattr(module, "LOCK_SECONDS", 0.01)
        module.PostgresQueueStore(url, "a")

    store.close()
    module.PostgresQueueStore(url, "a").close()


def test_nodes_with_schemas_of_their_own_share_a_database(postgres: Server) -> None:
    first = module.PostgresQueueStore(postgres.fresh_schema(), "a")
    second = module.PostgresQueueStore(postgres.fresh_schema(), "b")

    first.apply(runs_of([ROW]), {}, [], [], 7)

    assert (first.position(), second.position()) == (7, 0)
    assert second.is_empty("a")
    first.close()
    second.close()


def test_the_tables_of_another_node_are_refused(postgres: Server) -> None:
    url = postgres.fresh_schema()
    module.PostgresQueueStore(url, "a").close()

    with pytest.raises(StorageError, match="belongs to node a, not to b"):
        module.PostgresQueueStore(url, "b")

    module.PostgresQueueStore(url, "a").close()


def test_later_steps_change_the_tables_and_keep_the_messages(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.fresh_schema()
    store = module.PostgresQueueStore(url, "a")
    store.apply(runs_of([ROW]), {}, [], [], 7)
    store.close()
    steps = (*sql.STEPS, "CREATE TABLE qmq_later (id integer)", "INSERT INTO qmq_later VALUES (1)")
    monkeypatch.setattr(sql, "STEPS", steps)

    for _ in range(2):
        store = module.PostgresQueueStore(url, "a")
        assert store.page("a", "/queue/q", 4, None, NOW, 9) == [ROW]
        store.close()

    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version FROM qmq_version").fetchone() == (len(steps),)
        assert connection.execute("SELECT id FROM qmq_later").fetchall() == [(1,)]


def test_tables_of_later_software_are_refused_and_left_alone(postgres: Server) -> None:
    url = postgres.fresh_schema()
    module.PostgresQueueStore(url, "a").close()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE qmq_version SET version = 99")

    with pytest.raises(FutureVersion, match="version 99"):
        module.PostgresQueueStore(url, "a")

    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version FROM qmq_version").fetchone() == (99,)


def test_a_server_that_is_not_there_is_a_storage_error_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be used") as caught:
        module.PostgresQueueStore(f"postgresql://me:hush@/db?host={tmp_path}", "a")

    assert "hush" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_url_that_is_none_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="cannot be used"):
        module.PostgresQueueStore("postgresql://h/db?colour=blue", "a")


def test_a_missing_schema_is_a_storage_error(postgres: Server) -> None:
    with pytest.raises(StorageError, match="search_path"):
        module.PostgresQueueStore(f"{postgres.url}&options=-csearch_path%3Dnowhere", "a")


def test_a_server_that_goes_away_breaks_the_store_and_nothing_is_half_done(postgres: Server, url: str) -> None:
    store = module.PostgresQueueStore(url, "a")
    store.apply(runs_of([ROW]), {}, [], [], 1)
    postgres.stop()
    store._watch.seconds_max = 0.5

    with pytest.raises(LogBroken, match="failed"):
        store.apply([], {"/queue/q": [ROW.dot]}, [], [], 2)
    with pytest.raises(LogBroken, match="failed"):
        store.heads("a", ["/queue/q"], NOW)
    store.close()

    postgres.start()
    again = module.PostgresQueueStore(url, "a")
    assert again.position() == 1
    assert again.page("a", "/queue/q", 4, None, NOW, 9) == [ROW]
    again.close()


def test_rows_that_were_there_among_new_ones_are_kept_and_counted_once(postgres: Server) -> None:
    store = module.PostgresQueueStore(postgres.fresh_schema(), "a")
    rows = [ROW._replace(dot=Dot(A, n)) for n in range(1, 2000)]
    store.apply(runs_of(rows[:1000]), {}, [], [], 1)

    store.apply(runs_of(rows[500:]), {}, [], [], 2)

    assert store.listing("a", None, 9) == [("/queue/q", 1999, 4 * 1999)]
    store.close()


def test_a_node_keeps_its_backlog_there(postgres: Server, tmp_path: Path) -> None:
    url = postgres.fresh_schema()
    store = open_store(tmp_path / "data", node="a", queue_store=url)
    writer = Writer(store.begin_incarnation(7, NOW), have=1)
    dots = [writer.publish("/queue/q", b"%d" % n) for n in range(5)]
    writer.settle("/queue/q", dots[:2])
    store.journal.append([writer.batch()])
    store.close()

    store = open_store(tmp_path / "data", node="a", queue_store=url)

    assert all_rows(store) == {dot: b"%d" % n for n, dot in enumerate(dots) if n >= 2}
    assert not (tmp_path / "data" / "queues.sqlite").exists()
    assert dots[0].origin == Origin("a", 7)
    store.close()


def test_a_node_that_changes_to_postgresql_takes_its_backlog_with_it(postgres: Server, tmp_path: Path) -> None:
    settings = StoreSettings(segment_bytes_max=1500, journal_keep_bytes=0, reserve_bytes=0)
    store = open_store(tmp_path / "data", node="a", settings=settings)
    b = Writer(B)
    for n in range(12):
        store.journal.append([b.published("/queue/q", b"%d" % n * 200)])
    b.settle("/queue/q", [Dot(A, 5)])
    store.journal.append([b.batch()])
    store.checkpoint(store.journal.end, NOW, {})
    assert store.journal.start > 0
    rows = all_rows(store)
    store.close()
    url = postgres.fresh_schema()

    for _ in range(2):
        store = open_store(tmp_path / "data", node="a", settings=settings, queue_store=url)
        assert all_rows(store) == rows
        assert store.queues.tombstones() == {Dot(A, 5)}
        assert store.queues.position() == store.journal.end
        store.close()


def test_what_an_interrupted_copy_has_left_is_not_taken_for_messages(postgres: Server, tmp_path: Path) -> None:
    url = postgres.fresh_schema()
    half = module.PostgresQueueStore(url, "a")
    half.apply(runs_of([ROW]), {}, [Dot(B, 9)], [], 0)
    half.close()
    with closing(SqliteQueueStore(tmp_path / QUEUES_FILE)) as old:
        # ROW was settled meanwhile.
        old.apply(runs_of([ROW._replace(dot=Dot(A, 2))]), {}, [], [], 9)

    store = open_queue_store(tmp_path, url, "a")

    assert (store.position(), store.tombstones()) == (9, set())
    assert [row.dot for row in stored_rows(store, "a")] == [Dot(A, 2)]
    assert store.listing("a", None, 9) == [("/queue/q", 1, 4)]
    store.close()


@pytest.mark.parametrize(
    "read",
    [lambda store: store.skip("a", "/queue/q", 4, 1)[2] == 1, lambda store: store.deepest("a", 9) == ["/queue/q"]],
    ids=["skip", "deepest"],
)
def test_reads_for_operators_outlive_a_lost_connection(
    postgres: Server, url: str, read: Callable[[QueueStore], bool]
) -> None:
    store = module.PostgresQueueStore(url, "a")
    store.apply(runs_of([ROW]), {}, [], [], 1)
    store._cut()

    assert read(store)
    store.close()


def test_calls_outlive_a_restart_of_the_server_and_connections_that_it_ends(postgres: Server, url: str) -> None:
    store = module.PostgresQueueStore(url, "a")
    rows = [ROW._replace(dot=Dot(A, n)) for n in range(1, 6)]
    for n, row in enumerate(rows, start=1):
        store.apply(runs_of([row]), {}, [], [], n)
        if n % 2:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name='qmq'"
                )
        else:
            postgres.stop()
            postgres.start()

        assert store.page("a", "/queue/q", 4, None, NOW, 9) == rows[:n]
        store.apply([], {}, [], [], n)
    assert store.listing("a", None, 9) == [("/queue/q", 5, 20)]
    # The lock is this node's again.
    with pytest.raises(DirectoryInUse), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOCK_SECONDS", 0.01)
        module.PostgresQueueStore(url, "a")
    store.close()


def test_a_transaction_that_is_cut_in_the_midst_of_it_is_made_whole(postgres: Server, url: str) -> None:
    store = module.PostgresQueueStore(url, "a")
    insert = store._insert
    cuts = 3

    def cut(*arguments: object) -> None:
        nonlocal cuts
        insert(*arguments)
        if cuts:
            cuts -= 1
            store._cut()

    store._insert = cut
    store.apply(runs_of([ROW]), {}, [], [], 7)

    assert (cuts, store.position()) == (0, 7)
    assert store.listing("a", None, 9) == [("/queue/q", 1, 4)]
    store.close()


def test_a_commit_whose_answer_is_lost_is_not_done_twice(
    postgres: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = module.PostgresQueueStore(url, "a")
    change = store._change
    losses = 1

    @contextmanager
    def lose() -> Iterator[Any]:
        nonlocal losses
        with change() as writer:
            yield writer
        if losses:
            losses -= 1
            store._cut()
            raise module.LostConnection("the answer to COMMIT is lost")

    monkeypatch.setattr(store, "_change", lose)
    store.apply(runs_of([ROW]), {}, [Dot(B, 9)], [], 7)

    assert (losses, store.position()) == (0, 7)
    assert store.listing("a", None, 9) == [("/queue/q", 1, 4)]
    assert store.tombstones() == {Dot(B, 9)}
    store.apply(runs_of([ROW._replace(dot=Dot(A, 2))]), {"/queue/q": [ROW.dot]}, [], [], 8)
    assert store.listing("a", None, 9) == [("/queue/q", 1, 4)]
    store.close()


def test_a_server_that_hangs_breaks_the_store_when_its_time_is_over(
    postgres: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 2)
    store = module.PostgresQueueStore(url, "a")
    store.apply(runs_of([ROW]), {}, [], [], 1)

    with postgres.paused():
        store._watch.seconds_max = 1.0
        with pytest.raises(
            LogBroken, match=r"(failed|cannot be used).*; no call .* for 1 s \(queue_store_seconds_max\)"
        ):
            store.apply([], {"/queue/q": [ROW.dot]}, [], [], 2)
        with pytest.raises(LogBroken, match="failed|cannot be used"):
            store.position()
        store.close()


def test_a_database_that_comes_back_older_is_not_written_to(postgres: Server, url: str) -> None:
    store = module.PostgresQueueStore(url, "a")
    store.apply(runs_of([ROW]), {}, [], [], 10)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE qmq_progress SET position = 5, checksum = %s", (number_checksum(5),))
    store._cut()

    with pytest.raises(LogBroken, match="has lost what it had committed: it is at position 5"):
        store.apply([], {}, [], [], 11)
    store.close()


def test_what_the_server_says_of_idle_clients_is_not_meant_for_a_node(postgres: Server) -> None:
    store = module.PostgresQueueStore(
        f"{postgres.fresh_schema()}%20-cidle_in_transaction_session_timeout%3D9000", "a", 7.0
    )

    for connection in (store._writer, store._reader):
        said = [
            connection.execute(f"SHOW {name}").fetchone()[0]
            for name in ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
        ]
        assert said == ["7s", "0", "0"]
        connection.rollback()
    store.close()
