"""The login of one AMQP connection: from the protocol header to `connection.open-ok`, or to why not (4.2.2, 2.2.4)."""

from collections.abc import Collection
from typing import Any, Final, Protocol

from qmq import __version__
from qmq.auth.credentials import Credentials
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.model.routing_names import vhost_name, vhost_prefix
from qmq.protocols.amqp.codec.frames import PROTOCOL_HEADER, AmqpReader, Command, method_frame
from qmq.protocols.amqp.codec.methods import Method, commands, encode_method, read_method
from qmq.protocols.amqp.codec.properties import read_table
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.names import Vhost
from qmq.protocols.amqp.gateway.replies import of_connection
from qmq.protocols.amqp.lookup import Lookup
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.client_login import ClientLogin
from qmq.sessions.clients.login import certified_names, credentials_of
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session import ClientSession

CHANNEL_MAX: Final = 2047
"""Channels of one connection, and the highest number of one, as RabbitMQ offers."""

FRAME_BYTES_MAX: Final = 128 << 10
"""As RabbitMQ offers. A body may have many frames."""

FRAME_BYTES_MIN: Final = 4096

HEARTBEAT_SECONDS: Final = 60
"""The offer; the client may want less, more, or none."""

CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "consumer_priorities": True,
    "direct_reply_to": True,
    "exchange_exchange_bindings": True,
    "per_consumer_qos": True,
    "publisher_confirms": True,
}

SPEC_QOS_PRODUCTS: Final = ("py-amqp",)
"""Libraries that take basic.qos without `global` as the specification says it, if the server is not RabbitMQ: as a
bound on the channel that counts at once. Celery needs that, because it raises the bound for tasks with an ETA."""


class HandshakeDialogue(Protocol):
    """The dialogue whose login this is (`AmqpDialogue`)."""

    def begin(self, vhost: Vhost) -> None:
        """The client is logged in, and has opened this virtual host."""

    def agree_heartbeat(self, seconds: int) -> None: ...

    def put(self, data: bytes) -> None: ...


