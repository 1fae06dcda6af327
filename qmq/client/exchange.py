"""What goes over the present connection of a client: requests, bytes to send, and what has changed."""

from enum import Enum

from qmq.client.feed import Feed
from qmq.client.request_reply import PendingReply
from qmq.client.requests import Request, Requests


class Phase(Enum):
    OFFLINE = "offline"
    LOGGING_IN = "logging in"
    ONLINE = "online"
    CLOSED = "closed"


class Exchange:
    """Shared by the parts of one client; it lives as long as the client."""

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        self.phase = Phase.OFFLINE
        self.connections = 0
        """Logins that were let in; deliveries remember which one they came over."""
        self.written_again = 0
        self.requests = Requests(window_messages, window_bytes)
        self.output: list[bytes] = []
        """To be sent."""
        self.changed: dict[Request | Feed | PendingReply, None] = {}
        """What a task may wait for."""
        self._numbers = 0

    def next_number(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    def request(self, request: Request) -> None:
        self.requests.add(request)
        self.write(request)

    def write(self, request: Request) -> None:
        data = request.data
        if request.written:
            self.written_again += 1
            if request.again is not None:
                data = request.again()
        request.written = True
        self.output.append(data)
