"""The tables of the queue store on PostgreSQL, their migrations, and all statements on them.

`database` uses statements by name, so they have the same names, parameters and columns as in `sqlite_sql`; most of them
are those, spelled for PostgreSQL. Rows are passed as columns (`unnest`), so that a statement takes any number of them.
A partition is a `lane` here.
"""

from re import sub
from typing import Final

from qmq.storage.format.row_checksum import number_checksum
from qmq.storage.queues import sqlite_sql

# Step n migrates version n to n + 1. A released step never changes; later ones are added.
STEPS: Final = (
    f"""
    CREATE TABLE qmq_origins (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, node text NOT NULL, incarnation bigint NOT NULL,
        UNIQUE (node, incarnation)
    );
    CREATE TABLE qmq_lanes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text COLLATE "C" NOT NULL, rank smallint NOT NULL,
        delayed boolean NOT NULL, origin integer NOT NULL, messages bigint NOT NULL, bytes bigint NOT NULL,
        checksum bigint NOT NULL,
        UNIQUE (queue, rank, delayed, origin)
    );
    CREATE INDEX qmq_lanes_by_origin ON qmq_lanes (origin);
    CREATE TABLE qmq_messages (
        lane bigint NOT NULL, sequence bigint NOT NULL, origin integer NOT NULL, timestamp_us bigint NOT NULL,
        flags integer NOT NULL, due_us bigint NOT NULL, expires_us bigint NOT NULL, exact bigint NOT NULL,
        headers bytea NOT NULL, body bytea NOT NULL, attempts integer NOT NULL, checksum bigint NOT NULL,
        PRIMARY KEY (lane, sequence)
    );
    ALTER TABLE qmq_messages ALTER body SET STORAGE EXTERNAL;
    CREATE INDEX qmq_messages_due ON qmq_messages (lane, due_us) WHERE due_us > 0;
    CREATE INDEX qmq_messages_exact ON qmq_messages (lane, exact, sequence) WHERE exact != 0;
    CREATE INDEX qmq_messages_expires ON qmq_messages (origin, expires_us) WHERE expires_us > 0;
    CREATE TABLE qmq_tombstones (
        origin integer NOT NULL, sequence bigint NOT NULL, checksum bigint NOT NULL, PRIMARY KEY (origin, sequence)
    );
    CREATE TABLE qmq_progress (
        node text NOT NULL, position bigint NOT NULL, checksum bigint NOT NULL DEFAULT {number_checksum(0)}
    );
    CREATE TABLE qmq_lacks (
        node text NOT NULL, incarnation bigint NOT NULL, after bigint NOT NULL, through bigint NOT NULL,
        sequence bigint NOT NULL, queue text NOT NULL,
        PRIMARY KEY (node, incarnation, after, sequence, queue)
    );
    """,
    """
    CREATE TABLE qmq_runs (
        lane bigint NOT NULL, sequence bigint NOT NULL, through bigint NOT NULL, messages bigint NOT NULL,
        bytes bigint NOT NULL, timestamp_us bigint NOT NULL, flags integer NOT NULL, checksum bigint NOT NULL,
        places bytea NOT NULL, headers bytea NOT NULL, body bytea NOT NULL, PRIMARY KEY (lane, sequence)
    );
    ALTER TABLE qmq_runs ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE qmq_settled (
        lane bigint NOT NULL, sequence bigint NOT NULL, messages bigint NOT NULL, bytes bigint NOT NULL,
        checksum bigint NOT NULL, waiting bytea NOT NULL, PRIMARY KEY (lane, sequence)
    );
    """,
)


def _of_sqlite(statement: str) -> str:
    """The same on PostgreSQL: the names of tables, parameters, and what only SQLite's planner needs."""
    named = sub(r"\b(lanes|origins|runs|settled|lacks|progress|tombstones)\b(?=[\s.]|$)", r"qmq_\1", statement)
    named = sub(r"((?<=FROM )|(?<=JOIN ))messages|messages(?=\.)", "qmq_messages", named)
    return sub(r" INDEXED BY \w+", "", named).replace("CROSS JOIN", "JOIN").replace("?", "%s")


OPEN_PARTITIONS: Final = """INSERT INTO qmq_lanes (queue, rank, delayed, origin, messages, bytes, checksum)
    SELECT * FROM unnest(
        %s::text[], %s::smallint[], %s::boolean[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])
    ON CONFLICT (queue, rank, delayed, origin) DO UPDATE
    SET messages = qmq_lanes.messages + excluded.messages, bytes = qmq_lanes.bytes + excluded.bytes
    RETURNING queue, rank, delayed, origin, id, messages"""
