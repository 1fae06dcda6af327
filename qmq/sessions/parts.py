"""The parts of the sessions room, for rooms above it: one value."""

from dataclasses import dataclass

from qmq.sessions.clients.draining import Draining
from qmq.sessions.clients.listeners import ClientListeners
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session_host import SessionHost
from qmq.sessions.clients.subscriber_buffers import SubscriberBuffers
from qmq.sessions.delivery.browsing import Browsing
from qmq.sessions.delivery.effect_dispatcher import Dispatcher
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.sessions.delivery.journal_reads import JournalReads
from qmq.sessions.frame_loop import FrameLoops


@dataclass(frozen=True, slots=True)
class SessionParts:
    """Clients of every protocol: how they come in, what decides for them, and what delivers to them."""

    login_path: LoginPath
    host: SessionHost
    listeners: ClientListeners
    draining: Draining
    loops: FrameLoops
    buffers: SubscriberBuffers
    fanout_subscribers: FanoutSubscribers
    journal_reads: JournalReads
    browsing: Browsing
    dispatcher: Dispatcher
