"""`/api/…`: what Flower and common probes read of the management HTTP API of RabbitMQ. Nothing of it changes anything.

A path becomes a call for a list of queues, or for the overview, and its facts become the rows of that API.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from qmq.model.routing_names import VHOST_DEFAULT, vhost_name, vhost_of, vhost_prefix
from qmq.protocols.http.codec import HttpRefusal

QUEUES_MAX: Final = 10_000
"""Rows of a response; further queues are left out."""

PAGE_ROWS: Final = 1000

Row = dict[str, Any]
Facts = Mapping[str, Any]


class ManagementCall(NamedTuple):
    """One request: the queue that it is about, empty for all, and the virtual host, empty for all."""

    what: str
    queue: str = ""
    vhost: str = ""

    @property
    def about(self) -> str:
        """What the names of the queues begin with that it needs; "" if it needs the overview."""
        if self.what not in ("queue", "queues"):
            return ""
        return self.queue or f"/queue/{vhost_prefix(self.vhost or VHOST_DEFAULT)}"

    @property
    def limit(self) -> int:
        """Queues of one page."""
        return 1 if self.queue else PAGE_ROWS

    def rows_of(self, facts: Facts, vhosts: Collection[str]) -> list[Facts]:
        """The queues of a page that the call is about. `vhosts` are declared."""
        rows: list[Facts] = facts.get("destinations", [])
        if self.what != "queues" or not self.vhost:
            return rows
        return [row for row in rows if vhost_of(_queue_name(row), vhosts)[0] == self.vhost]


def management_call(path: Sequence[str]) -> ManagementCall:
    """The call of a path behind `/api/`. Raises HttpRefusal, 404, for one that is not served."""
    match list(path):
        case ["overview"]:
            return ManagementCall("overview")
        case ["nodes"]:
            return ManagementCall("nodes")
        case ["vhosts"]:
            return ManagementCall("vhosts")
        case ["vhosts", vhost] if vhost:
            return ManagementCall("vhost", vhost=vhost_name(vhost))
        case ["healthchecks", "node"]:
            return ManagementCall("health")
        case ["health", "checks", "alarms" | "local-alarms"]:
            return ManagementCall("alarms")
        # Flower writes the virtual host "/" as it is, and its library may leave out a second slash.
        case ["queues"] | ["queues", ""] | ["queues", "", ""]:
            return ManagementCall("queues")
        case ["queues", vhost]:
            return ManagementCall("queues", vhost=vhost_name(vhost))
        case ["queues", vhost, name] if vhost and name:
            found = vhost_name(vhost)
            return ManagementCall("queue", f"/queue/{vhost_prefix(found)}{name}", found)
    raise HttpRefusal(
        404,
        "unknown-path",
        "This part of RabbitMQ's management API is not served.",
        "Served are /api/overview, /api/nodes, /api/vhosts, /api/queues, /api/queues/VHOST[/NAME] and "
        "/api/healthchecks/node. /v1/control has all of QMQ's own.",
    )


def queue_row(row: Facts, node: str, vhosts: Collection[str]) -> Row:
    """One queue. `node` is the one that responds: a queue is the mesh's. `vhosts` are declared."""
    vhost, name = vhost_of(_queue_name(row), vhosts)
    waiting = row.get("messages", 0) - row.get("in_flight", 0)
    return {
        "name": name,
        "vhost": vhost,
        "node": node,
        "type": "classic",
        "state": "running",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {},
        "messages": row.get("messages", 0),
        "messages_ready": max(0, waiting),
        "messages_unacknowledged": row.get("in_flight", 0),
        "message_bytes": row.get("bytes", 0),
        "consumers": row.get("consumers", 0),
        "message_stats": message_stats(row),
    }


def _queue_name(row: Facts) -> str:
    return str(row["destination"]).removeprefix("/queue/")


def message_stats(totals: Facts) -> Row:
    """Totals since the start of each node, by RabbitMQ's names."""
    return {
        "publish": totals.get("accepted", 0),
        "deliver_get": totals.get("delivered", 0),
        "ack": totals.get("acknowledged", 0),
        "redeliver": totals.get("redelivered", 0),
    }


def overview(facts: Facts) -> Row:
    """Sums over the nodes that have responded."""
    nodes = list(facts["nodes"].values())
    totals = {
        name: sum(one["totals"].get(name, 0) for one in nodes)
        for name in ("accepted", "delivered", "acknowledged", "redelivered")
    }
    return {
        "product_name": "QMQ",
        "product_version": nodes[0]["version"],
        "management_version": nodes[0]["version"],
        "rabbitmq_version": nodes[0]["version"],
        "cluster_name": "qmq",
        "node": facts["node"],
        "object_totals": {
            "connections": sum(one["connections"] for one in nodes),
            "consumers": sum(one["subscriptions"] for one in nodes),
            "queues": max(one["queues"] for one in nodes),
        },
        "message_stats": message_stats(totals),
    }


def node_rows(facts: Facts) -> list[Row]:
    """One row for each node; a node that has not responded is not running."""
    rows: list[Row] = [
        {
            "name": name,
            "type": "disc",
            "running": True,
            "uptime": round(one["uptime_seconds"] * 1000),
            "mem_used": one["memory_bytes"],
            "mem_limit": one["memory_max_bytes"],
            "mem_alarm": False,
            "disk_free": one["disk_free_bytes"],
            "disk_free_alarm": one["disk_full"],
        }
        for name, one in facts["nodes"].items()
    ]
    return rows + [{"name": name, "type": "disc", "running": False} for name in facts["nodes_missing"]]


def health(facts: Facts) -> Row:
    """Of the node that responds: it is `failed` while it accepts nothing because its disk is full."""
    is_full = facts["nodes"][facts["node"]]["disk_full"]
    return {"status": "failed", "reason": "the disk is full"} if is_full else {"status": "ok"}


def management_response(
    call: ManagementCall, facts: Facts, rows: Sequence[Facts], node: str, vhosts: Collection[str]
) -> Any:
    """The response to `call`, ready for JSON. Raises HttpRefusal, 404, for a queue or virtual host that is not there.

    `vhosts` are those that are declared; `/` is none of them, and always there.
    """
    if call.vhost and call.vhost != VHOST_DEFAULT and call.vhost not in vhosts:
        raise HttpRefusal(404, "unknown-destination", f"There is no virtual host {call.vhost}.")
    if call.what == "queues":
        return [queue_row(row, node, vhosts) for row in rows[:QUEUES_MAX]]
    if call.what == "queue":
        for row in rows:
            if row["destination"] == call.queue:
                return queue_row(row, node, vhosts)
        raise HttpRefusal(404, "unknown-destination", f"There is no queue {call.queue}.")
    if call.what == "vhost":
        return {"name": call.vhost}
    if call.what == "vhosts":
        return [{"name": name} for name in (VHOST_DEFAULT, *sorted(vhosts))]
    if call.what == "nodes":
        return node_rows(facts)
    return overview(facts) if call.what == "overview" else health(facts)


def management_status(call: ManagementCall, response: Any) -> int:
    """Of `response`. Probes look at that of the newer one of the health checks only."""
    return 503 if call.what == "alarms" and response["status"] == "failed" else 200
