"""What a control request or a system topic needs: an action, and the destination that it is about.

`/control/VERB/queue/NAME` is about `/queue/NAME`. A request about no destination, such as `/control/status`, is about
itself, and so is a system topic. A verb that is not in VERBS needs `administer`: what is added later is closed until
it is listed here.
"""

from collections.abc import Mapping
from typing import Final

from qmq.access.rules import Action

CONTROL: Final = "/control/"
SYSTEM: Final = "/system/"
KINDS: Final = ("/queue/", "/topic/", "/fanout/", "/exchange/")

VERBS: Final[Mapping[str, Action]] = {
    "status": Action.OBSERVE,
    "conditions": Action.OBSERVE,
    "count-msgs": Action.OBSERVE,
    "count-subscribers": Action.OBSERVE,
    "list": Action.OBSERVE,
    "list-subscribers": Action.OBSERVE,
    "connections": Action.OBSERVE,
    "links": Action.OBSERVE,
    "overview": Action.OBSERVE,
    "history": Action.OBSERVE,
    "trace": Action.OBSERVE,
    "peek": Action.SUBSCRIBE,
    "get": Action.SUBSCRIBE,
    "declare": Action.DECLARE,
    "bind": Action.DECLARE,
    "unbind": Action.DECLARE,
    "bind-source": Action.SUBSCRIBE,
    "exchanges": Action.OBSERVE,
    "bindings": Action.OBSERVE,
}
"""`bind-source` is no request: it stands for the source that a queue or exchange is bound to, or unbound from."""

ABOUT_NO_DESTINATION: Final = frozenset(
    {"bindings", "connections", "exchanges", "get", "kick", "links", "retire", "trace"}
)
"""What follows these verbs is never a destination, although it may look like one: a node may be named `queue`."""

SYSTEM_TOPICS: Final[Mapping[str, Action]] = {
    "/system/events": Action.OBSERVE,
    "/system/peers": Action.OBSERVE,
    "/system/journal": Action.SUBSCRIBE,
}
"""The journal has the bodies of all destinations."""


def of_control(destination: str) -> tuple[Action, str]:
    """What a SEND to a control destination needs."""
    verb, _, name = destination.removeprefix(CONTROL).partition("/")
    action = VERBS.get(verb, Action.ADMINISTER)
    if verb in ABOUT_NO_DESTINATION:
        return action, destination
    about = f"/{name}"
    if about.startswith("/exchange/"):
        if verb == "delete":
            # It holds no messages: to delete one is the reverse of declaring it.
            action = Action.DECLARE
        elif verb in ("bind", "unbind"):
            # What is bound sends to it, with any routing key.
            action, about = Action.SEND, f"{about}/*"
    if verb == "list":
        # The prefix of a list counts as a pattern; without one it is a list of the whole kind.
        about = about if "/" in name else f"{about}/"
        about = about if about.endswith("*") else f"{about}*"
    return action, about if about.startswith(KINDS) else destination


def of_system(destination: str) -> tuple[Action, str]:
    """What a SUBSCRIBE to a system topic needs."""
    return SYSTEM_TOPICS.get(destination, Action.ADMINISTER), destination
