"""All control verbs, and what a request to one of them needs.

`/control/VERB/queue/NAME` is about `/queue/NAME`. A request about no destination, such as `/control/status`, is about
itself. A verb that is not declared needs `administer`.

A request needs the right for each of its effects. Dead letters of a queue are messages that leave it, which is to read
it; what is bound to a queue sends to it. So some needs are known only when the node has looked at what is there: they
are asked a second time, with the `Effect`, where the change is made.
"""

from collections.abc import Mapping
from typing import Final

from qmq.access.rights import Need
from qmq.access.rules import Action
from qmq.verbs import definitions, lists, messages, nodes, queues, routing
from qmq.verbs.verb import CONTROL, NO_HEADERS, Effect, Verb

MODULES: Final = (queues, routing, messages, lists, nodes, definitions)

VERBS: Final[dict[str, type[Verb]]] = {
    verb.word(): verb
    for module in MODULES
    for verb in vars(module).values()
    if isinstance(verb, type) and issubclass(verb, Verb) and verb.form and verb is not lists.QueuePage
}
"""What begins a request, a word or two, → its verb: all that these modules declare."""


def verb_of(destination: str, headers: Mapping[str, str] = NO_HEADERS) -> tuple[type[Verb] | None, str]:
    """The verb that a control destination names, None for none, and what follows it without the slash."""
    word, _, name = destination.removeprefix(CONTROL).partition("/")
    second, _, behind = name.partition("/")
    if (verb := VERBS.get(f"{word}/{second}")) is not None:
        return verb, behind
    if word == lists.List.word() and "sort" in headers and name.rstrip("/") == "queue":
        return lists.QueuePage, name
    return VERBS.get(word), name


def needs_of(destination: str, headers: Mapping[str, str] = NO_HEADERS, effect: Effect | None = None) -> list[Need]:
    """All that a SEND to a control destination needs. Without `effect`: before the node has looked."""
    known, name = verb_of(destination, headers)
    verb = known or Verb
    about = verb.destination_of(name) or destination
    if effect is not None and effect.found:
        return [Need(verb.right, effect.found)]
    needs = verb.needs(about, headers, effect)
    if effect is None or not effect.is_change:
        return needs
    if effect.is_replacing:
        needs.append(Need(Action.ADMINISTER, about))
    if effect.is_taking:
        needs.append(Need(Action.SUBSCRIBE, about))
    if effect.sends_to:
        needs.append(Need(Action.SEND, effect.sends_to))
    return needs
