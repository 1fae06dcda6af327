"""One connection of a client, on a clock that is an argument: the deadline of its login, heart-beats, and silence.

The style of program moves the bytes: it reports what arrived (`received`) and what has left (`sent`), and calls
`check` at `due`. A connection ends with the first exception of these.
"""

from qmq.address import Address
from qmq.client.core.core import Core
from qmq.client.core.failures import other_protocol
from qmq.client.core.requests import Phase

READ_BYTES_MAX = 64 << 10

SILENCE_FACTOR = 2.0
"""Times the agreed interval: so late may a beat of the node be (STOMP 1.2, "Heart-beating": margin of error)."""

BEAT_EARLY = 0.9
"""Of the agreed interval: beats leave a little sooner than promised, so that a busy moment does not cost the line."""


class Keepalive:
    """A connection to the node at `address` that logs in until `login_deadline`. Made after `Core.begin`."""

    def __init__(self, core: Core, address: Address, now: float, login_deadline: float) -> None:
        self._core = core
        self.address = address
        self._login_deadline = login_deadline
        self._last_read = self._last_sent = now
        self.is_online = False
        """Whether the node has admitted the client."""

    @property
    def due(self) -> float:
        """When to call `check`; earlier than before once the node has admitted the client."""
        if not self.is_online:
            return self._login_deadline
        return min(self._beat_due, self._silence_due)

    @property
    def _beat_due(self) -> float:
        return self._last_sent + (self._core.send_beat_seconds * BEAT_EARLY or float("inf"))

    @property
    def _silence_due(self) -> float:
        return self._last_read + (self._core.receive_beat_seconds * SILENCE_FACTOR or float("inf"))

    def received(self, data: bytes, now: float) -> None:
        """Bytes of the node, b"" for their end.

        Raises:
            Refused, RemoteProtocolError: as `Core.receive`.
            TlsFailed: the node speaks TLS, and the client does not.
            ConnectionError: the node has ended the connection, or speaks HTTP.
        """
        if not data:
            why = "" if self.is_online else " without an answer; does it need TLS?"
            raise ConnectionError(f"the node ended the connection{why}")
        if not self.is_online and (error := other_protocol(data)):
            raise error
        self._last_read = now
        try:
            self._core.receive(data)
        finally:
            self.is_online = self.is_online or self._core.phase is Phase.ONLINE

    def sent(self, now: float) -> None:
        """Bytes have left."""
        self._last_sent = now

    def check(self, now: float, *, is_writing: bool = False) -> None:
        """Raise TimeoutError if the node is too late, and beat if it is time; bytes in flight replace a beat."""
        if not self.is_online:
            if now >= self._login_deadline:
                raise TimeoutError("the node did not answer the login in time")
        elif now >= self._silence_due:
            raise TimeoutError(f"silent for {now - self._last_read:.1f} s")
        elif now >= self._beat_due:
            if not is_writing:
                self._core.beat()
            self._last_sent = now
