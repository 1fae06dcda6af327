"""What the HTTP connections of one node share.

It is made when the first of them needs it, or the first peer asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from qmq.admin.console.feed import OverviewFeed
from qmq.admin.protocol_parts import ProtocolParts
from qmq.protocols.http.console import WebConsole
from qmq.protocols.http.gateway.events import EventData
from qmq.protocols.http.gateway.routes import Call
from qmq.protocols.http.health import HealthChecks
from qmq.protocols.http.management_pages import ManagementPages
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


def web_part(of_node: ProtocolParts) -> WebPart:
    node, engine, admin, mesh, rpc = of_node.node, of_node.engine, of_node.admin, of_node.mesh, of_node.rpc
    settings, path, host = of_node.settings, of_node.sessions.login_path, of_node.sessions.host
    name, stomp, loops = engine.broker.origin.node, of_node.protocol("stomp"), of_node.sessions.loops
    feed = OverviewFeed(node, admin.console, of_node.clients, path.access)
    samples = Samples(engine, node, admin.catalog)
    return WebPart(
        stomp,
        Pulls(engine, node, host, loops, path.access, settings.exclusive_queues, mesh, rpc, of_node.membership),
        LongPollSessions(node, host, path.admission, stomp._replace(name="long-poll")),
        samples,
        MetricsPage(
            engine,
            admin.facts,
            of_node.conditions,
            mesh,
            of_node.mesh_parts.takeover,
            of_node.sessions.journal_reads.readers,
            samples,
        ),
        pages(HealthChecks(node, engine, settings.sync, of_node.sessions.draining), settings.schemas),
        ManagementPages(name, admin.console, rpc, settings.vhosts),
        WebConsole(name, engine.environment, path.logins, path.access, feed),
        EventData(),
        trio.CapacityLimiter(PARSED_AT_ONCE),
    )
