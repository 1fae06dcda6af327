"""What the facts of a running mesh mean for its operator. Pure."""

from collections.abc import Iterator
from statistics import median
from typing import Final

from ..output import byte_size, counted, duration
from .facts import POLICIES_SEEN, Facts, MeshFacts
from .findings import FREE_BYTES_MIN, FSYNC_SECONDS_SLOW, DoctorFinding

SKEW_US_MAX: Final = 1_000_000
"""Half of what makes a node refuse to believe a clock, and more than the answers of one request differ by."""
MEMORY_SHARE_HIGH: Final = 0.8
WAITING_US_LONG: Final = 60_000_000
"""A queue without consumers is one finding when its oldest message has waited so long."""
QUEUES_NAMED: Final = 20


def findings_of_mesh(facts: MeshFacts) -> list[DoctorFinding]:
    """What an operator should look at, or change."""
    return [
        *_conditions(facts),
        *_members(facts),
        *_nodes(facts),
        *_queues(facts),
        *_dead_letters(facts),
        *_definitions(facts),
        *_archives(facts),
    ]


def totals_of(facts: MeshFacts) -> dict[str, int]:
    """How many nodes answer, and how many messages wait or are in flight on them."""
    nodes = facts.nodes.values()
    sums = {name: sum(int(node.get(name) or 0) for node in nodes) for name in ("waiting", "in_flight")}
    return {"nodes": len(nodes), **sums}


def _conditions(facts: MeshFacts) -> Iterator[DoctorFinding]:
    for one in facts.conditions:
        message = f"{one.get('code')}: {one.get('message')}"
        yield DoctorFinding(str(one.get("severity")), str(one.get("node")), message, str(one.get("advice") or ""))


def _members(facts: MeshFacts) -> Iterator[DoctorFinding]:
    """What nodes do not have in common."""
    for name in facts.missing:
        yield DoctorFinding("error", name, "does not answer", "Start it, or look at `qmq links` and its log.")
    lists = {name: ", ".join(node.get("members", ())) for name, node in facts.nodes.items()}
    if len(set(lists.values())) > 1:
        message = "; ".join(f"{name} has {members}" for name, members in lists.items())
        yield DoctorFinding(
            "warning", "peers files", f"differ: {message}", "Give all nodes the same peers file, then reload each."
        )
    versions = {name: str(node.get("version")) for name, node in facts.nodes.items()}
    if len(set(versions.values())) > 1:
        message = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield DoctorFinding(
            "warning", "versions", f"differ: {message}", "Finish the upgrade: one node after the other."
        )
    builds = {str(node.get("build")) for node in facts.nodes.values()}
    if len(builds) > 1:
        message = "some nodes run compiled, some pure Python"
        yield DoctorFinding("info", "builds", message, "Both behave the same; the pure build is slower.")
    clocks = {name: int(node["at_us"]) for name, node in facts.nodes.items() if "at_us" in node}
    middle = median(clocks.values()) if clocks else 0
    for name, at_us in clocks.items():
        if abs(at_us - middle) > SKEW_US_MAX:
            message = f"its clock is {abs(at_us - middle) / 1e6:.1f} s {'ahead' if at_us > middle else 'behind'}"
            yield DoctorFinding(
                "warning", name, message, "Run an NTP client on every node (docs/operations.md, clocks)."
            )


def _nodes(facts: MeshFacts) -> Iterator[DoctorFinding]:
    for name, node in facts.nodes.items():
        free = node.get("disk_free_bytes", FREE_BYTES_MIN)
        if free < FREE_BYTES_MIN:
            yield DoctorFinding(
                "warning", name, f"its disk has {byte_size(free)} free", "Free disk space before queues grow."
            )
        fsync = node.get("fsync", {}).get("mean_us", 0)
        if fsync / 1e6 > FSYNC_SECONDS_SLOW:
            advice = "Every receipt waits for it: look at the disk and at what else writes to it."
            yield DoctorFinding("warning", name, f"an fsync takes {fsync / 1000:.0f} ms on average", advice)
        used, most = node.get("memory_bytes", 0), node.get("memory_max_bytes", 0)
        if most and used >= MEMORY_SHARE_HIGH * most:
            message = f"its clients hold {byte_size(used)} of {byte_size(most)}"
            yield DoctorFinding(
                "warning", name, message, "`qmq status` names slow subscriptions; see limits.memory_bytes_max."
            )
        for link in node.get("links", ()):
            if link.get("peer") not in facts.missing:
                yield from _link(name, link)


def _link(name: str, link: Facts) -> Iterator[DoctorFinding]:
    states = {"to": str(link.get("out")), "from": str(link.get("in"))}
    down = [way for way, state in states.items() if state in ("down", "connecting")]
    if down:
        error = f": {link['last_error']}" if link.get("last_error") else ""
        message = f"no link {' and '.join(down)} {link.get('peer')}{error}"
        yield DoctorFinding("error", name, message, "Look at the peers file, the firewall and the other node's log.")


def _queues(facts: MeshFacts) -> Iterator[DoctorFinding]:
    dead = {row.get("destination") for row in facts.dead_letters}
    left = [
        row
        for row in facts.queues or ()
        if row.get("messages") and not row.get("consumers") and row.get("destination") not in dead
        if (row.get("oldest_age_us") or 0) >= WAITING_US_LONG
    ]
    for row in left[:QUEUES_NAMED]:
        age = duration((row.get("oldest_age_us") or 0) / 1e6)
        message = f"{counted(row['messages'], 'message')} and no consumer, the oldest for {age}"
        yield DoctorFinding(
            "warning", str(row["destination"]), message, "Start its consumers, or move or purge its messages."
        )
    if len(left) > QUEUES_NAMED:
        more = counted(len(left) - QUEUES_NAMED, "more queue")
        yield DoctorFinding(
            "warning", "/queue/*", f"{more} with messages and no consumer", "`qmq queues list --mesh` has all."
        )


def _dead_letters(facts: MeshFacts) -> Iterator[DoctorFinding]:
    for row in facts.dead_letters:
        rate, count = row.get("accepted_per_second") or 0, row.get("messages") or 0
        if count:
            name = str(row["destination"])
            grows = f", {rate:g} more each second" if rate else ""
            message = f"{counted(count, 'dead letter')}{grows}"
            advice = f"`qmq peek {name}` shows why they are there; `qmq redrive {name}` sends them back."
            yield DoctorFinding("error" if rate else "warning", name, message, advice)


def _definitions(facts: MeshFacts) -> Iterator[DoctorFinding]:
    for pattern in facts.unmatched or ():
        yield DoctorFinding("info", pattern, "this policy matches no destination now", "Delete it if it is a leftover.")
    if facts.policies > POLICIES_SEEN:
        message = f"only the first {POLICIES_SEEN} of {facts.policies} were compared with the destinations"
        yield DoctorFinding("info", "policies", message, "`qmq list` shows which destinations there are.")
    if facts.queues is None or facts.unmatched is None:
        message = "this user may not see all queues and policies: these were not checked"
        advice = "Log in as an administrator, or use --data on the machine of a node."
        yield DoctorFinding("info", "rights", message, advice)


def _archives(facts: MeshFacts) -> Iterator[DoctorFinding]:
    """Nodes raise a condition for an archive that is behind; of one that nothing has ever filled they know nothing."""
    readers = {row.get("name") for node in facts.nodes.values() for row in node.get("readers", ())}
    for name in facts.archives:
        if name not in readers:
            message = "no archiver has reported to a node that answers, since it was started"
            yield DoctorFinding("warning", f"archive {name}", message, "Start `qmq archive`, or see its log.")
