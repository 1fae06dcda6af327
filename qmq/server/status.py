"""What a node says about itself: one frozen picture that the CLI, tests and operators all read."""

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from qmq.server.node import Node

ALARMS_MAX = 32
STATUS_BYTES_MAX = 8000
"""The answer is one header of a RECEIPT, and clients bound header lines (our own at 8 KiB)."""

DESTINATIONS_SHOWN = 20

log = logging.getLogger("qmq.alarm")


class Alarms:
    """The last things that an operator must see; repeated ones count up."""

    def __init__(self) -> None:
        self._alarms: deque[dict[str, Any]] = deque(maxlen=ALARMS_MAX)

    def raise_alarm(self, code: str, message: str, now_us: int) -> None:
        for alarm in self._alarms:
            if alarm["code"] == code and alarm["message"] == message:
                alarm["count"] += 1
                alarm["last_us"] = now_us
                return
        log.error("! ALARM %s: %s", code, message)
        self._alarms.append({"code": code, "message": message[:300], "count": 1, "last_us": now_us})

    def list(self) -> list[dict[str, Any]]:
        return list(self._alarms)


def status_of(node: "Node") -> dict[str, Any]:
    """The picture as plain values, ready for JSON."""
    journal = node.store.journal
    broker = node.broker
    deepest = sorted(broker.queues.by_name.values(), key=lambda queue: -queue.depth)[:DESTINATIONS_SHOWN]
    return {
        "node": node.settings.name,
        "software": node.software,
        "incarnation": f"{node.origin.incarnation:016x}",
        "uptime_seconds": round(trio.current_time() - node.started_seconds, 1),
        "connections": len(node.sessions),
        "subscriptions": sum(len(session.subscriptions) for session in broker.sessions.values()),
        "delivered": node.teller.delivered,
        "commits": {"groups": node.commits.groups, "records": node.commits.records},
        "journal": {"start": journal.start, "end": journal.end, "synced_end": journal.synced_end},
        "held": broker.queues.held,
        "disk_full": broker.disk_full,
        "queues": [
            {
                "destination": queue.name,
                "messages": queue.depth,
                "ready": len(queue.ready),
                "consumers": len(queue.subscriptions),
            }
            for queue in deepest
        ],
        "fanouts": [
            {"destination": name, "messages": count, "followers": len(broker.fanouts.get(name, ()))}
            for name, count in node.fanout_counts.items()
        ],
        "peers": peers_of(node),
        "vector": {str(origin): sequence for origin, sequence in node.received_vector().items()},
        "alarms": node.alarms.list(),
    }


def peers_of(node: "Node") -> list[dict[str, Any]]:
    """Each peer: our link to it (`out`), its link to us (`in`), and what it lacks of what is durable here."""
    if node.mesh is None:
        return []
    return [
        {
            "name": peer.name,
            "out": "up" if peer.out_state == "caught-up" else peer.out_state,
            "in": peer.in_state,
            "caught_up": peer.out_state == "caught-up",
            "lag": sum(peer.lag.values()),
            "topics_dropped": peer.topics_dropped,
            "last_error": peer.last_error[:120],
        }
        for peer in node.mesh.statistics().peers
    ]


def status_answer(node: "Node") -> str:
    """`status_of` as one line of JSON that fits a header: lists are cut from their ends until it does."""
    picture = status_of(node)
    while True:
        text = json.dumps(picture, separators=(",", ":"))
        # STOMP escapes these two, and the reader's bound is on the line as it is sent.
        if len(text) + text.count(":") + text.count("\\") <= STATUS_BYTES_MAX:
            return text
        longest = max(("queues", "fanouts", "alarms", "vector"), key=lambda key: len(json.dumps(picture[key])))
        if isinstance(picture[longest], dict):
            picture[longest] = {}
        else:
            picture[longest].pop()
        picture["cut"] = True
