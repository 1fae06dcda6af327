"""Verbs about what is in queues, topics and fanouts: bulk jobs, pauses, declarations and deletions."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from qmq.access.rights import EXCHANGE, KINDS, Need
from qmq.access.rules import Action
from qmq.verbs.verb import Changing, Defining, Effect, Quorum, Scope, option

COUNT_MAX: Final = 10**12

IDS_CHARS_MAX: Final = 8_000
"""Some 200 message-ids; a request over HTTP has them in its first line."""

Selector = Annotated[
    str, option("Only messages that match, as in SUBSCRIBE (JMS).", metavar="TEXT", audited="selector")
]
Count = Annotated[
    int,
    option("At most so many messages, the first ones.", metavar="N", of=" of messages", ge=1, le=COUNT_MAX),
]

Ids = Annotated[
    str,
    option("Only these messages, by message-id, with commas.", metavar="IDS", audited="ids", max_length=IDS_CHARS_MAX),
]


class BulkVerb(Changing):
    """Settle messages of a queue that wait."""

    is_job = True

    selector: Selector = ""
    ids: Ids = ""
    count: Count = 0
    scope: Scope = "node"


class Purge(BulkVerb):
    """Settle the messages of a queue that wait, on all nodes.

    Messages in flight stay with their consumers, and messages that are sent meanwhile stay in the queue. Exit code 1 if
    a node is missing or the request is refused; messages that were settled by then stay settled.
    """

    form = "purge/queue/NAME"


class MoveMessages(BulkVerb):
    """Move the messages of a queue that wait to another queue.

    The messages of each node keep their order. Each is settled and accepted in one record: after a crash it is in
    exactly one of the two queues. Exit code 1 if a node is missing, or if messages are left, for example because TARGET
    is full.
    """

    form = "move/queue/NAME"

    to: Annotated[str, option("The other queue, /queue/NAME.", word="TARGET")] = ""

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        target = headers.get("to", "")
        needs = [Need(Action.ADMINISTER, about), Need(Action.SUBSCRIBE, about)]
        return needs + [Need(Action.ADMINISTER, target), Need(Action.SEND, target)] * target.startswith(KINDS)


class Redrive(BulkVerb):
    """Move dead letters back to the queues they came from.

    QUEUE is the dead letter queue. Messages in it that are no dead letters stay. Exit code 1 if a node is missing or
    messages are left.
    """

    form = "redrive/queue/NAME"

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        # Each message goes back to the queue that it came from.
        return [Need(Action.ADMINISTER, about), Need(Action.ADMINISTER, "/queue/*")]


Part = Literal["delivery", "acceptance", "both"]


class PauseQueue(Changing):
    """Pause the delivery or the acceptance of a queue, on all nodes.

    Without an option the delivery is paused: consumers stay subscribed and get nothing more. With --acceptance a SEND
    is refused with `queue-paused`. A pause survives restarts.
    """

    form = "pause/queue/NAME"

    part: Annotated[Part, option("What is paused.", audited="part")] = "delivery"
    dry_run: Annotated[bool, option("Show what would be paused then, and change nothing.")] = False


class ResumeQueue(Changing):
    """Resume a paused queue, on all nodes.

    Without an option both parts are resumed. It is no error if the queue is not paused.
    """

    form = "resume/queue/NAME"

    part: Annotated[Part, option("What is resumed.", audited="part")] = "both"
    dry_run: Annotated[bool, option("Show what would be paused then, and change nothing.")] = False


class Delete(Changing):
    """Delete a queue, a fanout, or the last value of a topic, on all nodes.

    For a queue, the messages that wait are settled, and its declaration, bindings and pause are deleted. For a fanout,
    its messages and its durable subscriptions are deleted, and its subscribers are disconnected; messages that the node
    of --at has not received yet stay. For a topic, the retained message is deleted. A message that is sent later begins
    a new destination of the same name. Exit code 1 if a node is missing, or if the deletion is refused: the queue has
    consumers, there is no such destination, or the user may not delete it.
    """

    form = "delete/queue|topic|fanout|exchange/NAME"

    if_empty: Annotated[bool, option("Only if no message waits in it.")] = False
    if_unused: Annotated[bool, option("Only if it has no bindings.")] = False
    force: Annotated[bool, option("Delete a queue although it has consumers; they stay subscribed.")] = False
    quorum: Quorum = False

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        if not about.startswith(EXCHANGE):
            return [Need(Action.ADMINISTER, about)]
        # It holds no messages: to delete one is the reverse of declaring it. Its messages go elsewhere from then on: to
        # the alternate, or to what is declared under its name.
        return [Need(Action.DECLARE, about), Need(Action.SUBSCRIBE, about)]


class Declare(Defining):
    """Declare a queue or an exchange. The keys of the declaration are in the body, or in headers."""

    form = "declare/queue|exchange/NAME"
    right = Action.DECLARE

    replace: Annotated[bool, option("Replace a declaration with other values.")] = False
    passive: Annotated[bool, option("Declare nothing; exit code 1 if the queue is not declared.")] = False
    force: Annotated[bool, option("Also if the queue is exclusive to another connection.")] = False

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        # What is there already does not change: each client that uses it may say so.
        return [Need(Action.DECLARE, about, or_any=effect is None or not effect.is_change)]
