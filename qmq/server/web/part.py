"""What the HTTP connections of one node share.

It is made when the first of them needs it, or the first peer asks.
"""

from typing import Final, Protocol

import trio

from qmq.config import NodeSettings
from qmq.gateways.http.events import EventData
from qmq.server.web.console import WebConsole, WebConsoleContext
from qmq.server.web.pull_session import PullContext
from qmq.server.web.pulls import Pulls
from qmq.server.web.samples import Samples, SamplesContext
from qmq.server.web.stomp.long_poll import LongPollContext, LongPollSessions

PARSED_AT_ONCE: Final = 2
"""Batches. Each can take some 100 MiB while it is parsed, which count when it is done; more threads are no faster."""


class WebPartContext(PullContext, SamplesContext, WebConsoleContext, LongPollContext, Protocol):
    settings: NodeSettings


class WebPart:
    def __init__(self, context: WebPartContext) -> None:
        self.event_data = EventData()
        self.pulls = Pulls(context)
        self.long_poll = LongPollSessions(context)
        self.samples = Samples(context)
        self.parsing = trio.CapacityLimiter(PARSED_AT_ONCE)
        """Held while a thread parses a batch."""
        self.console = WebConsole(context, context.settings.name)
