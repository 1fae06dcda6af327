"""The tables of the queue store on PostgreSQL, their migrations, and all statements on them.

`database` uses statements by name, so they have the same names, parameters and columns as in `sqlite_sql`. Rows are
passed as columns (`unnest`), so that a statement takes any number of them. A partition is a `lane` here.
"""

from typing import Final

from qmq.storage.format.row_checksum import number_checksum

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
)

OPEN_PARTITIONS: Final = """INSERT INTO qmq_lanes (queue, rank, delayed, origin, messages, bytes, checksum)
    SELECT * FROM unnest(
        %s::text[], %s::smallint[], %s::boolean[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])
    ON CONFLICT (queue, rank, delayed, origin) DO UPDATE
    SET messages = qmq_lanes.messages + excluded.messages, bytes = qmq_lanes.bytes + excluded.bytes
    RETURNING queue, rank, delayed, origin, id"""
COPY: Final = "COPY qmq_messages FROM STDIN (FORMAT BINARY)"
COPY_TYPES: Final = ("int8", "int8", "int4", "int8", "int4", "int8", "int8", "int8", "bytea", "bytea", "int4", "int8")
INSERT: Final = "INSERT INTO qmq_messages VALUES (" + ", ".join(["%s"] * 12) + ") ON CONFLICT DO NOTHING"
RECOUNT: Final = """UPDATE qmq_lanes SET (messages, bytes) = (
    SELECT count(*), coalesce(sum(octet_length(body)), 0) FROM qmq_messages WHERE lane = qmq_lanes.id)
    WHERE id = ANY(%s)"""
PARTITIONS_OF: Final = """SELECT wanted.n, id
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
MOVE: Final = "UPDATE qmq_progress SET position = %s, checksum = %s"
ADD_MISSING: Final = """INSERT INTO qmq_lacks VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (node, incarnation, after, sequence, queue)
    DO UPDATE SET through = greatest(qmq_lacks.through, excluded.through)"""
END_MISSING: Final = "DELETE FROM qmq_lacks WHERE (node, incarnation, after, sequence, queue) = (%s, %s, %s, %s, %s)"
DELETE_ONE: Final = "DELETE FROM qmq_messages WHERE lane = %s AND sequence = %s"

HEADS: Final = """SELECT queue, qmq_lanes.id, rank, delayed, messages, bytes
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin WHERE queue = ANY(%s) AND node = %s"""
BY_PRIORITY: Final = """SELECT origin, qmq_lanes.id, incarnation, rank, delayed
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = origin
    WHERE queue = %s AND node = %s AND rank = %s AND origin >= %s"""
DELAYED: Final = """SELECT origin, qmq_lanes.id, incarnation, rank, delayed
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = origin WHERE queue = %s AND node = %s AND delayed"""
ORIGIN: Final = "SELECT id FROM qmq_origins WHERE node = %s AND incarnation = %s"
ORIGINS_OF: Final = "SELECT id FROM qmq_origins WHERE node = %s"
ALL_ORIGINS: Final = "SELECT id, node, incarnation FROM qmq_origins"
NODES: Final = "SELECT DISTINCT node FROM qmq_origins ORDER BY 1"
ANY_ROW: Final = "SELECT 1 FROM qmq_origins JOIN qmq_lanes ON qmq_lanes.origin = qmq_origins.id WHERE node = %s LIMIT 1"
COLUMNS: Final = "lane, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum, headers, body"
ROWS: Final = f"SELECT {COLUMNS} FROM qmq_messages WHERE "
READY: Final = ROWS + "lane = %s AND sequence > %s ORDER BY sequence LIMIT %s"
OVERDUE: Final = f"""SELECT * FROM ({ROWS} lane = %s AND due_us > 0 AND due_us <= %s OFFSET 0) AS late
    WHERE sequence > %s ORDER BY sequence LIMIT %s"""
READY_EXACT: Final = (
    ROWS + "lane = %s AND exact != 0 AND (exact, sequence) > (%s, %s) ORDER BY exact, sequence LIMIT %s"
)
OVERDUE_EXACT: Final = f"""SELECT * FROM ({ROWS} lane = %s AND due_us > 0 AND due_us <= %s OFFSET 0) AS late
    WHERE (exact, sequence) > (%s, %s) ORDER BY exact, sequence LIMIT %s"""
DUE: Final = ROWS + "lane = %s AND due_us > 0 AND due_us > %s AND due_us <= %s ORDER BY due_us LIMIT %s"
EXPIRED: Final = ROWS + "origin = %s AND expires_us > 0 AND expires_us <= %s ORDER BY expires_us LIMIT %s"
SIZES: Final = "SELECT octet_length(headers) + octet_length(body) FROM ({}) AS sized"
NTH: Final = """SELECT sequence FROM qmq_messages WHERE lane = %s
    UNION ALL SELECT sequence FROM qmq_messages WHERE lane = %s ORDER BY sequence LIMIT 1 OFFSET %s"""
NTH_EXACT: Final = """SELECT exact, node, incarnation, sequence
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin
    JOIN qmq_messages ON qmq_messages.lane = qmq_lanes.id AND exact != 0
    WHERE queue = %s AND node = %s AND rank = %s ORDER BY exact, qmq_lanes.origin, sequence LIMIT 1 OFFSET %s"""
NEXT_DUE: Final = "SELECT min(due_us) FROM qmq_messages WHERE lane = %s AND due_us > 0 AND due_us > %s"
UNSETTLED: Final = """SELECT sequence, qmq_lanes.id, queue, rank, delayed, qmq_lanes.origin
    FROM qmq_lanes JOIN qmq_messages ON qmq_messages.lane = qmq_lanes.id
    WHERE qmq_lanes.origin = %s AND sequence > %s AND sequence <= %s ORDER BY sequence LIMIT %s"""
ONE: Final = ROWS + "lane = %s AND sequence = %s"
ORIGINS: Final = """SELECT node, incarnation FROM qmq_origins
    WHERE EXISTS (SELECT 1 FROM qmq_lanes WHERE qmq_lanes.origin = qmq_origins.id)"""
PARTITION: Final = """SELECT qmq_lanes.id, queue, rank, delayed, origin, node, incarnation, checksum
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin WHERE qmq_lanes.id = %s"""
MISSING_RANGES: Final = (
    "SELECT node, incarnation, after, through, sequence, queue FROM qmq_lacks ORDER BY node, incarnation, after"
)
LISTING: Final = """SELECT queue, sum(messages)::bigint, sum(bytes)::bigint
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin
    WHERE queue > %s AND node = coalesce(%s, node) GROUP BY queue ORDER BY queue LIMIT %s"""
DEEPEST: Final = """SELECT queue FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin
    WHERE node = %s GROUP BY queue ORDER BY sum(messages) DESC, queue LIMIT %s"""
TOTAL: Final = """SELECT coalesce(sum(messages), 0)::bigint
    FROM qmq_lanes JOIN qmq_origins ON qmq_origins.id = qmq_lanes.origin WHERE node = %s"""
