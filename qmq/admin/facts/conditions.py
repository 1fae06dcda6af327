"""Conditions and events: what an operator should know of a node.

A condition is a state. It is raised when the state begins, cleared when it ends, and repeated reports of it only
increase its count. An event is history: something was found or has happened, and nothing ends it. Both are logged, both
are published on `/system/events`, and `qmq conditions` shows them with an advice.

Conditions are kept until they are cleared. Events, and conditions that are over, are kept up to `PAST_KEPT`; the most
severe stay longest. All of it ends with the process: a state that outlives it is found again at the start.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from qmq.engine.runtime.log_events import about
from qmq.replication.protocol.conversation import REFUSED

CONDITIONS_MAX: Final = 200
PAST_KEPT: Final = 100
MESSAGE_CHARACTERS_MAX: Final = 300
REPEATED_US: Final = 60_000_000
"""An equal event within this time is counted, not logged."""

log = logging.getLogger("qmq.condition")


class Severity(StrEnum):
    """How urgent it is. The order is that of the list."""

    INFO = "info"
    WARNING = "warning"
    """Nothing is wrong for clients yet."""
    ERROR = "error"
    """Some clients are refused, or some copies are missing."""
    CRITICAL = "critical"
    """Messages are lost, or will be if nothing is done."""


class Rule(NamedTuple):
    """What a code means for the operator."""

    severity: Severity
    advice: str


OPERATIONS: Final = "docs/operations.md"
RENEW: Final = "Renew the certificate, then reload (SIGHUP)."

RULES: Final[Mapping[str, Rule]] = {
    "archive-behind": Rule(
        Severity.WARNING, "Start `qmq archive`, or see its log: journals may drop what is not in the table yet."
    ),
    "authentication-unavailable": Rule(
        Severity.ERROR, "Check the service, file or package that the message names (docs/authentication.md)."
    ),
    "bindings-unfit": Rule(
        Severity.WARNING, "Declare the exchange that is missing, or delete the bindings that the message names."
    ),
    "certificate-expired": Rule(Severity.ERROR, RENEW),
    "certificate-expires": Rule(Severity.WARNING, RENEW),
    "checkpoint": Rule(Severity.ERROR, "Free disk space, or check the disk or server of the queue store."),
    "clock": Rule(Severity.ERROR, f"Set the clock of the node that the message names ({OPERATIONS}, clocks)."),
    "damage": Rule(Severity.ERROR, "A disk that flips bits once does it again: replace it."),
    "definitions-behind": Rule(
        Severity.WARNING, "Start the other nodes, and check the links to them: too few answer about definitions."
    ),
    "draining": Rule(Severity.WARNING, "Restart the node, or let clients in again with `qmq undrain`."),
    "disk-full": Rule(Severity.ERROR, "Free disk space, or let consumers drain the queues."),
    "gap": Rule(Severity.CRITICAL, "These records are on no member. Compare with the senders' own records."),
    "interest-full": Rule(
        Severity.WARNING, "Upgrade the node that the message names: it should subscribe to every topic."
    ),
    "local-socket": Rule(
        Severity.WARNING, "Remove the file qmq.sock, or use --at: the file system may have no sockets."
    ),
    "lost": Rule(Severity.CRITICAL, "This message is on no member. Compare with the sender's own records."),
    "lost-tail": Rule(Severity.CRITICAL, "The disk confirmed what it had not stored. Do not use it for this."),
    "memory": Rule(Severity.WARNING, "See `qmq status` for slow subscriptions, and limits.memory_bytes_max."),
    "no-disk": Rule(Severity.INFO, ""),
    "new-disk": Rule(Severity.WARNING, "Wait: it counts when it has what a majority has."),
    "old-disk": Rule(Severity.ERROR, "Wait, if the copy was restored on purpose; else find out which disk runs."),
    "policies-unfit": Rule(Severity.WARNING, "Change the policy or the limit that the message names."),
    "quarantine": Rule(Severity.ERROR, "In a mesh wait for its peers; alone run `qmq log release DIR`."),
    "queues-held": Rule(
        Severity.ERROR, f"Start the nodes that it cannot reach; see {OPERATIONS} if a majority is lost for good."
    ),
    "reload": Rule(Severity.WARNING, "Correct the file that the message names, then reload."),
    "retained-full": Rule(Severity.WARNING, "Raise the limits of retained values, or clear unused ones."),
    "retired": Rule(Severity.ERROR, "Do not start this data directory again."),
    "retirement-unconfirmed": Rule(Severity.WARNING, "Check the links of the node that the message names."),
    "returned": Rule(Severity.INFO, ""),
    "schema-missing": Rule(
        Severity.ERROR, "Define the schema that the message names, or take it out of the policy (docs/definitions.md)."
    ),
    "shortage": Rule(Severity.ERROR, "Raise the limit of open files, or close idle clients."),
    "takeover": Rule(Severity.WARNING, "Start the node whose messages are served here."),
    "takeover-failed": Rule(Severity.ERROR, "Free disk space; another node tries meanwhile."),
    "takeover-differs": Rule(Severity.ERROR, "Give both nodes the same takeover settings."),
    "taken-over": Rule(Severity.WARNING, "Wait: this node asks for its messages."),
}
"""Codes that no refusal of a link has, except `takeover-differs`."""

REFUSALS: Final[Mapping[str, str]] = {
    "bad-certificate": "Renew the certificate of that peer, or correct `ca` of this node, then reload (SIGHUP).",
    "bad-proof": "Give both nodes the same secret in the peers file.",
    "duplicate-node": "Stop one of the two nodes with this name; after a restart it is over by itself.",
    "forged-origin": "Examine the node at the other end: it sends records that it cannot have.",
    "future-format": "Upgrade the older of the two nodes.",
    "no-proof": "Set a secret in the peers file of all nodes, or TLS for links.",
    "retired-node": "Stop the retired node. To join again it needs another name and an empty data directory.",
    "unknown-node": "Give all nodes the same peers file, then reload each.",
    "wrong-certificate": "Issue the certificate of the node with the name that the peers file has.",
    "wrong-mesh": "Correct the mesh id, or the address that leads to another mesh, in the peers file.",
}
"""Code of a refused link → advice, on both sides."""

LINK: Final = "Compare peers file, secret, certificate and software of both nodes."
"""Advice for all other codes: the link was refused or broke."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition or event; times are microseconds since 1970. `until_us` is None while it is present."""

    code: str
    severity: Severity
    message: str
    advice: str
    since_us: int
    last_us: int
    until_us: int | None = None
    count: int = 1


