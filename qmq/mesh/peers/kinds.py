"""The kinds of requests from node to node, but those that protocols declare; `qmq.node.peer_requests` says which part
responds to each."""

from enum import StrEnum


class RequestKind(StrEnum):
    """What a request is about. The values travel between nodes."""

    REPAIR = "repair"
    """Range snapshots, settles, durable subscriptions, dead incarnations: `repair.requests`."""
    QUARANTINE = "quarantine"
    """What a node has quarantined behind missing ranges: `repair.quarantine_restore`."""
    DEFINITIONS = "definitions"
    """Definitions that the requester is missing: `definitions.sync`."""
    DEDUP = "dedup"
    """Whether a node has the message of a dedup id: `peers.dedup_query`."""
    LINKS = "links"
    """Whether a node has a link with another one: `membership.decommission`."""
    HELD = "held"
    """Which messages of a retired node are with consumers: `membership.adopt_queues`."""
    BULK_JOB = "bulk-job"
    """Run a bulk job: `admin.mesh_jobs`."""
    ADMIN_QUERY = "admin-query"
    """A short administrative request: `admin.mesh_queries`."""
    MESSAGE = "message"
    """A message by its id, or what the journal says of it: `admin.mesh_messages`."""
    CONSOLE = "console"
    """The part of a node in what the console shows: `console.requests`."""
    CONTROL = "control"
    """The counts of a control request with `scope:mesh`: `admin.control`."""
