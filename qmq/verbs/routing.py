"""Verbs about exchanges and bindings."""

from collections.abc import Mapping
from typing import Annotated

from qmq.access.rights import EXCHANGE, KINDS, Need
from qmq.access.rules import Action
from qmq.verbs.verb import Defining, Effect, Showing, option


class Bind(Defining):
    """Copy messages from a source to a queue or an exchange, from now on. The body has the arguments."""

    form = "bind/queue|exchange/NAME"
    right = Action.DECLARE

    source: Annotated[str, option("A topic or a pattern, a fanout, or an exchange.", audited="source")] | None = None
    key: Annotated[str, option("The routing key; of a topic exchange a pattern.", audited="key")] = ""
    force: Annotated[bool, option("Also if the queue is exclusive to another connection.")] = False

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        is_same = effect is None or not effect.is_change
        if about.startswith(EXCHANGE):
            # What is bound sends to it, with any routing key.
            needs = [Need(Action.SEND, f"{about}/*", or_any=is_same)]
        else:
            needs = [Need(Action.DECLARE, about, or_any=is_same)]
            if effect is not None and effect.is_change and not effect.is_private:
                needs.append(Need(Action.SEND, about))
        source = headers.get("source", "")
        return needs + [Need(Action.SUBSCRIBE, source, or_any=is_same)] * source.startswith(KINDS)


class Unbind(Bind):
    """Delete exactly this binding."""

    form = "unbind/queue|exchange/NAME"


class ListExchanges(Showing):
    """List the exchanges, the predefined ones too."""

    form = "exchanges"
    subject = "exchange"


class ListBindings(Showing):
    """List the bindings."""

    form = "bindings"
    subject = "binding"