class Conditions:
    """The conditions of one node, its latest events, and the conditions that are over."""

    def __init__(self) -> None:
        self._present: dict[tuple[str, str], Condition] = {}
        self._past: list[Condition] = []

    def raise_condition(self, code: str, message: str, now_us: int) -> bool:
        """A state began, or lasts. Whether it is new; then it is logged."""
        message = message[:MESSAGE_CHARACTERS_MAX]
        known = self._present.get((code, message))
        if known is not None:
            self._present[code, message] = replace(known, count=known.count + 1, last_us=now_us)
            return False
        if len(self._present) >= CONDITIONS_MAX:
            del self._present[min(self._present, key=lambda one: _urgency(self._present[one]))]
        one = self._present[code, message] = _condition(code, message, now_us)
        raised = about("condition", code=code, message=message, state="raised")
        log.log(_level(one.severity), "! CONDITION %s: %s", code, message, extra=raised)
        return True

    def clear(self, code: str, message: str, now_us: int) -> bool:
        """The state has ended. Whether it was raised before."""
        one = self._present.pop((code, message[:MESSAGE_CHARACTERS_MAX]), None)
        if one is None:
            return False
        self._keep(replace(one, until_us=now_us))
        cleared = about("condition", code=code, message=one.message, state="cleared")
        log.info("= condition %s is over; it said: %s", code, one.message, extra=cleared)
        return True

    def add_event(self, code: str, message: str, now_us: int) -> bool:
        """Something has happened. Whether it is logged: not when it is repeated within a minute."""
        message = message[:MESSAGE_CHARACTERS_MAX]
        one = next((one for one in self._past if (one.code, one.message) == (code, message)), None)
        is_repeated = one is not None and now_us - one.last_us < REPEATED_US
        if one is None:
            self._keep(replace(_condition(code, message, now_us), until_us=now_us))
        else:
            self._past[self._past.index(one)] = replace(one, count=one.count + 1, last_us=now_us, until_us=now_us)
        if not is_repeated:
            log.log(_level(_rule(code).severity), "! EVENT %s: %s", code, message, extra=about(code, message=message))
        return not is_repeated

    def present(self) -> list[Condition]:
        """The conditions, the most severe first, then the oldest."""
        return sorted(self._present.values(), key=_urgency, reverse=True)

    def past(self) -> list[Condition]:
        """Events and conditions that are over, the latest first."""
        return sorted(self._past, key=lambda one: one.last_us, reverse=True)

    def _keep(self, one: Condition) -> None:
        if len(self._past) >= PAST_KEPT:
            self._past.remove(min(self._past, key=lambda kept: (_rank(kept.severity), kept.last_us)))
        self._past.append(one)


def urgency_key(row: Mapping[str, Any]) -> str:
    """Orders rows of several nodes: the most severe first, then the oldest."""
    rank = len(Severity) - _rank(_severity_of(row["severity"]))
    return f"{rank}/{row['since_us']:020d}/{row['node']}/{row['code']}/{row['message']}"


def _severity_of(text: object) -> Severity:
    """A severity of a later version is one that an operator should see."""
    try:
        return Severity(text)  # type: ignore[arg-type]
    except ValueError:
        return Severity.ERROR


def _condition(code: str, message: str, now_us: int) -> Condition:
    rule = _rule(code)
    return Condition(code, rule.severity, message, rule.advice, now_us, now_us)


def _rule(code: str) -> Rule:
    code_here = code.removeprefix(REFUSED)
    return RULES.get(code_here) or Rule(Severity.ERROR, REFUSALS.get(code_here, LINK))


def _urgency(one: Condition) -> tuple[int, int]:
    return _rank(one.severity), -one.since_us


def _rank(severity: Severity) -> int:
    return list(Severity).index(severity)


def _level(severity: Severity) -> int:
    return {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING}.get(severity, logging.ERROR)
