"""Which principal may do what with which destination: a table for the decision, and for what clients get by STOMP."""

from qmq.access.rules import ACTIONS, Action, Permission

SEND, SUBSCRIBE, DECLARE, ADMINISTER, OBSERVE = ACTIONS


def row(subject: str, word: str, actions: str, *patterns: str) -> Permission:
    """`row("@billing", "allow", "send", …)` is about the group billing."""
    group = subject.removeprefix("@") if subject.startswith("@") else None
    named = frozenset(Action(action) for action in actions.split(","))
    return Permission(None if group else subject, group, word == "allow", named, patterns)


GROUPS = {
    "root": frozenset({"administrator"}),
    "night": frozenset({"operator"}),
    "grafana": frozenset({"observer"}),
    "app": frozenset({"client"}),
    "bill": frozenset({"billing"}),
    "ann": frozenset({"client", "billing"}),
    "new": frozenset[str](),
}
EVERYONE = (*GROUPS, "anonymous")

ROWS = [
    row("@billing", "allow", "send,subscribe", "/queue/billing.*"),
    row("ann", "deny", "subscribe", "/queue/billing.secret", "/topic/secret.*"),
    row("anonymous", "allow", "subscribe", "/topic/public.*"),
    row("new", "allow", "send", "/queue/one"),
    row("@billing", "allow", "send", "/exchange/billing/*"),
    row("ann", "deny", "send", "/exchange/billing/secret.*"),
    row("new", "allow", "subscribe", "/fanout/news"),
]

# Destination → action → the users that may. All others may not.
MAY: dict[str, dict[Action, set[str]]] = {
    "/queue/jobs": {
        SEND: {"root", "app", "ann"},
        SUBSCRIBE: {"root", "night", "app", "ann"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/queue/one": {
        SEND: {"root", "app", "ann", "new"},
        SUBSCRIBE: {"root", "night", "app", "ann"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/queue/billing.in": {
        SEND: {"root", "app", "ann", "bill"},
        SUBSCRIBE: {"root", "night", "app", "ann", "bill"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/queue/billing.secret": {
        SEND: {"root", "app", "ann", "bill"},
        SUBSCRIBE: {"root", "night", "app", "bill"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/topic/public.news": {
        SEND: {"root", "app", "ann"},
        SUBSCRIBE: {"root", "night", "app", "ann", "anonymous"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/topic/#": {
        SEND: {"root", "app", "ann"},
        SUBSCRIBE: {"root", "night", "app"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/topic/public.*": {
        SEND: {"root", "app", "ann"},
        SUBSCRIBE: {"root", "night", "app", "ann", "anonymous"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/fanout/news": {
        SEND: {"root", "app", "ann"},
        SUBSCRIBE: {"root", "night", "app", "ann", "new"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/exchange/billing/eu": {
        SEND: {"root", "app", "ann", "bill"},
        SUBSCRIBE: {"root", "night", "app", "ann"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/exchange/billing/secret.eu": {
        SEND: {"root", "app", "bill"},
        SUBSCRIBE: {"root", "night", "app", "ann"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/exchange/amq.topic": {
        SEND: {"root", "app", "ann"},
        SUBSCRIBE: {"root", "night", "app", "ann"},
        DECLARE: {"root", "night", "app", "ann"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/temp-queue/mine": {
        SEND: set(EVERYONE),
        SUBSCRIBE: set(EVERYONE),
        DECLARE: {"root"},
        ADMINISTER: {"root"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/reply-queue/0123": {
        SEND: set(EVERYONE),
        SUBSCRIBE: set(EVERYONE),
        DECLARE: {"root"},
        ADMINISTER: {"root"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/control/connections": {
        SEND: {"root"},
        SUBSCRIBE: {"root"},
        DECLARE: {"root"},
        ADMINISTER: {"root"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/control/get/a-1-1": {
        SEND: {"root"},
        SUBSCRIBE: {"root", "night"},
        DECLARE: {"root"},
        ADMINISTER: {"root"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/control/kick/a/7": {
        SEND: {"root"},
        SUBSCRIBE: {"root"},
        DECLARE: {"root"},
        ADMINISTER: {"root", "night"},
        OBSERVE: {"root", "night", "grafana"},
    },
    "/system/journal": {
        SEND: {"root"},
        SUBSCRIBE: {"root"},
        DECLARE: {"root"},
        ADMINISTER: {"root"},
        OBSERVE: {"root", "night", "grafana"},
    },
}
