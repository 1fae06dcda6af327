"""What a node says about itself: one frozen picture that the CLI, tests and operators all read."""

import json
import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio

from qmq.build import BUILD

if TYPE_CHECKING:
    from qmq.server.node import Node

ALARMS_MAX = 32
STATUS_BYTES_MAX = 8000
"""The answer is one header of a RECEIPT, and clients bound header lines (our own at 8 KiB)."""

DESTINATIONS_SHOWN = 20
FORGOTTEN_SHOWN = 50
"""Dead incarnations of which nothing is left, the newest first."""

LISTS = ("queues", "fanouts", "durables", "readers", "slow", "alarms", "forgotten", "vector")
"""What is cut when the picture is too long."""

log = logging.getLogger("qmq.alarm")


class Alarms:
    """The last things that an operator must see; repeated ones count up."""

    def __init__(self) -> None:
        self._alarms: deque[dict[str, Any]] = deque(maxlen=ALARMS_MAX)

    def raise_alarm(self, code: str, message: str, now_us: int) -> bool:
        """Whether it is new, so that it should be told; the last ones are kept."""
        for alarm in self._alarms:
            if alarm["code"] == code and alarm["message"] == message[:300]:
                alarm["count"] += 1
                alarm["last_us"] = now_us
                return False
        log.error("! ALARM %s: %s", code, message)
        self._alarms.append({"code": code, "message": message[:300], "count": 1, "last_us": now_us})
        return True

    def clear(self, code: str, message: str) -> None:
        """What this one was about is over."""
        for alarm in list(self._alarms):
            if alarm["code"] == code and alarm["message"] == message[:300]:
                self._alarms.remove(alarm)
                log.info("= alarm %s is over; it said: %s", code, message)

    def list(self) -> list[dict[str, Any]]:
        return list(self._alarms)


def status_of(node: "Node") -> dict[str, Any]:
    """The picture as plain values, ready for JSON."""
    journal = node.store.journal
    broker = node.broker
    depths = queue_depths(node)
    deepest = sorted(depths, key=lambda name: -depths[name])[:DESTINATIONS_SHOWN]
    return {
        "node": node.settings.name,
        "software": node.software,
        "build": BUILD,
        "incarnation": f"{node.origin.incarnation:016x}",
        "uptime_seconds": round(trio.current_time() - node.started_seconds, 1),
        "connections": len(node.sessions),
        "subscriptions": sum(session.subscribed for session in broker.sessions.values()),
        "delivered": node.dispatcher.delivered + node.buffers.told,
        "dropped": node.buffers.dropped,
        "commits": {"groups": node.commits.groups, "records": node.commits.records},
        "journal": {"start": journal.start, "end": journal.end, "synced_end": journal.synced_end},
        "held": broker.queues.held,
        "disk_full": broker.admission.disk_full,
        "memory": {
            "bytes": node.memory_budget.bytes,
            "max": node.memory_budget.bytes_max,
            "ended": node.memory_budget.ended,
        },
        "queues": [queue_row(node, name, depths[name]) for name in deepest],
        "fanouts": [
            {"destination": name, "messages": count, "followers": len(broker.fanouts.get(name, ()))}
            for name, count in node.fanout_counts.items()
        ],
        "durables": durables_of(node),
        "readers": [{"name": name, "behind": behind} for name, behind in sorted(node.journal_reads.readers().items())],
        "slow": slow_of(node),
        "membership": membership_of(node),
        "takeover": node.takeover.picture(),
        "retained": {
            "topics": broker.retained.topics,
            "bytes": broker.retained.bytes,
            "left_out": broker.retained.left_out,
        },
        "rows": {"mended": node.queue_store_repair.mended, "lost": node.queue_store_repair.lost},
        "dedup": {"ids": len(broker.dedup), "asked": node.dedup_query.asked},
        "peers": peers_of(node),
        "topics": topics_of(node),
        "vector": {str(origin): sequence for origin, sequence in node.received_vector().items()},
        "forgotten": [str(origin) for origin in islice(reversed(node.incarnation_gc.seals.forgotten), FORGOTTEN_SHOWN)],
        "alarms": node.alarms.list(),
    }


def queue_depths(node: "Node") -> dict[str, int]:
    """Queues in use, and the first of those that are only in the queue store → messages not settled."""
    queues = node.broker.queues
    names = {**dict.fromkeys(node.stored_counts), **dict.fromkeys(queues.by_name)}
    found = {name: queues.paging.depth(name, *node.stored_counts.get(name, (0, 0)))[0] for name in names}
    return {name: depth for name, depth in found.items() if depth or name in queues.by_name}


