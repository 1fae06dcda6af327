"""What live nodes report about their journals, and what a reader reports to them, over STOMP (`/system/journal`)."""

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qmq.client.connection import NodeConnection
from qmq.client.core.failures import error_of
from qmq.errors import NotConnected
from qmq.model.dots import Origin, Vector
from qmq.spark.reading.options import Options, vector_from_json
from qmq.spark.reading.plan import NodeAddress
from qmq.spark.reading.ranges import RangeMap
from qmq.unix_socket import SOCKET_NAME

JOURNAL: Final = "/system/journal"
PATIENCE_SECONDS: Final = 30.0
"""Without a byte from a node that owes some."""
VECTOR_BYTES_MAX: Final = 7000
"""Of one header: a node takes lines of 8 KiB unless configured otherwise. That is some 200 origins."""
ELSEWHERE: Final = frozenset({"stopping", "too-many-connections", "too-many-logins", "login-timeout", "log-unreadable"})
"""Codes of errors after which another node may be asked."""


class JournalStatus:
    """What one node reports about its journal."""

    def __init__(self, server: NodeAddress, facts: dict[str, Any]) -> None:
        self.server = server
        self.node = str(facts["node"])
        self.vector = vector_from_json(facts["vector"])
        self.base = vector_from_json(facts["base"])
        self.given_up = vector_from_json(facts["given_up"])
        self.compacted = vector_from_json(facts["rests"])
        self.bytes = int(facts["bytes"])
        self.segments = [vector_from_json(vector) for vector in facts["segments"]]
        """Vectors where a segment ends and the next one begins."""
        self.archives: Mapping[str, Mapping[str, Any]] = facts.get("archives", {})
        """What the mesh has defined: name → `table`, and perhaps `destinations`."""

    def held(self) -> RangeMap:
        """The sequences of its journal, gaps included."""
        return RangeMap.between(self.base, self.vector)

    def records(self) -> int:
        """What its journal holds, about: gaps count as if they were there."""
        return self.held().count()


class StatusClients:
    """Connections to nodes that are asked again and again. A named reader reports with each request how far it is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._clients: dict[NodeAddress, NodeConnection] = {}
        self._statuses: dict[NodeAddress, JournalStatus] = {}
        self.done: Vector | None = None
        """How far the reader is: what the next request reports. None: nothing is reported yet."""

    def ask(self, server: NodeAddress) -> JournalStatus:
        """Raises NotConnected or Refused."""
        known = self._clients.pop(server, None)
        if known is not None:
            try:
                return self._ask(server, known)
            except NotConnected:
                pass  # The node may have been started again since: that takes a new connection.
        return self._ask(server, connect(self._options, server))

    def close(self) -> None:
        """Idempotent."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _ask(self, server: NodeAddress, client: NodeConnection) -> JournalStatus:
        """The connection is kept if it answers, and closed otherwise."""
        headers = []
        if self._options.name and self.done is not None:
            headers = [
                ("qmq-resume", vector_text(self._seen_of(server, self.done))),
                ("qmq-reader", self._options.name),
            ]
        try:
            status = ask_status(client, server, headers)
        except BaseException:
            client.close()
            raise
        self._clients[server] = client
        self._statuses[server] = status
        return status

    def _seen_of(self, server: NodeAddress, done: Vector) -> Vector:
        """How far the reader is with what this node has, as of its last answer; it keeps every origin there ever was.

        The node does not count origins of which its journal holds nothing any more. What is too much for a header even
        so is left out: then it counts too many.
        """
        status = self._statuses.get(server)
        held = done if status is None else status.held().bounds()[1]
        return dict(next(vector_pieces([(origin, done[origin]) for origin in held if origin in done]), []))


def defined_archives(options: Options) -> Mapping[str, Mapping[str, Any]]:
    """The archives of the mesh, as the first of the nodes defines them that answers: those of `options`, or those that
    run on its data directories. Raises NotConnected or Refused.
    """
    problems = []
    for server in options.servers or [Path(path) / SOCKET_NAME for path in options.paths]:
        try:
            with connect(options, server) as client:
                return ask_status(client, server).archives
        except NotConnected as error:
            problems.append(str(error))
    raise NotConnected("; ".join(problems))


class _Client(NodeConnection):
    """A node that stops or has no room is as good as one that does not answer: others go on."""

    def refusal(self, frame: Any) -> Exception:
        error = error_of(frame)
        is_elsewhere = error.code in ELSEWHERE
        return self.failure(f"{self.address}: {error.message}") if is_elsewhere else super().refusal(frame)


def connect(options: Options, server: NodeAddress) -> NodeConnection:
    """A connection to one node. Raises NotConnected or Refused."""
    tls = ssl.create_default_context(cafile=options.cafile) if options.cafile else None
    return _Client(server, login=options.login, passcode=options.passcode, timeout_seconds=PATIENCE_SECONDS, tls=tls)


def ask_status(client: NodeConnection, server: NodeAddress, headers: Sequence[tuple[str, str]] = ()) -> JournalStatus:
    """What the node reports about its journal now."""
    # A span that is over before it begins: only the status is sent.
    asked = [("id", "look"), ("destination", JOURNAL), ("qmq-until", ""), *headers]
    client.write(client.frame("SUBSCRIBE", asked))
    status = JournalStatus(server, json.loads(next_frame(client).body))
    while next_frame(client).head.headers.get("journal") != "end":
        continue
    client.write(client.frame("UNSUBSCRIBE", [("id", "look")]))
    return status


def next_frame(client: NodeConnection) -> Any:
    """The next frame of a node that owes one. Raises NotConnected or Refused."""
    frame = client.receive(PATIENCE_SECONDS)
    if frame is None:
        raise NotConnected(f"{client.address}: silent for {PATIENCE_SECONDS:g} s")
    return frame


def vector_pieces(entries: list[tuple[Origin, int]]) -> Iterator[list[tuple[Origin, int]]]:
    """Entries of a vector, as many at a time as one header takes."""
    piece: list[tuple[Origin, int]] = []
    size = 0
    for origin, last in entries:
        # A colon or a backslash could not stand in a name: nothing grows when it is escaped.
        length = len(f"{origin}=,") + 19
        if piece and size + length > VECTOR_BYTES_MAX:
            yield piece
            piece, size = [], 0
        piece.append((origin, last))
        size += length
    if piece:
        yield piece


def vector_text(vector: Vector) -> str:
    """As headers have it."""
    return ",".join(f"{origin}={last}" for origin, last in vector.items())
