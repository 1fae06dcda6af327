"""An operator who changes one definition again and again, at one node after the other, and what must be left of it.

Each change begins when the one before is answered. So the last one that was answered as durable at a majority holds on
every node at the end, or one of those after it whose outcome is unknown. The values come again, as when an operator
goes back to what a node that was away still has.
"""

import contextlib
import json
import random
import threading

from qmq.client.connection import NodeConnection
from qmq.errors import NotConnected, Refused
from tests.support.cluster_mesh import Cluster

PAUSE_SECONDS = 0.2
VALUES = 3
POLICY = "/queue/defined"


class Operator(threading.Thread):
    """Changes a policy until `stopping`."""

    def __init__(self, mesh: Cluster, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.confirmed = 0
        """How many changes were answered as durable at a majority."""
        self._mesh = mesh
        self._rng = rng
        self._addresses = [mesh.address(name) for name in mesh.names]
        self._possible: set[int | None] = {None}
        """What the policy may be now; None: not there."""

    def run(self) -> None:
        number = 0
        while not self.stopping.wait(PAUSE_SECONDS):
            number += 1
            value = number % VALUES + 1
            self._possible.add(value)
            # The node may be down, or its disk full; what became of the change is not known then.
            with contextlib.suppress(NotConnected, Refused), self._client(self._rng.choice(self._addresses)) as client:
                body = json.dumps({"max_messages": value}).encode()
                headers = [("destination", f"/control/definitions/put/policy{POLICY}"), ("quorum", "true")]
                if client.request("SEND", headers, body).head.headers.get("quorum") == "true":
                    self.confirmed += 1
                    self._possible = {value}

    def finish(self, seconds: float = 60.0) -> None:
        """End the thread."""
        self.stopping.set()
        self.join(seconds)
        assert not self.is_alive(), f"{self} did not end"

    def wrongs(self) -> list[str]:
        """What does not hold at the healthy mesh."""
        found = {name: self._value_at(name) for name in self._mesh.names}
        if len(set(found.values())) == 1 and self._possible.issuperset(found.values()):
            return []
        return [f"{POLICY} is {found}, and must be one of {self._possible} after {self.confirmed} confirmed changes"]

    def _value_at(self, name: str) -> int | None:
        with self._client(self._mesh.address(name)) as client:
            answer = client.request("SEND", [("destination", "/control/definitions/list/policy")])
        facts = json.loads(answer.head.headers["definitions"])
        return next((int(one["value"]["max_messages"]) for one in facts if one["name"] == POLICY), None)

    @staticmethod
    def _client(address: tuple[str, int]) -> NodeConnection:
        return NodeConnection(address, timeout_seconds=15.0)