def queue_row(node: "Node", name: str, depth: int) -> dict[str, Any]:
    """One line of the picture; `ready` counts what is in memory."""
    queue = node.broker.queues.by_name.get(name)
    return {
        "destination": name,
        "messages": depth,
        "ready": 0 if queue is None else sum(len(level.ready) for level in queue.levels),
        "consumers": 0 if queue is None else len(queue.subscriptions),
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
            "learner": not node.membership.counts(peer.name),
            "peers_version": peer.peers_version,
            "topics_dropped": peer.topics_dropped,
            "topics_via": peer.topics_via,
            "topics_wanted": peer.topics_wanted,
            "last_error": peer.last_error[:120],
        }
        for peer in node.mesh.statistics().peers
    ]


def membership_of(node: "Node") -> dict[str, Any]:
    """By which file this node goes, whether it counts, and who has left for good."""
    membership = node.membership
    return {
        "peers_version": membership.listing.version,
        "members": sorted(membership.members),
        "learner": membership.is_learner,
        "lists": len(membership.lists),
        "destinations_differ": {
            peer: names[:DESTINATIONS_SHOWN] for peer, names in membership.destinations_that_differ().items()
        },
        "retired": [{"node": gone.node, "adopter": gone.adopter} for gone in membership.retired.values()],
    }


def topics_of(node: "Node") -> dict[str, int]:
    """What became of topic messages that took, or might have taken, more than one way."""
    if node.mesh is None:
        return {}
    found = node.mesh.statistics()
    return {"relayed": found.topics_relayed, "unrelayed": found.topics_unrelayed, "late": found.topics_late}


def durables_of(node: "Node") -> list[dict[str, Any]]:
    """Durable subscriptions, those that nobody uses here first: they may be forgotten ones."""
    durable_subscriptions = node.broker.durable_subscriptions
    known = [
        {
            "destination": name.destination,
            "name": name.text,
            "in_use": name in durable_subscriptions.attached,
            "in_flight": len(durable_subscriptions.attached[name].subscription.in_flight)
            if name in durable_subscriptions.attached
            else 0,
        }
        for name, cursor in durable_subscriptions.by_name.items()
        if cursor.created_us
    ]
    return sorted(known, key=lambda row: (row["in_use"], row["destination"], row["name"]))[:DESTINATIONS_SHOWN]


def slow_of(node: "Node") -> list[dict[str, Any]]:
    """Subscriptions with a declared buffer whose client does not read at the moment, the worst first."""
    waiting: list[dict[str, Any]] = [
        {
            "session": session.id,
            "destination": subscription.destination,
            "messages": len(subscription.buffer),
            "bytes": subscription.buffer.bytes,
            "dropped": subscription.buffer.dropped,
        }
        for session in node.sessions.values()
        for subscription in session.buffered or ()
        if subscription.buffer is not None and not subscription.closed
    ]
    return sorted(waiting, key=lambda row: (-row["dropped"], -row["bytes"], row["session"]))[:DESTINATIONS_SHOWN]


def status_answer(node: "Node") -> str:
    """`status_of` as one line of JSON that fits a header."""
    return _fitting(status_of(node))


def position_answer(node: "Node") -> str:
    """Of the status only how far the node is, which every client needs that follows a fanout."""
    picture = status_of(node)
    return _fitting({name: picture[name] for name in ("node", "software", "incarnation", "vector")})


def _fitting(picture: dict[str, Any]) -> str:
    """One line of JSON; lists are cut from their ends until it is short enough, or nothing is left in them."""
    while True:
        text = json.dumps(picture, separators=(",", ":"))
        # STOMP escapes these two, and the reader's bound is on the line as it is sent.
        if len(text) + text.count(":") + text.count("\\") <= STATUS_BYTES_MAX:
            return text
        lists = [name for name in LISTS if picture.get(name)]
        if not lists:
            return text
        longest = max(lists, key=lambda name: len(json.dumps(picture[name])))
        if isinstance(picture[longest], dict):
            picture[longest] = {}
        else:
            # An eighth at a time: of a thousand readers, each cut would cost as much as the whole answer.
            del picture[longest][-max(1, len(picture[longest]) // 8) :]
        picture["cut"] = True