class Handshake(ClientLogin):
    """One login. `take` gets one command after the other."""

    def __init__(
        self,
        path: LoginPath,
        lookup: Lookup,
        session: ClientSession,
        dialogue: HandshakeDialogue,
        pipe: Pipe,
        reader: AmqpReader,
        login: PendingLogin,
    ) -> None:
        super().__init__(path, session, pipe, login)
        self._lookup = lookup
        self._dialogue = dialogue
        self._reader = reader
        self._expected: type[Method] = commands.Connection.StartOk
        self.is_started = False
        self.qos_is_of_channel = False
        """See SPEC_QOS_PRODUCTS."""
        self.understands_cancel = False
        """Whether basic.cancel may be sent to the client."""
        self.understands_blocked = False
        """Whether connection.blocked may be sent to the client."""
        self.frame_bytes_max = FRAME_BYTES_MIN

    def start(self) -> None:
        """The client has sent the protocol header."""
        self.is_started = True
        properties: dict[str, Any] = {
            "product": "QMQ",
            "version": __version__,
            "platform": "Python",
            "capabilities": dict(CAPABILITIES),
        }
        # PLAIN first: some clients take the first that they know.
        mechanisms = "PLAIN AMQPLAIN EXTERNAL" if self._certified() else "PLAIN AMQPLAIN"
        self._send(commands.Connection.Start(0, 9, properties, mechanisms, "en_US"))

    def refuse_version(self) -> None:
        """Another protocol: the answer is the header of the one that is spoken (4.2.2)."""
        self._dialogue.put(PROTOCOL_HEADER)
        self._session.finish()

    async def take(self, command: Command) -> None:
        """One step. A refusal is answered, and the session finishes."""
        try:
            method = read_method(command)
            if isinstance(method, commands.Connection.Close):
                self._send(commands.Connection.CloseOk())
                self._session.finish()
                return
            if not isinstance(method, self._expected) or command.channel:
                raise AmqpRefusal(ReplyCode.COMMAND_INVALID, f"{self._expected.name} is due, not {method.name}")
            if isinstance(method, commands.Connection.StartOk):
                await self._log_in(method)
            elif isinstance(method, commands.Connection.TuneOk):
                self._tune(method)
            elif isinstance(method, commands.Connection.Open):
                await self._open(method)
        except (AmqpRefusal, Refused) as refusal:
            self.refuse(refusal, (command.class_id, command.method_id))

    def refuse(self, error: AmqpRefusal | Refused, cause: tuple[int, int] = (0, 0), login: str | None = None) -> None:
        """Send connection.close; the session finishes."""
        self._path.refused(self._pipe.peer_address, error, login)
        refusal = of_connection(error)
        self._send(commands.Connection.Close(int(refusal.reply), refusal.text, cause[0], cause[1]))
        self._session.finish()

    def _send(self, method: Method) -> None:
        self._dialogue.put(method_frame(0, encode_method(method)))

    # Steps

    async def _log_in(self, start_ok: Any) -> None:
        session = self._session
        client = start_ok.client_properties or {}
        self.qos_is_of_channel = client.get("product") in SPEC_QOS_PRODUCTS
        session.dialogue.note_product(client.get("product"), client.get("version"))
        capabilities = client.get("capabilities")
        if isinstance(capabilities, dict):
            self.understands_cancel = bool(capabilities.get("consumer_cancel_notify"))
            self.understands_blocked = bool(capabilities.get("connection.blocked"))
        credentials = self._credentials(str(start_ok.mechanism), start_ok.response)
        self._login.is_silent = False
        certified = self._certified() if start_ok.mechanism == "EXTERNAL" else ()
        try:
            await self._admit(credentials, certified)
        except Refused as refused:
            if not session.finishing:
                self.refuse(refused, (10, 11), credentials.login)
            return
        if session.finishing:
            return
        self._path.audit(session)
        self._expected = commands.Connection.TuneOk
        self._send(commands.Connection.Tune(CHANNEL_MAX, FRAME_BYTES_MAX, HEARTBEAT_SECONDS))

    def _tune(self, method: Any) -> None:
        frame_bytes = method.frame_max or FRAME_BYTES_MAX
        if not FRAME_BYTES_MIN <= frame_bytes <= FRAME_BYTES_MAX:
            raise AmqpRefusal(
                ReplyCode.NOT_ALLOWED, f"frame_max is {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}, not {frame_bytes}"
            )
        channels = method.channel_max or CHANNEL_MAX
        if channels > CHANNEL_MAX:
            raise AmqpRefusal(ReplyCode.NOT_ALLOWED, f"channel_max is at most {CHANNEL_MAX}, not {channels}")
        self.frame_bytes_max = self._reader.frame_bytes_max = frame_bytes
        self._reader.channel_max = channels
        self._dialogue.agree_heartbeat(method.heartbeat)
        self._expected = commands.Connection.Open

    async def _open(self, method: Any) -> None:
        name = vhost_name(method.virtual_host)
        exists = await self._lookup.vhost_exists(name)
        if self._session.finishing:
            return
        if not exists:
            raise AmqpRefusal(
                ReplyCode.NOT_ALLOWED, f"there is no virtual host {method.virtual_host!r}: declare it first"
            )
        self._path.access.check_admitted(self._session)
        self.is_done = True
        self.decided()
        self._dialogue.begin(Vhost(name, vhost_prefix(name)))
        self._send(commands.Connection.OpenOk())
        self._watch_token()

    async def renew(self, secret: object) -> None:
        """The client has a newer token of the same principal (connection.update-secret).

        Raises AmqpRefusal and Refused.
        """
        path, session = self._path, self._session
        session.waits_for_slot = True  # Meanwhile it is not read.
        try:
            grant = await path.logins.check(
                self._of_login(None, "", _text(secret)), session.listener, session.until_left, instead_of=session.user
            )
        finally:
            session.waits_for_slot = False
        if grant is None:
            return  # This listener serves all clients without login.
        path.logins.leave(grant.principal.name)  # This connection is counted already.
        if grant.principal != session.principal:
            raise AmqpRefusal(
                ReplyCode.ACCESS_REFUSED, "the new secret is of another user or other groups: connect with it instead"
            )
        self._expires_at(grant.expires_us)
        self._watch_token()

    # Credentials

    def _credentials(self, mechanism: str, response: object) -> Credentials:
        """Raises AmqpRefusal for a mechanism that is not offered, and for a response that has no login."""
        login: str | None = None
        passcode = ""
        data = _bytes(response)
        if mechanism == "PLAIN":
            parts = data.split(b"\0")
            if len(parts) != 3:
                raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, "the response of PLAIN is NUL, login, NUL, password")
            login, passcode = _decoded(parts[1]), _decoded(parts[2])
        elif mechanism == "AMQPLAIN":
            table = _table_of(data)
            login, passcode = str(table.get("LOGIN", "")), str(table.get("PASSWORD", ""))
        elif mechanism != "EXTERNAL" or not self._certified():
            raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, f"the mechanism {mechanism!r} is not offered")
        # A login without a name is a token, as with RabbitMQ's OAuth 2.
        token = passcode if login == "" else None
        return self._of_login(login or None, "" if token is not None else passcode, token)

    def _of_login(self, login: str | None, passcode: str, token: str | None) -> Credentials:
        return credentials_of(self._pipe, self._lookup.node, login, passcode, token)

    def _certified(self) -> Collection[str]:
        return certified_names(self._pipe, self._session.listener)

    # Ends

    def leave(self) -> None:
        super().leave()
        del self._dialogue


def _bytes(value: object) -> bytes:
    """A long string, which pamqp reads as text if it is some."""
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]


def _text(value: object) -> str:
    return _decoded(_bytes(value or b""))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, "a login and its password are UTF-8") from None


def _table_of(data: bytes) -> dict[str, Any]:
    """A table without its length. Raises AmqpRefusal."""
    return read_table(len(data).to_bytes(4, "big") + data)
