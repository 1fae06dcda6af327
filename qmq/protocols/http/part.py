"""What the HTTP connections of one node share.

It is made when the first of them needs it, or the first peer asks.
"""

from functools import partial
from typing import Any, Final

import trio

from qmq.protocols.http.console import WebConsole
from qmq.protocols.http.gateway.events import EventData
from qmq.protocols.http.metrics import metrics_page
from qmq.protocols.http.pages import PAGES
from qmq.protocols.http.pulls import Pulls
from qmq.protocols.http.samples import Samples
from qmq.protocols.http.stomp.long_poll import LongPollSessions
from qmq.sessions.clients.dialogue import ClientProtocol

PARSED_AT_ONCE: Final = 2
"""Batches. Each can take some 100 MiB while it is parsed, which count when it is done; more threads are no faster."""


class WebPart:
    """Each of these names what it needs of the node, which has all of it."""

    def __init__(self, context: Any, stomp: ClientProtocol) -> None:
        self.stomp = stomp
        """For browsers: STOMP inside of WebSockets and requests."""
        self.event_data = EventData()
        self.pulls = Pulls(context)
        self.long_poll = LongPollSessions(context, stomp._replace(name="long-poll"))
        self.samples = Samples(context)
        self.metrics = partial(metrics_page, context, self.samples)
        self.pages = {call: partial(page, context) for call, page in PAGES.items()}
        self.parsing = trio.CapacityLimiter(PARSED_AT_ONCE)
        """Held while a thread parses a batch."""
        self.console = WebConsole(context, context.settings.name)
