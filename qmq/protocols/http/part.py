"""What the HTTP connections of one node share.

It is made when the first of them needs it, or the first peer asks.
"""

from typing import Final, Protocol

import trio

from qmq.config import NodeSettings
from qmq.protocols.http.console import WebConsole, WebConsoleContext
from qmq.protocols.http.gateway.events import EventData
from qmq.protocols.http.pull_session import PullContext
from qmq.protocols.http.pulls import Pulls
from qmq.protocols.http.samples import Samples, SamplesContext
from qmq.protocols.http.stomp.long_poll import LongPollContext, LongPollSessions
from qmq.sessions.clients.dialogue import ClientProtocol

PARSED_AT_ONCE: Final = 2
"""Batches. Each can take some 100 MiB while it is parsed, which count when it is done; more threads are no faster."""


class WebPartContext(PullContext, SamplesContext, WebConsoleContext, LongPollContext, Protocol):
    settings: NodeSettings


class WebPart:
    def __init__(self, context: WebPartContext, stomp: ClientProtocol) -> None:
        self.stomp = stomp
        """For browsers: STOMP inside of WebSockets and requests."""
        self.event_data = EventData()
        self.pulls = Pulls(context)
        self.long_poll = LongPollSessions(context, stomp._replace(name="long-poll"))
        self.samples = Samples(context)
        self.parsing = trio.CapacityLimiter(PARSED_AT_ONCE)
        """Held while a thread parses a batch."""
        self.console = WebConsole(context, context.settings.name)
