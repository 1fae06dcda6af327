"""The tables of the queue store on SQLite, their migrations, and all statements on them.

`database` uses statements by name, so they have the same names, parameters and columns as in `postgres_sql`, which
takes those from here that differ in spelling only. `{}` stands for rows of placeholders. Each statement must find its
rows by a key; a test asks SQLite's planner.

Surprising: what is read comes back as one row, JSON beside one blob (see `sqlite_store`). A partition is a `lane` here:
names on disk stay.
"""

from typing import Final

from qmq.storage.disk.sqlite_import import Database, Migrations
from qmq.storage.format.row_checksum import number_checksum

migrations = Migrations("qmq-queues")


@migrations()
def m001_first(database: Database) -> None:
    """`rank` is the level (`qmq.model.levels`) with its sign turned.

    One statement at a time: a script would end the transaction in which the migration runs.
    """
    for statement in (
        """CREATE TABLE origins (
            id INTEGER PRIMARY KEY, node TEXT NOT NULL, incarnation INTEGER NOT NULL, UNIQUE (node, incarnation)
        ) STRICT""",
        """CREATE TABLE lanes (
            id INTEGER PRIMARY KEY, queue TEXT NOT NULL, rank INTEGER NOT NULL, delayed INTEGER NOT NULL,
            origin INTEGER NOT NULL, messages INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL,
            UNIQUE (queue, rank, delayed, origin)
        ) STRICT""",
        "CREATE INDEX lanes_by_origin ON lanes (origin)",
        """CREATE TABLE messages (
            lane INTEGER NOT NULL, sequence INTEGER NOT NULL, origin INTEGER NOT NULL, timestamp_us INTEGER NOT NULL,
            flags INTEGER NOT NULL, due_us INTEGER NOT NULL, expires_us INTEGER NOT NULL, exact INTEGER NOT NULL,
            headers BLOB NOT NULL, body BLOB NOT NULL, attempts INTEGER NOT NULL, checksum INTEGER NOT NULL,
            PRIMARY KEY (lane, sequence)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX messages_due ON messages (lane, due_us) WHERE due_us > 0",
        "CREATE INDEX messages_exact ON messages (lane, exact, sequence) WHERE exact != 0",
        "CREATE INDEX messages_expires ON messages (origin, expires_us) WHERE expires_us > 0",
        """CREATE TABLE tombstones (
            origin INTEGER NOT NULL, sequence INTEGER NOT NULL, checksum INTEGER NOT NULL,
            PRIMARY KEY (origin, sequence)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE progress (
            id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER NOT NULL, checksum INTEGER NOT NULL
        ) STRICT""",
        f"INSERT INTO progress VALUES (1, 0, {number_checksum(0)})",
        """CREATE TABLE lacks (
            node TEXT NOT NULL, incarnation INTEGER NOT NULL, after INTEGER NOT NULL, through INTEGER NOT NULL,
            sequence INTEGER NOT NULL, queue TEXT NOT NULL,
            PRIMARY KEY (node, incarnation, after, sequence, queue)
        ) STRICT""",
    ):
        database.conn.execute(statement)


@migrations()
def m002_runs(database: Database) -> None:
    """`sequence` and `through` are the first and the last of a run; what is settled lies beside it (`stored_run`)."""
    for statement in (
        """CREATE TABLE runs (
            lane INTEGER NOT NULL, sequence INTEGER NOT NULL, through INTEGER NOT NULL, messages INTEGER NOT NULL,
            bytes INTEGER NOT NULL, timestamp_us INTEGER NOT NULL, flags INTEGER NOT NULL, checksum INTEGER NOT NULL,
            places BLOB NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL, PRIMARY KEY (lane, sequence)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE settled (
            lane INTEGER NOT NULL, sequence INTEGER NOT NULL, messages INTEGER NOT NULL, bytes INTEGER NOT NULL,
            checksum INTEGER NOT NULL, waiting BLOB NOT NULL, PRIMARY KEY (lane, sequence)
        ) STRICT, WITHOUT ROWID""",
    ):
        database.conn.execute(statement)


KNOWN_MIGRATIONS: Final = frozenset({"m001_first", "m002_runs"})

INSERT: Final = "INSERT INTO messages VALUES {} ON CONFLICT (lane, sequence) DO NOTHING"
ADD_RUNS: Final = "INSERT INTO runs VALUES {}"
# A run that begins before a span may reach into it; runs of one partition do not overlap.
OVERLAPPING: Final = """WITH wanted (n, lane, low, high) AS (VALUES {})
    SELECT json_group_array(json_array(n)) FROM wanted
    WHERE EXISTS (SELECT 1 FROM messages WHERE lane = wanted.lane AND sequence BETWEEN low AND high)
    OR (SELECT through FROM runs WHERE lane = wanted.lane AND sequence <= high ORDER BY sequence DESC LIMIT 1) >= low"""
SETTLE: Final = """INSERT INTO settled VALUES {} ON CONFLICT (lane, sequence)
    DO UPDATE SET messages = excluded.messages, bytes = excluded.bytes, checksum = excluded.checksum,
    waiting = excluded.waiting"""
DELETE_RUNS: Final = """WITH gone (lane, sequence) AS (VALUES {})
    DELETE FROM runs WHERE (lane, sequence) IN (SELECT lane, sequence FROM gone)"""
DELETE_SETTLED: Final = """WITH gone (lane, sequence) AS (VALUES {})
    DELETE FROM settled WHERE (lane, sequence) IN (SELECT lane, sequence FROM gone)"""
OPEN_PARTITIONS: Final = """INSERT INTO lanes (queue, rank, delayed, origin, messages, bytes, checksum) VALUES {}
    ON CONFLICT (queue, rank, delayed, origin)
    DO UPDATE SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes"""
PARTITION_IDS: Final = """WITH wanted (n, queue, rank, delayed, origin) AS (VALUES {})
    SELECT json_group_array(json_array(n, id, messages))
    FROM wanted CROSS JOIN lanes USING (queue, rank, delayed, origin)"""
# By the queue (+): of an origin there may be a million partitions.
PARTITIONS_OF: Final = """WITH wanted (n, queue, origin) AS (VALUES {})
    SELECT json_group_array(json_array(n, id, checksum, EXISTS (SELECT 1 FROM runs WHERE lane = lanes.id)))
    FROM wanted CROSS JOIN lanes ON lanes.queue = wanted.queue AND +lanes.origin = wanted.origin"""
COUNT_RUN: Final = "SELECT count(*), sum(length(body)) FROM messages WHERE lane = ? AND sequence BETWEEN ? AND ?"
DELETE_RUN: Final = "DELETE FROM messages WHERE lane = ? AND sequence BETWEEN ? AND ?"
DELETE_ONE: Final = "DELETE FROM messages WHERE lane = ? AND sequence = ?"
COUNT: Final = """WITH gone (lane, sequence) AS (VALUES {})
    SELECT json_group_array(json_array(lane, messages, bytes)) FROM (
        SELECT lane, count(*) AS messages, sum(length(body)) AS bytes
        FROM gone CROSS JOIN messages USING (lane, sequence) GROUP BY lane)"""
# A search by both columns needs a plain SELECT here: with VALUES in its place the whole table would be scanned.
DELETE: Final = """WITH gone (lane, sequence) AS (VALUES {})
    DELETE FROM messages WHERE (lane, sequence) IN (SELECT lane, sequence FROM gone)"""
SUBTRACT: Final = """WITH gone (lane, messages, bytes) AS (VALUES {})
    UPDATE lanes SET messages = lanes.messages - gone.messages, bytes = lanes.bytes - gone.bytes
    FROM gone WHERE lanes.id = gone.lane"""
FAIL: Final = """WITH failed (lane, sequence, attempts) AS (VALUES {})
    UPDATE messages SET attempts = max(messages.attempts, failed.attempts), checksum =
        (checksum & 4294967295) | (max(checksum >> 32, failed.attempts) << 32)
    FROM failed WHERE messages.lane = failed.lane AND messages.sequence = failed.sequence"""
CLOSE_PARTITIONS: Final = "DELETE FROM lanes WHERE messages = 0 AND id IN (VALUES {})"
RECOUNTED: Final = """UPDATE lanes SET messages = (SELECT count(*) FROM messages WHERE lane = lanes.id)
    + (SELECT coalesce(sum(messages), 0) FROM runs WHERE lane = lanes.id)
    - (SELECT coalesce(sum(messages), 0) FROM settled WHERE lane = lanes.id),
    bytes = (SELECT coalesce(sum(length(body)), 0) FROM messages WHERE lane = lanes.id)
    + (SELECT coalesce(sum(bytes), 0) FROM runs WHERE lane = lanes.id)
    - (SELECT coalesce(sum(bytes), 0) FROM settled WHERE lane = lanes.id)"""
RECOUNT: Final = f"{RECOUNTED} WHERE id IN (VALUES {{}})"
ADD_TOMBSTONES: Final = "INSERT INTO tombstones VALUES {} ON CONFLICT (origin, sequence) DO NOTHING"
MOVE: Final = "UPDATE progress SET position = ?, checksum = ?"
ADD_MISSING: Final = """INSERT INTO lacks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (node, incarnation, after, sequence,
    queue) DO UPDATE SET through = max(through, excluded.through)"""
END_MISSING: Final = "DELETE FROM lacks WHERE (node, incarnation, after, sequence, queue) = (?, ?, ?, ?, ?)"
DELETE_TOMBSTONES: Final = """WITH gone (origin, sequence) AS (VALUES {})
    DELETE FROM tombstones WHERE (origin, sequence) IN (SELECT origin, sequence FROM gone)"""

COLUMNS: Final = "lane, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum, headers, body"
READY: Final = f"SELECT {COLUMNS} FROM messages WHERE lane = ? AND sequence > ? ORDER BY sequence LIMIT ?"
OVERDUE: Final = f"""SELECT {COLUMNS} FROM messages INDEXED BY messages_due
    WHERE lane = ? AND due_us > 0 AND due_us <= ? AND sequence > ? ORDER BY sequence LIMIT ?"""
READY_EXACT: Final = f"""SELECT {COLUMNS} FROM messages INDEXED BY messages_exact
    WHERE lane = ? AND exact != 0 AND (exact, sequence) > (?, ?) ORDER BY exact, sequence LIMIT ?"""
OVERDUE_EXACT: Final = f"""SELECT {COLUMNS} FROM messages INDEXED BY messages_due
    WHERE lane = ? AND due_us > 0 AND due_us <= ? AND (exact, sequence) > (?, ?) ORDER BY exact, sequence LIMIT ?"""
DUE: Final = f"""SELECT {COLUMNS} FROM messages INDEXED BY messages_due
    WHERE lane = ? AND due_us > 0 AND due_us > ? AND due_us <= ? ORDER BY due_us LIMIT ?"""
EXPIRED: Final = f"""SELECT {COLUMNS} FROM messages INDEXED BY messages_expires
    WHERE origin = ? AND expires_us > 0 AND expires_us <= ? ORDER BY expires_us LIMIT ?"""
NEXT_DUE: Final = (
    "SELECT min(due_us) FROM messages INDEXED BY messages_due WHERE lane = ? AND due_us > 0 AND due_us > ?"
)
# Two partitions of one origin: those that were delayed, and the others. Their bodies are not read.
NTH: Final = """SELECT sequence FROM messages WHERE lane = ? AND sequence > ?
    UNION ALL SELECT sequence FROM messages WHERE lane = ? AND sequence > ? ORDER BY sequence LIMIT ? OFFSET ?"""
COUNT_SPAN: Final = "SELECT count(*) FROM messages WHERE lane IN (?, ?) AND sequence > ? AND sequence <= ?"
WITH_SETTLED: Final = (
    "runs LEFT JOIN settled ON settled.lane = runs.lane AND settled.sequence = runs.sequence WHERE runs.lane = ?"
)
RUN_COUNTS: Final = f"""SELECT through, runs.messages - coalesce(settled.messages, 0) FROM {WITH_SETTLED}
    ORDER BY runs.sequence"""
RUN_NUMBERS: Final = (
    "runs.sequence AS sequence, through, runs.messages AS messages, runs.bytes AS bytes, timestamp_us, flags,"
    " runs.checksum AS checksum, settled.messages AS gone, settled.bytes AS gone_bytes,"
    " settled.checksum AS gone_checksum"
)
# From the run on that may hold a sequence, up to another sequence.
_FROM_RUN: Final = f"""FROM {WITH_SETTLED} AND runs.sequence >=
    coalesce((SELECT max(sequence) FROM runs WHERE lane = ? AND sequence <= ?), 0) AND through >= ?
    AND runs.sequence <= ? ORDER BY runs.sequence LIMIT ?"""
RUN_PLACES: Final = f"SELECT {RUN_NUMBERS}, places, waiting, NULL AS headers, NULL AS body {_FROM_RUN}"
RUNS: Final = f"SELECT {RUN_NUMBERS}, places, waiting, headers, body {_FROM_RUN}"
RUNS_IN_ONE: Final = """SELECT
    json_group_array(json_array(sequence, through, messages, bytes, timestamp_us, flags, checksum, gone, gone_bytes,
        gone_checksum, length(places), length(waiting), length(headers), length(body))),
    CAST(group_concat(places || coalesce(waiting, '') || coalesce(headers, '') || coalesce(body, ''), '') AS BLOB)
    FROM ({})"""
NTH_EXACT: Final = """SELECT exact, node, incarnation, sequence
    FROM lanes JOIN origins ON origins.id = lanes.origin
    CROSS JOIN messages INDEXED BY messages_exact ON messages.lane = lanes.id AND exact != 0
    WHERE queue = ? AND node = ? AND rank = ? ORDER BY exact, lanes.origin, sequence LIMIT 1 OFFSET ?"""
SIZES: Final = "SELECT json_group_array(length(headers) + length(body)) FROM ({})"
SIZE: Final = "SELECT sum(length(headers) + length(body)) FROM ({})"
# Two aggregates over the same rows see them in the same order, so lengths and bytes agree; a blob comes through
# group_concat byte for byte.
IN_ONE: Final = """SELECT
    json_group_array(CASE WHEN due_us | expires_us | exact | attempts
        THEN json_array(lane, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum,
            length(headers), length(body))
        ELSE json_array(lane, sequence, timestamp_us, flags, checksum, length(headers), length(body)) END),
    CAST(group_concat(headers || body, '') AS BLOB) FROM ({})"""
HEADS: Final = """WITH wanted (n, queue) AS (VALUES {})
    SELECT json_group_array(json_array(n, lanes.id, rank, delayed, messages, bytes)) FROM wanted CROSS JOIN lanes
    USING (queue) WHERE origin IN (SELECT id FROM origins WHERE node = ?)"""
UNSETTLED: Final = """SELECT sequence, lanes.id, queue, rank, delayed, lanes.origin
    FROM lanes CROSS JOIN messages ON messages.lane = lanes.id
    WHERE lanes.origin = ? AND sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?"""
RUNS_OF: Final = """SELECT runs.sequence, lanes.id, queue, rank, delayed, lanes.origin
    FROM lanes CROSS JOIN runs ON runs.lane = lanes.id
    WHERE lanes.origin = ? AND runs.sequence >=
    coalesce((SELECT max(sequence) FROM runs WHERE lane = lanes.id AND sequence <= ?), 0)
    AND runs.sequence <= ? AND +runs.sequence > ? AND through > ? ORDER BY runs.sequence LIMIT ?"""
POSITION: Final = "SELECT position, checksum FROM progress"
TOMBSTONES: Final = """SELECT node, incarnation, sequence, tombstones.checksum
    FROM tombstones LEFT JOIN origins ON origins.id = origin"""
ONE: Final = f"SELECT {COLUMNS} FROM messages WHERE lane = ? AND sequence = ?"
ORIGIN: Final = "SELECT id FROM origins WHERE node = ? AND incarnation = ?"
ORIGINS_OF: Final = "SELECT id FROM origins WHERE node = ?"
ALL_ORIGINS: Final = "SELECT id, node, incarnation FROM origins"
ANY_ROW: Final = "SELECT 1 FROM origins CROSS JOIN lanes ON lanes.origin = origins.id WHERE node = ? LIMIT 1"
_HAS_RUNS: Final = "EXISTS (SELECT 1 FROM runs WHERE lane = lanes.id)"
BY_PRIORITY: Final = f"""SELECT origin, lanes.id, incarnation, rank, delayed, {_HAS_RUNS}
    FROM lanes JOIN origins ON origins.id = origin WHERE queue = ? AND node = ? AND rank = ? AND origin >= ?"""
DELAYED: Final = f"""SELECT origin, lanes.id, incarnation, rank, delayed, {_HAS_RUNS}
    FROM lanes JOIN origins ON origins.id = origin WHERE queue = ? AND node = ? AND delayed"""
ORIGINS: Final = """SELECT node, incarnation FROM origins
    WHERE EXISTS (SELECT 1 FROM lanes WHERE lanes.origin = origins.id)"""
PARTITION: Final = """SELECT lanes.id, queue, rank, delayed, origin, node, incarnation, checksum
    FROM lanes JOIN origins ON origins.id = lanes.origin WHERE lanes.id = ?"""
MISSING_RANGES: Final = (
    "SELECT node, incarnation, after, through, sequence, queue FROM lacks ORDER BY node, incarnation, after"
)
LISTING: Final = """SELECT queue, CAST(sum(messages) AS bigint), CAST(sum(bytes) AS bigint)
    FROM lanes JOIN origins ON origins.id = lanes.origin
    WHERE queue > ? AND node = coalesce(?, node) GROUP BY queue ORDER BY queue LIMIT ?"""
DEEPEST: Final = """SELECT queue FROM lanes JOIN origins ON origins.id = lanes.origin
    WHERE node = ? GROUP BY queue ORDER BY sum(messages) DESC, queue LIMIT ?"""
TOTAL: Final = """SELECT CAST(coalesce(sum(messages), 0) AS bigint) FROM lanes JOIN origins ON origins.id = lanes.origin
    WHERE node = ?"""

WIDTHS: Final = {
    INSERT: 12,
    ADD_RUNS: 11,
    OVERLAPPING: 4,
    SETTLE: 6,
    DELETE_RUNS: 2,
    DELETE_SETTLED: 2,
    OPEN_PARTITIONS: 7,
    PARTITION_IDS: 5,
    PARTITIONS_OF: 3,
    COUNT: 2,
    DELETE: 2,
    SUBTRACT: 3,
    FAIL: 3,
    CLOSE_PARTITIONS: 1,
    RECOUNT: 1,
    ADD_TOMBSTONES: 3,
    DELETE_TOMBSTONES: 2,
    HEADS: 2,
}
"""Values in a row of the statements that take rows."""
PLAIN: Final = tuple(
    text
    for text in list(globals().values())
    if isinstance(text, str) and text.startswith(("SELECT", "DELETE", "UPDATE")) and "{}" not in text
)
"""The others."""
