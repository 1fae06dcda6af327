"""What the HTTP connections of one node share.

It is made when the first of them needs it, or the first peer asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from qmq.admin.console.feed import OverviewFeed
from qmq.protocols.http.console import WebConsole
from qmq.protocols.http.gateway.events import EventData
from qmq.protocols.http.gateway.routes import Call
from qmq.protocols.http.health import HealthChecks
from qmq.protocols.http.management import ManagementPages
from qmq.protocols.http.metrics import MetricsPage
from qmq.protocols.http.pages import Page, pages
from qmq.protocols.http.pulls import Pulls
from qmq.protocols.http.samples import Samples
from qmq.protocols.http.stomp.long_poll import LongPollSessions
from qmq.sessions.clients.dialogue import ClientProtocol

PARSED_AT_ONCE: Final = 2
"""Batches. Each can take some 100 MiB while it is parsed, which count when it is done; more threads are no faster."""


@dataclass(frozen=True, slots=True)
class WebPart:
    stomp: ClientProtocol
    """For browsers: STOMP inside of WebSockets and requests."""
    pulls: Pulls
    long_poll: LongPollSessions
    samples: Samples
    metrics: MetricsPage
    pages: Mapping[Call, Page]
    management: ManagementPages
    console: WebConsole
    event_data: EventData
    parsing: trio.CapacityLimiter
    """Held while a thread parses a batch."""


def web_part(node: Any, stomp: ClientProtocol) -> WebPart:
    engine, parts, mesh, rpc = node.engine, node.session_parts, node.mesh, node.peer_rpc
    name, path, host = engine.broker.origin.node, parts.login_path, parts.host
    feed = OverviewFeed(node, node.admin.console, node.sessions, path.access)
    samples = Samples(engine, node, node.admin.catalog)
    return WebPart(
        stomp,
        Pulls(engine, node, host, parts.loops, path.access, node.exclusive_queues, mesh, rpc, node.membership),
        LongPollSessions(node, host, path.admission, stomp._replace(name="long-poll")),
        samples,
        MetricsPage(engine, node.admin.facts, node.conditions, mesh, node.mesh_parts.takeover, samples),
        pages(HealthChecks(node, engine, node.definition_sync), node.settings_parts.schemas),
        ManagementPages(name, node.admin.console, rpc, node.settings_parts.vhosts),
        WebConsole(name, engine.environment, path.logins, path.access, feed),
        EventData(),
        trio.CapacityLimiter(PARSED_AT_ONCE),
    )
