"""Heartbeats of one client in both directions (STOMP 1.2, "Heart-beating"): one to send, silence to notice."""

import logging

import trio

from qmq.config import LimitSettings
from qmq.engine.runtime.heartbeats import SECOND_POLL_SECONDS, Check, Heartbeats
from qmq.sessions.clients.session import ClientSession
from qmq.wire.stomp import HEARTBEAT, negotiate_heartbeat

log = logging.getLogger("qmq.session")


class ClientHeartbeats:
    """Before `start`, this watches only the time of the login."""

    __slots__ = (
        "_beats",
        "_deadline",
        "_doubted_at",
        "_heartbeat",
        "_heartbeat_seconds",
        "_sent_at",
        "_session",
        "_silence_seconds",
        "received_at",
    )

    def __init__(self, beats: Heartbeats, session: ClientSession, heartbeat: bytes = HEARTBEAT) -> None:
        self._beats = beats
        self._heartbeat = heartbeat
        self._session = session
        self._deadline = -1
        self.received_at = self._sent_at = trio.current_time()
        """When the client's last bytes were read."""
        self._doubted_at = 0.0
        self._silence_seconds = 0.0
        self._heartbeat_seconds = 0.0

    def watch_login(self, seconds: float, check: Check) -> None:
        """Call `check` when the login has had so many seconds."""
        self._deadline = self._beats.watch(trio.current_time() + seconds, check)

    def agree(self, client: tuple[int, int], limits: LimitSettings) -> tuple[int, int]:
        """Choose the intervals; returns the node's `heart-beat`, given the client's."""
        floor = limits.heartbeat_floor_ms
        offer = (max(client[1], floor) if client[1] else 0, max(client[0], floor) if client[0] else 0)
        hear_ms, send_ms = negotiate_heartbeat(client, offer)
        self.set_seconds(send_ms / 1000, hear_ms / 1000 * limits.heartbeat_grace)
        return offer

    def set_seconds(self, heartbeat: float, silence: float) -> None:
        """Send a heartbeat after so long, and end a connection that is silent for so long. 0 for never."""
        self._heartbeat_seconds = heartbeat
        self._silence_seconds = silence

    def start(self) -> None:
        """CONNECTED is sent: from now on heartbeats are due."""
        self._sent_at = trio.current_time()
        self.stop()
        if self._heartbeat_seconds or self._silence_seconds:
            self._deadline = self._beats.watch(self._next(), self._check)

    def stop(self) -> None:
        """Check nothing more."""
        self._beats.forget(self._deadline)

    def _next(self) -> float:
        times = []
        if self._heartbeat_seconds:
            times.append(self._sent_at + self._heartbeat_seconds)
        if self._silence_seconds:
            times.append(self.received_at + self._silence_seconds)
        return min(times)

    def _check(self, now: float) -> float | None:
        session = self._session
        if session.finishing:
            return None
        if session.waits_for_slot or session.is_responding:
            # The silence is ours: this node does not read.
            self.received_at = now
        if self._silence_seconds and now >= self.received_at + self._silence_seconds:
            # Perhaps this whole process was stopped, and the client's bytes wait to be read.
            if self._doubted_at <= self.received_at:
                self._doubted_at = now
            if now < self._doubted_at + SECOND_POLL_SECONDS:
                return self._doubted_at + SECOND_POLL_SECONDS
            log.info("! %s %s: silent for %.1f s", session.id, session.peer_address, now - self.received_at)
            session.finish()
            return None
        if self._heartbeat_seconds and now >= self._sent_at + self._heartbeat_seconds:
            # If bytes are on their way, no heartbeat is needed.
            if session.outbox.is_idle:
                session.outbox.put_answer(self._heartbeat)
                session.outbox.flush()
            self._sent_at = now
        return self._next()
