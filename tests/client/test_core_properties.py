"""The core against a model of two nodes, under every order of sends, answers, cuts, hops, pauses and takes.

The model speaks real STOMP through the server half of the codec: what the core writes must also be well-formed. Both
nodes hold the same fanout but have got different lengths of it; what they are sent they put there, so a message written
twice is there twice. A cut loses what is on its way in both directions, an answer to something that happened included.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qmq.client.core.core import Core
from qmq.client.core.feed import AckMode, Feed
from qmq.client.core.requests import Phase, Request
from qmq.client.core.vectors import Progress
from qmq.model.dots import Origin
from qmq.wire.stomp import Connection, Frame, Role, encode_frame

FANOUT = "/fanout/f"
NODES = (Origin("a", 1), Origin("b", 2))


class Nodes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Core(id="c", window_messages=1000)
        # Per origin everything that it ever accepted, and how much of it each node has.
        self.log: dict[Origin, list[bytes]] = {origin: [] for origin in NODES}
        self.has = {node: dict.fromkeys(NODES, 0) for node in NODES}
        self.at = NODES[0]
        self.server = Connection(Role.SERVER)
        self.arriving: list[Frame] = []
        self.leaving: list[bytes] = []
        self.follower: str | None = None
        self.followed: dict[Origin, int] = {}
        self.sent: list[tuple[Request, bytes]] = []
        self.given_up: set[bytes] = set()
        self.dedup_ids: dict[bytes, set[str]] = {}
        self.feed = Feed(
            FANOUT,
            ack=AckMode.AUTO,
            prefetch=1,
            buffer_bytes_max=2000,
            drops_oldest=False,
            start="first",
            seen=Progress(),
            headers={},
        )
        self.core.subscribe(self.feed)
        self.taken: list[bytes] = []

    # The application

    @rule()
    def send(self) -> None:
        body = b"%d" % len(self.sent)
        request = self.core.new_send(FANOUT, body, {})
        self.core.submit(request)
        self.sent.append((request, body))

    @precondition(lambda self: any(not request.done for request, _ in self.sent))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        request, body = data.draw(st.sampled_from([pair for pair in self.sent if not pair[0].done]))
        self.core.forget(request)
        self.given_up.add(body)

    @rule(most=st.integers(1, 6))
    def take(self, most: int) -> None:
        for _ in range(most):
            delivery = self.core.take(self.feed)
            if delivery is not None:
                self.taken.append(delivery.headers["message-id"].encode() + b" " + delivery.body)

    # The line and the nodes

    @precondition(lambda self: self.core.phase is Phase.OFFLINE)
    @rule(node=st.sampled_from(NODES))
    def dial(self, node: Origin) -> None:
        self.at = node
        self.server = Connection(Role.SERVER)
        self.arriving, self.leaving = [], []
        self.follower = None
        self.core.begin("host")

    @precondition(lambda self: self.core.phase is not Phase.OFFLINE)
    @rule()
    def cut(self) -> None:
        self.core.lost()

    @precondition(lambda self: self.core.phase is not Phase.OFFLINE)
    @rule()
    def bytes_reach_the_node(self) -> None:
        self.arriving += self.server.receive(self.core.take_output())
        assert self.server.error is None, self.server.error

    @precondition(lambda self: self.core.phase is not Phase.OFFLINE and self.leaving)
    @rule(data=st.data())
    def bytes_reach_the_client(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.leaving)))
        chunk, self.leaving = b"".join(self.leaving[:count]), self.leaving[count:]
        self.core.receive(chunk)

    @precondition(lambda self: self.core.phase is not Phase.OFFLINE)
    @rule(most=st.integers(1, 8))
    def node_obeys(self, most: int) -> None:
        for _ in range(min(most, len(self.arriving))):
            self.obey(self.arriving.pop(0))

    def obey(self, frame: Frame) -> None:
        headers = frame.head.headers
        command = frame.head.command
        if command == "CONNECT":
            self.leaving.append(encode_frame("CONNECTED", [("version", "1.2")]))
        elif command == "SEND":
            assert frame.body not in self.dedup_ids or headers.get("redelivered") == "true", "a node cannot tell"
            self.dedup_ids.setdefault(frame.body, set()).add(headers["dedup-id"])
            self.log[self.at].append(frame.body)
            self.has[self.at][self.at] += 1
        elif command == "SUBSCRIBE":
            assert self.follower is None, "the old subscription was not taken back"
            self.follower = headers["id"]
            resume = [entry.split("=") for entry in headers.get("qmq-resume", "").split(",") if entry]
            seen = {origin: int(sequence) for origin, sequence in resume}
            self.followed = {origin: seen.get(str(origin), 0) for origin in NODES}
        elif command == "UNSUBSCRIBE":
            assert headers["id"] == self.follower
            self.follower = None
        if frame.receipt is not None:
            self.leaving.append(encode_frame("RECEIPT", [("receipt-id", frame.receipt)]))

    @rule(source=st.sampled_from(NODES), to=st.sampled_from(NODES))
    def copy(self, source: Origin, to: Origin) -> None:
        for origin, length in self.has[source].items():
            self.has[to][origin] = max(length, self.has[to][origin])

    @precondition(lambda self: self.core.phase is not Phase.OFFLINE and self.follower is not None)
    @rule(origin=st.sampled_from(NODES), most=st.integers(1, 4))
    def node_tells(self, origin: Origin, most: int) -> None:
        assert self.follower is not None
        for sequence in range(self.followed[origin], min(self.followed[origin] + most, self.has[self.at][origin])):
            self.followed[origin] = sequence + 1
            lines = [("subscription", self.follower), ("message-id", f"{origin}-{sequence + 1}")]
            self.leaving.append(encode_frame("MESSAGE", lines, self.log[origin][sequence]))

    # What holds always, and in the end

    @invariant()
    def the_stream_is_each_origins_log_in_order_without_a_hole_or_a_repeat(self) -> None:
        for origin in NODES:
            told = [entry.split()[1] for entry in self.taken if entry.startswith(f"{origin}-".encode())]
            assert told == self.log[origin][: len(told)]

    @invariant()
    def what_was_answered_is_in_a_log(self) -> None:
        stored = {body for log in self.log.values() for body in log}
        for request, body in self.sent:
            assert request.error is None
            assert not request.done or body in stored

    @invariant()
    def attempts_of_a_message_have_one_dedup_id(self) -> None:
        assert all(len(ids) == 1 for ids in self.dedup_ids.values())

    @invariant()
    def the_buffer_is_bounded_and_the_window_is_what_is_open(self) -> None:
        assert self.feed.buffered_bytes <= 2000 + 600
        unanswered = [request for request, body in self.sent if not request.done and body not in self.given_up]
        assert self.core.requests.messages == len(unanswered)
        assert self.core.requests.bytes == sum(len(request.data) for request in unanswered)

    def teardown(self) -> None:
        """The faults end: everything asked is answered, everything stored is taken."""
        self.core.lost()
        self.dial(NODES[1])
        for _ in range(100):
            self.copy(NODES[0], NODES[1])
            self.bytes_reach_the_node()
            self.node_obeys(1000)
            if self.follower is not None:
                for origin in NODES:
                    self.node_tells(origin, 1000)
            self.core.receive(b"".join(self.leaving))
            self.leaving = []
            self.take(100)
        assert all(request.done or body in self.given_up for request, body in self.sent)
        told = Counter(entry.split()[1] for entry in self.taken)
        stored = Counter(body for log in self.log.values() for body in log)
        assert told == stored
        self.the_stream_is_each_origins_log_in_order_without_a_hole_or_a_repeat()


TestNodes = Nodes.TestCase
TestNodes.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
