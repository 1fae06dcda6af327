"""Messages that reach their limit of deliveries, or are rejected, while this node may not serve them.

Another node may serve them by then, and bury them itself: a letter of each would make two. So the failure is counted
and the message stays. Before anything is delivered again the node buries what it still serves; what another one
serves has left memory by then.
"""

from typing import TYPE_CHECKING

from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.messages.message import Message

if TYPE_CHECKING:
    from qmq.broker.queues.queue import Queue
    from qmq.broker.queues.queues import Queues


class Postponed:
    """`waiting` stand in line with the others, and nothing is delivered from the line meanwhile."""

    __slots__ = ("_queues", "waiting")

    def __init__(self, queues: "Queues") -> None:
        self._queues = queues
        self.waiting: list[Return] = []

    def must_wait(self, queue: "Queue", message: Message) -> bool:
        """Whether another node may serve `message` by now."""
        queues = self._queues
        return queues.held and message.sequence > 0 and not queues.isolated_mode.may_take(queue, message)

    def end(self, out: Outcome) -> None:
        """The node may serve again."""
        waiting, self.waiting = self.waiting, []
        for returned in waiting:
            queue = self._queues.by_name.get(returned.message.envelope.destination)
            if queue is not None and not returned.message.settled and queue.take_out(returned.message):
                self._queues.put_back(queue, [returned], out)
                self._queues.forget_if_idle(queue)
