"""The metrics of a node as one page in the text format of Prometheus (version 0.0.4).

The page is made again for each scrape, of the plain counters that the parts of the node have. There is no registry of
the process, no thread, and no cost while no client scrapes. docs/metrics.md lists each metric.

The number of series is bounded: only the deepest queues have series of their own, and the conditions of a node are
bounded as well. What would take long to find is in `samples`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

import trio

from qmq import __version__
from qmq.admin.facts.conditions import Conditions
from qmq.admin.facts.node_facts import FactsReader, NodeFacts
from qmq.admin.facts.totals import facts_of_totals
from qmq.engine.parts import EngineParts
from qmq.mesh.membership.takeover import Takeover
from qmq.protocols.http.samples import Samples
from qmq.replication.mesh import Mesh
from qmq.sessions.delivery.journal_readers import JournalReaders

if TYPE_CHECKING:
    from qmq.protocols.http.prometheus_page import MetricFamilies

FAMILIES: Final = "qmq.protocols.http.prometheus_page"

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

MESSAGES: Final[Mapping[str, str]] = {
    "accepted": "Messages that clients have sent to this node, or that it made itself: dead letters, moved and copied.",
    "delivered": "Messages that were sent to clients of this node, once for each.",
    "acknowledged": "Delivered messages that consumers and durable subscriptions have settled.",
    "redelivered": "Delivered messages that were marked as redelivered.",
    "expired": "Queue messages that have expired.",
    "dead_lettered": "Messages that left their queue as dead letters.",
    "removed": "Messages that left their queue in another way: purged, moved, deleted or dropped.",
    "refused": "SENDs that were refused with an ERROR.",
}
"""Name of a total (`qmq.broker.messages.totals`) → help text."""


READERS_MAX: Final = 100
"""Named readers of the journal that have series of their own."""


OF_QUEUES: Final = ("accepted", "delivered", "acknowledged")
"""Totals of single queues, of which a scraper makes rates."""


GAUGES: Final = (
    ("qmq_uptime_seconds", "Time since the start of this node.", "uptime_seconds"),
    ("qmq_messages_waiting", "Queue messages that this node serves and no consumer has.", "waiting"),
    ("qmq_messages_in_flight", "Queue messages that consumers of this node have not settled.", "in_flight"),
    ("qmq_sessions", "Sessions of clients that are logged in.", "sessions"),
    ("qmq_subscriptions", "Subscriptions of the clients of this node.", "subscriptions"),
    ("qmq_memory_bytes", "Memory that connections make this node hold.", "memory.bytes"),
    ("qmq_memory_max_bytes", "The bound of that memory (limits.memory_bytes_max).", "memory.max"),
    ("qmq_commit_waiting_bytes", "Bytes that are decided and not yet in the journal.", "commit_waiting_bytes"),
    ("qmq_journal_bytes", "Size of the journal.", "journal.bytes"),
    (
        "qmq_journal_unsaved_bytes",
        "Bytes of the journal that no checkpoint has written to the stores.",
        "unsaved",
    ),
    ("qmq_disk_full", "1 while new durable messages are refused because the disk is nearly full.", "disk_full"),
    ("qmq_queues_held", "1 while this node delivers no queue messages: it asks its peers, or has no lease.", "held"),
    ("qmq_queues", "Queues of this node that have messages or consumers, about.", "queues"),
)
"""Name, help text, and which of `NodeFacts` it is. A further metric is a row here, or in COUNTERS."""

COUNTERS: Final = (
    *[(f"qmq_messages_{name}", text, f"totals.{name}") for name, text in MESSAGES.items()],
    ("qmq_messages_dropped", "Messages that full buffers of topic and fanout subscriptions have dropped.", "dropped"),
    ("qmq_messages_unroutable", "Messages of exchanges that no binding took, and that were dropped.", "unroutable"),
    ("qmq_client_received_bytes", "Bytes from clients.", "traffic.bytes_in"),
    ("qmq_client_sent_bytes", "Bytes to clients.", "traffic.bytes_out"),
    ("qmq_memory_evictions", "Connections that were ended to free memory.", "memory.ended"),
    ("qmq_commits", "Groups of records that were appended to the journal.", "commits.groups"),
    ("qmq_commit_records", "Records that were appended to the journal.", "commits.records"),
    ("qmq_commit_bytes", "Bytes that were appended to the journal.", "commits.bytes"),
    ("qmq_checkpoints", "Checkpoints that are done.", "checkpoints"),
)


@dataclass(eq=False, repr=False)
class MetricsPage:
    """Of one node."""

    _engine: EngineParts
    _facts_reader: FactsReader
    _conditions: Conditions
    _links: Mesh
    _takeover: Takeover
    _readers: JournalReaders
    _samples: Samples

    async def read(self) -> bytes:
        """The page, as CONTENT_TYPE. Waits for new samples, at most `samples.WAIT_SECONDS`; then never again."""
        environment, samples = self._engine.environment, self._samples
        # Late, for prometheus-client takes 3 % of a node's start; and in a thread, for it takes 30 ms.
        families: MetricFamilies = (await environment.run_blocking(import_module, FAMILIES)).MetricFamilies()
        await samples.refresh()
        await environment.run_blocking(families.process)
        facts = await self._facts_reader.read()
        for add, metrics in ((families.gauge, GAUGES), (families.counter, COUNTERS)):
            for name, text, path in metrics:
                add(name, text, _fact(facts, path))
        _add_node(families, self._engine, self._conditions, facts)
        _add_samples(families, samples)
        _add_mesh(families, self._links, self._takeover)
        _add_readers(families, self._readers)
        _add_queues(families, self._engine, samples)
        return families.page()


def _fact(facts: NodeFacts, path: str) -> float:
    name, _, inner = path.partition(".")
    found = getattr(facts, name)
    if inner:
        found = found[inner] if name == "totals" else getattr(found, inner)
    return float(found)


def _add_node(families: "MetricFamilies", engine: EngineParts, conditions: Conditions, facts: NodeFacts) -> None:
    about = (facts.node, __version__, facts.build)
    families.gauges("qmq_build_info", "The software of this node; 1.", ("node", "version", "build"), [(about, 1)])
    present = Counter((one.code, str(one.severity)) for one in conditions.present())
    text = "Conditions of this node that are present."
    families.gauges("qmq_conditions", text, ("code", "severity"), present.items())
    connections = [((name,), count) for name, count in facts.protocols.items()]
    families.gauges("qmq_connections", "Connections of clients.", ("protocol",), connections)
    times = engine.store.journal.sync_times
    text = "How long syncs of the journal took."
    families.histograms("qmq_journal_fsync_seconds", text, (), [((), times)])


def _add_samples(families: "MetricFamilies", samples: Samples) -> None:
    if samples.taken_at is None:
        free, age = [], []
    else:
        free, age = [((), samples.free_bytes)], [((), trio.current_time() - samples.taken_at)]
    families.gauges("qmq_disk_free_bytes", "Free space of the data directory, as of the last samples.", (), free)
    text = "Age of the samples: the metrics of single queues, and the free space of the disk."
    families.gauges("qmq_samples_age_seconds", text, (), age)


def _add_mesh(families: "MetricFamilies", links: Mesh, takeover: Takeover) -> None:
    peers = links.statistics().peers
    text = "1 while the link is up. Direction out: this node follows the peer; in: the peer follows this node."
    ups = [((one.name, "out"), float(one.out_state in ("up", "caught-up"))) for one in peers]
    ups += [((one.name, "in"), float(one.in_state == "up")) for one in peers]
    families.gauges("qmq_link_up", text, ("peer", "direction"), ups)
    text = "1 while this node has everything that the peer had when the link began."
    caught_up = [((one.name,), float(one.out_state == "caught-up")) for one in peers]
    families.gauges("qmq_link_caught_up", text, ("peer",), caught_up)
    text = "Durable records of this node that the peer has not reported as received; absent while its link is down."
    lags = [((one.name,), sum(one.lag.values())) for one in peers if one.in_state == "up"]
    families.gauges("qmq_link_lag_records", text, ("peer",), lags)
    text = "From acceptance of a record by the peer to its arrival here, less the shortest way; of a sample of batches."
    families.histograms("qmq_link_delay_seconds", text, ("peer",), [((one.name,), one.delays) for one in peers])
    owners = takeover.statistics().owners if not links.is_alone else ()
    text = "Which node serves the queue messages that the owner accepted, and the state as this node sees it; 1."
    served = [((one.owner, one.server, one.place), 1.0) for one in owners]
    families.gauges("qmq_owner_info", text, ("owner", "server", "state"), served)


def _add_readers(families: "MetricFamilies", readers: JournalReaders) -> None:
    rows = readers.rows()[:READERS_MAX]
    text = "Records of this node that the reader has not reported as read; of archives also while none is connected."
    families.gauges("qmq_reader_behind_records", text, ("reader",), [((row.name,), row.behind) for row in rows])
    text = "Time since a moment up to which the reader has everything; absent until one is known."
    known = [((row.name,), row.seconds) for row in rows if row.seconds is not None]
    families.gauges("qmq_reader_behind_seconds", text, ("reader",), known)


def _add_queues(families: "MetricFamilies", engine: EngineParts, samples: Samples) -> None:
    deepest = samples.queues
    text = "Messages that this node serves, of the 100 deepest queues, as of the last samples."
    depths = [((one.name,), one.messages) for one in deepest]
    families.gauges("qmq_queue_messages", text, ("queue",), depths)
    text = "Bytes of the bodies of these messages."
    families.gauges("qmq_queue_bytes", text, ("queue",), [((one.name,), one.body_bytes) for one in deepest])
    text = "Consumers on this node of the 100 deepest queues."
    families.gauges("qmq_queue_consumers", text, ("queue",), [((one.name,), one.consumers) for one in deepest])
    text = "Age of the oldest message that waits in each of the 100 deepest queues and that no consumer has."
    ages = [((one.name,), one.oldest_waiting_us / 1e6) for one in deepest if one.oldest_waiting_us is not None]
    families.gauges("qmq_queue_oldest_waiting_seconds", text, ("queue",), ages)
    text = "Messages of the 100 deepest queues that consumers of this node have not settled."
    unacknowledged = [((one.name,), one.unacknowledged) for one in deepest]
    families.gauges("qmq_queue_unacknowledged_messages", text, ("queue",), unacknowledged)
    totals = engine.broker.totals.by_name
    counted = [(one.name, facts_of_totals(known)) for one in deepest if (known := totals.get(one.name)) is not None]
    for total in OF_QUEUES:
        rows = [((name,), facts[total]) for name, facts in counted]
        families.counters(
            f"qmq_queue_messages_{total}", f"Of the 100 deepest queues: {MESSAGES[total]}", ("queue",), rows
        )
