"""Questions of publishers to the mesh, whether a queue exists: one at a time for each queue.

A publish that comes after a queue was declared on any node must find it. So a "no" counts only for publishes that came
before its question began; those that come meanwhile wait, and are all answered by the next one. A "yes" counts for all.
Nothing is remembered after that: no clock and no record of a peer could say for how long a "no" is true.
"""

from collections.abc import Awaitable, Callable

import trio

Ask = Callable[[str], Awaitable[bool]]


class _Question:
    """One that is under way. `answer` is None until it is over, and if it was cancelled."""

    __slots__ = ("answer", "is_over")

    def __init__(self) -> None:
        self.answer: bool | None = None
        self.is_over = trio.Event()


class QueueQuestions:
    """Those of one node."""

    def __init__(self) -> None:
        self._asked: dict[str, _Question] = {}

    async def exists(self, queue: str, ask: Ask) -> bool:
        """Whether the queue exists now. `ask` asks the mesh; it is not called if another publisher does so."""
        before = self._asked.get(queue)
        while True:
            question = self._asked.get(queue)
            if question is None:
                return await self._ask(queue, ask)
            await question.is_over.wait()
            if question.answer or (question is not before and question.answer is not None):
                return question.answer

    async def _ask(self, queue: str, ask: Ask) -> bool:
        question = self._asked[queue] = _Question()
        try:
            question.answer = await ask(queue)
            return question.answer
        finally:
            del self._asked[queue]
            question.is_over.set()
