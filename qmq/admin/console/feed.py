"""The overview of the mesh, for all tabs of the console: one question every POLL_SECONDS, however many tabs are open.

The task runs only while a tab follows. A tab that has not read the last answer is left out until it has. A tab whose
client may not observe any more ends.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

import trio

from qmq.admin.console.requests import OVERVIEW, ConsoleRequests
from qmq.engine.runtime.contexts import Tasks
from qmq.errors import Refused
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.session import ClientSession
from qmq.verbs.table import needs_of

POLL_SECONDS: Final = 2.0


class OverviewFeed:
    """Sends the overview to the sessions that have joined."""

    def __init__(
        self, tasks: Tasks, console: ConsoleRequests, sessions: Mapping[int, ClientSession], access: Access
    ) -> None:
        self._tasks = tasks
        self._console = console
        self._sessions = sessions
        self._access = access
        self._tabs: dict[int, Callable[[], bool]] = {}
        self._last = b""
        self._is_running = False

    def join(self, session: ClientSession, is_valid: Callable[[], bool]) -> bytes:
        """Send events to this session until it ends, or `is_valid` is false; returns the first bytes of the stream."""
        self._tabs[session.id] = is_valid
        if not self._is_running:
            self._is_running = True
            self._last = b""
            self._tasks.spawn(self._run)
        return self._last

    async def _run(self) -> None:
        try:
            while self._tabs:
                facts = await self._console.overview()
                self._last = b"event: overview\ndata: %b\n\n" % json.dumps(facts, separators=(",", ":")).encode()
                self._send(self._last)
                await trio.sleep(POLL_SECONDS)
        finally:
            self._is_running = False

    def _send(self, data: bytes) -> None:
        for id, is_valid in list(self._tabs.items()):
            session = self._sessions.get(id)
            if session is None or session.finishing:
                del self._tabs[id]
                continue
            try:
                self._access.rights_of(session.principal).check_needs(needs_of(OVERVIEW))
                if not is_valid():
                    raise Refused("login-required", "This login has ended.")
            except Refused as refused:
                del self._tabs[id]
                session.dismiss(refused)
                continue
            if not session.outbox.size:
                session.outbox.put_answer(data)
                session.outbox.flush()
