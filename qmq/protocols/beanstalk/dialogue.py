"""A session that speaks the beanstalkd protocol: commands one after the other, and their replies in that order.

There is no login. The client acts as the user that its listener names, or, where the node has no users, without a name.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from qmq.access.rules import Principal
from qmq.admin.bulk_jobs import run_bulk_job
from qmq.admin.protocol_parts import ProtocolParts
from qmq.auth.credentials import USERS, Grant
from qmq.engine.runtime.contexts import Configured
from qmq.engine.runtime.waker import Waker
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.protocols.beanstalk.codec.commands import BeanstalkCommand, WrongCommand
from qmq.protocols.beanstalk.codec.reader import BeanstalkReader
from qmq.protocols.beanstalk.commands import BeanstalkCommands, BeanstalkParts
from qmq.protocols.beanstalk.gateway.encoder import BeanstalkEncoder, OrderedReplies, refusal_reply
from qmq.protocols.beanstalk.job_changes import JobChanges
from qmq.protocols.beanstalk.jobs import JobFinder
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from qmq.protocols.beanstalk.part import BeanstalkPart
from qmq.protocols.beanstalk.statistics import JobStatistics
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.pull_consumer import PullOf, pull_consumers

REPLIES_MAX: Final = 1000
"""That a client waits for: more of its commands are decided when they have become fewer."""


class BeanstalkDialogue(ClientDialogue):
    answers_each = True
    awaits_frame = False

    def __init__(
        self,
        node: Configured,
        path: LoginPath,
        commands_of: Callable[..., BeanstalkCommands],
        pull_of: PullOf,
        session: ClientSession,
        pipe: Pipe,
        login: PendingLogin,
    ) -> None:
        """`commands_of` makes the commands of a session that has begun."""
        self._node = node
        self._path = path
        self._commands_of = commands_of
        self._session = session
        self._pipe = pipe
        self._login = login
        assert isinstance(session.listener, BeanstalkListenerSettings), "the Unix socket speaks STOMP"
        self._listener = session.listener
        self._reader = BeanstalkReader(min(self._listener.job_bytes_max, node.settings.limits.body_bytes_max))
        self._received: list[BeanstalkCommand | WrongCommand] = []
        self._sent = Waker()
        self._replies = OrderedReplies(self._put)
        self._pull = pull_of(session.id)
        self._encoder = BeanstalkEncoder(self._replies, self._pull.delivered)
        session.encoder = self._encoder
        self._commands: BeanstalkCommands | None = None
        """None before the session has begun, and after its end."""

    @property
    def unfinished_bytes(self) -> int:
        return self._reader.unfinished_bytes

    def _put(self, data: bytes) -> None:
        """The caller flushes: a delivery at its end, `respond` before it waits and at its end."""
        self._session.outbox.put_answer(data)
        self._sent.wake()

    # The beginning

    def start(self) -> None:
        path, session = self._path, self._session
        self._login.is_silent = False
        try:
            path.admission.check_open()
            self._log_in()
        except Refused as refused:
            path.refused(self._pipe.peer_address, refused)
            self._put(refusal_reply(refused))
            session.finish()
            return
        path.admission.decided(self._login)
        session.begin()
        rights = path.rights_of(session)
        self._commands = self._commands_of(
            session, rights, self._encoder, self._replies, self._pull, self._reader.job_bytes_max
        )

    def _log_in(self) -> None:
        """The user of the listener is the client's. Raises Refused."""
        logins, session, user = self._path.logins, self._session, self._listener.user
        if user is None:
            if not logins.serves_anonymous(self._listener):
                raise Refused("login-required", "This listener names no user, and the node has users.")
            return
        if not logins.is_user(user):
            raise Refused("login-failed", f"The user {user} of this listener does not exist.")
        session.grant = logins.admit(Grant(Principal(user), USERS, proof=logins.proof_of(user)))
        self._path.audit(session)

    # Commands

    def receive(self, data: bytes) -> None:
        self._received += self._reader.receive(data)
        if self._received:
            self.awaits_frame = False

    async def respond(self) -> None:
        received, self._received = self._received, []
        commands = self._commands
        if commands is None:
            return
        for command in received:
            if commands.is_over:
                return
            if isinstance(command, WrongCommand):
                self._replies.reply(command.reply)
                if command.is_last:
                    await commands.flush()
                    self._session.end_in_order()
                continue
            await self._room(commands)
            await commands.obey(command)
        if not commands.is_over:
            await commands.flush()
            self._session.outbox.flush()
            await self._session.pay()

    async def _room(self, commands: BeanstalkCommands) -> None:
        """Wait while the client has too many replies to come, or does not read those that have."""
        session = self._session
        while self._replies.count >= REPLIES_MAX and not commands.is_over:
            await commands.flush()
            session.outbox.flush()
            self._sent.clear()
            if self._replies.count >= REPLIES_MAX:
                await self._sent.wait()
        if not commands.is_over and session.outbox.size > self._node.settings.limits.outbox_bytes_max // 4:
            await commands.flush()
            session.outbox.flush()
            session.waits_for_slot = True
            await session.outbox.drained()
            session.waits_for_slot = False

    # The other parts of `ClientDialogue`

    def note_stop(self) -> None:
        self.awaits_frame = self._reader.is_amid_command

    def release(self) -> None:
        self._reader.forget()

    def finish(self) -> None:
        self._path.admission.decided(self._login)
        self._sent.wake()
        if self._commands is not None:
            self._commands.finish()

    def stop(self) -> None:
        if self._commands is not None:
            self._commands.stop()

    def leave(self) -> None:
        self._path.leave(self._login, self._session.user)
        if self._commands is not None:
            self._commands.leave()
            self._commands = None
        del self._session


def protocol(of_node: ProtocolParts) -> ClientProtocol:
    """beanstalkd on one node."""
    node, engine, mesh, rpc, admin = of_node.node, of_node.engine, of_node.mesh, of_node.rpc, of_node.admin
    settings, path, loops = of_node.settings, of_node.sessions.login_path, of_node.sessions.loops
    jobs = JobFinder(engine, rpc)
    changes = JobChanges(engine, mesh, rpc, jobs, partial(run_bulk_job, engine, settings.definitions), node.spawn)
    part = BeanstalkPart(jobs, changes, rpc)
    statistics = JobStatistics(part, engine, rpc, admin.catalog, admin.facts.identity)
    tubes_max = node.settings.limits.subscriptions_max
    parts = BeanstalkParts(part, statistics, engine, loops, settings.rules, path.refusals, tubes_max)
    consumers = pull_consumers(engine, mesh)
    begin = partial(BeanstalkDialogue, node, path, partial(BeanstalkCommands, parts), consumers)
    return ClientProtocol("beanstalk", begin, refusal_reply, part, statistics.calls())
