"""What a control request or a system topic needs: actions, and the destinations that they are about.

`/control/VERB/queue/NAME` is about `/queue/NAME`. A request about no destination, such as `/control/status`, is about
itself, and so is a system topic. A verb that is not in VERBS needs `administer`: what is added later is closed until
it is listed here.

A request needs the right for each of its effects. Dead letters of a queue are messages that leave it, which is to read
it; what is bound to a queue sends to it. So some needs are known only when the node has looked at what is there: they
are asked a second time, with the `Effect`, where the change is made.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from qmq.access.rules import Action

CONTROL: Final = "/control/"
SYSTEM: Final = "/system/"
EXCHANGE: Final = "/exchange/"
KINDS: Final = ("/queue/", "/topic/", "/fanout/", EXCHANGE)

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
    "exchanges": Action.OBSERVE,
    "bindings": Action.OBSERVE,
}

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

NO_HEADERS: Final[Mapping[str, str]] = {}


class Need(NamedTuple):
    """A right that a request needs. `or_any`: any other action on the same destination does as well."""

    action: Action
    about: str
    or_any: bool = False


class Effect(NamedTuple):
    """What a request does beyond what it says, as the node finds out."""

    is_change: bool = True
    """False: what it declares or binds is so already."""
    is_private: bool = False
    """The queue that it binds is exclusive to this connection: nothing is sent to another client."""
    is_replacing: bool = False
    """It gives other rules to a queue that another user has declared, or none that has a name; or other bindings to
    that of another user's durable subscription.
    """
    is_taking: bool = False
    """It takes messages out of the destination: dead letters, or rules for messages that others have sent already."""
    sends_to: str = ""
    """Where those go, or those that no binding matches."""
    found: str = ""
    """The destination of the message that it shows."""


def needs_of(destination: str, headers: Mapping[str, str] = NO_HEADERS, effect: Effect | None = None) -> list[Need]:
    """All that a SEND to a control destination needs. Without `effect`: before the node has looked."""
    verb, _, name = destination.removeprefix(CONTROL).partition("/")
    action, about = VERBS.get(verb, Action.ADMINISTER), _about(verb, name) or destination
    if effect is not None and effect.found:
        return [Need(action, effect.found)]
    if verb in ("bind", "unbind") and about.startswith(EXCHANGE):
        # What is bound sends to it, with any routing key.
        action, about = Action.SEND, f"{about}/*"
    elif verb == "delete" and about.startswith(EXCHANGE):
        # It holds no messages: to delete one is the reverse of declaring it.
        action = Action.DECLARE
    # What is there already does not change: each client that uses it may say so.
    is_same = verb in ("declare", "bind", "unbind") and (effect is None or not effect.is_change)
    needs = [Need(action, about, or_any=is_same)]
    if verb in ("bind", "unbind"):
        if effect is not None and effect.is_change and not effect.is_private and action is Action.DECLARE:
            needs.append(Need(Action.SEND, about))
        source = headers.get("source", "")
        needs += [Need(Action.SUBSCRIBE, source, or_any=is_same)] if source.startswith(KINDS) else []
    elif verb == "delete" and action is Action.DECLARE:
        # Its messages go elsewhere from then on: to the alternate, or to what is declared under its name.
        needs.append(Need(Action.SUBSCRIBE, about))
    elif verb == "move":
        target = headers.get("to", "")
        needs.append(Need(Action.SUBSCRIBE, about))
        needs += [Need(Action.ADMINISTER, target), Need(Action.SEND, target)] if target.startswith(KINDS) else []
    elif verb == "redrive":
        # Each message goes back to the queue that it came from.
        needs.append(Need(Action.ADMINISTER, "/queue/*"))
    if effect is None or not effect.is_change:
        return needs
    if effect.is_replacing:
        needs.append(Need(Action.ADMINISTER, about))
    if effect.is_taking:
        needs.append(Need(Action.SUBSCRIBE, about))
    if effect.sends_to:
        needs.append(Need(Action.SEND, effect.sends_to))
    return needs


def _about(verb: str, name: str) -> str:
    """The destination that a request is about; "": none."""
    if verb in ABOUT_NO_DESTINATION:
        return ""
    about = f"/{name}"
    if verb == "list":
        # The prefix of a list counts as a pattern; without one it is a list of the whole kind.
        about = about if "/" in name else f"{about}/"
        about = about if about.endswith("*") else f"{about}*"
    return about if about.startswith(KINDS) else ""


def of_system(destination: str) -> tuple[Action, str]:
    """What a SUBSCRIBE to a system topic needs."""
    return SYSTEM_TOPICS.get(destination, Action.ADMINISTER), destination