COPY: Final = "COPY qmq_messages FROM STDIN (FORMAT BINARY)"
COPY_TYPES: Final = ("int8", "int8", "int4", "int8", "int4", "int8", "int8", "int8", "bytea", "bytea", "int4", "int8")
INSERT: Final = "INSERT INTO qmq_messages VALUES (" + ", ".join(["%s"] * 12) + ") ON CONFLICT DO NOTHING"
ADD_RUNS: Final = """INSERT INTO qmq_runs SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::integer[], %s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[])"""
OVERLAPPING: Final = """SELECT n FROM unnest(%s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])
    AS wanted (n, lane, low, high)
    WHERE EXISTS (SELECT 1 FROM qmq_messages m WHERE m.lane = wanted.lane AND sequence BETWEEN low AND high)
    OR (SELECT through FROM qmq_runs r WHERE r.lane = wanted.lane AND sequence <= high
        ORDER BY sequence DESC LIMIT 1) >= low"""
SETTLE: Final = """INSERT INTO qmq_settled SELECT * FROM unnest(
        %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[])
    ON CONFLICT (lane, sequence) DO UPDATE SET messages = excluded.messages, bytes = excluded.bytes,
    checksum = excluded.checksum, waiting = excluded.waiting"""
DELETE_RUNS: Final = """DELETE FROM qmq_runs r USING unnest(%s::bigint[], %s::bigint[]) AS gone (lane, sequence)
    WHERE r.lane = gone.lane AND r.sequence = gone.sequence"""
DELETE_SETTLED: Final = DELETE_RUNS.replace("qmq_runs", "qmq_settled")
RECOUNT: Final = _of_sqlite(sqlite_sql.RECOUNTED) + " WHERE id = ANY(%s)"
PARTITIONS_OF: Final = """SELECT wanted.n, id, checksum, EXISTS (SELECT 1 FROM qmq_runs WHERE lane = qmq_lanes.id)
    FROM unnest(%s::integer[], %s::text[], %s::integer[]) AS wanted (n, queue, origin) JOIN qmq_lanes
    ON qmq_lanes.queue = wanted.queue AND qmq_lanes.origin = wanted.origin"""
FAIL: Final = """UPDATE qmq_messages m SET attempts = greatest(m.attempts, failed.attempts), checksum =
        (checksum & 4294967295) | (greatest(checksum >> 32, failed.attempts::bigint) << 32)
    FROM unnest(%s::bigint[], %s::bigint[], %s::integer[]) AS failed (lane, sequence, attempts)
    WHERE m.lane = failed.lane AND m.sequence = failed.sequence"""
COUNTED: Final = "SELECT lane, count(*), sum(size)::bigint FROM gone GROUP BY lane"
DELETE_RUN: Final = f"""WITH gone AS (
    DELETE FROM qmq_messages WHERE lane = %s AND sequence BETWEEN %s AND %s
    RETURNING lane, octet_length(body) AS size) {COUNTED}"""
DELETE: Final = f"""WITH gone AS (
    DELETE FROM qmq_messages m USING unnest(%s::bigint[], %s::bigint[]) AS wanted (lane, sequence)
    WHERE m.lane = wanted.lane AND m.sequence = wanted.sequence
    RETURNING m.lane AS lane, octet_length(body) AS size) {COUNTED}"""
SUBTRACT: Final = """UPDATE qmq_lanes
    SET messages = qmq_lanes.messages - gone.messages, bytes = qmq_lanes.bytes - gone.bytes
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS gone (lane, messages, bytes) WHERE id = gone.lane"""
CLOSE_PARTITIONS: Final = "DELETE FROM qmq_lanes WHERE messages = 0 AND id = ANY(%s)"
ADD_TOMBSTONES: Final = """INSERT INTO qmq_tombstones
    SELECT * FROM unnest(%s::integer[], %s::bigint[], %s::bigint[])
    ON CONFLICT DO NOTHING"""
DELETE_TOMBSTONES: Final = """DELETE FROM qmq_tombstones t
    USING unnest(%s::integer[], %s::bigint[]) AS gone (origin, sequence)
    WHERE t.origin = gone.origin AND t.sequence = gone.sequence"""
ADD_MISSING: Final = """INSERT INTO qmq_lacks VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (node, incarnation, after, sequence, queue)
    DO UPDATE SET through = greatest(qmq_lacks.through, excluded.through)"""
HEADS: Final = """SELECT queue, qmq_lanes.id, rank, delayed, messages, bytes
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin WHERE queue = ANY(%s) AND node = %s"""
ROWS: Final = f"SELECT {sqlite_sql.COLUMNS} FROM qmq_messages WHERE "
OVERDUE: Final = f"""SELECT * FROM ({ROWS} lane = %s AND due_us > 0 AND due_us <= %s OFFSET 0) AS late
    WHERE sequence > %s ORDER BY sequence LIMIT %s"""
OVERDUE_EXACT: Final = f"""SELECT * FROM ({ROWS} lane = %s AND due_us > 0 AND due_us <= %s OFFSET 0) AS late
    WHERE (exact, sequence) > (%s, %s) ORDER BY exact, sequence LIMIT %s"""
SIZES: Final = "SELECT octet_length(headers) + octet_length(body) FROM ({}) AS sized"


def __getattr__(name: str) -> str:
    """The statements that are spelled differently, and are the same."""
    if not hasattr(sqlite_sql, name):
        raise AttributeError(name)
    made = _of_sqlite(getattr(sqlite_sql, name))
    globals()[name] = made
    return made
