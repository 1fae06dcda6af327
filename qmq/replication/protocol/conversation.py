"""One side of a link without its socket: bytes in, mesh frames out.

The table comes first. It lists, per side and state, which frame may come and the next state. An absent frame is refused
with one MeshError, and nothing is read after it. The codec handles STOMP, the handshake checks identities, and
`serving_side` and `pulling_side` decide how a mesh frame changes the node.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from qmq.errors import MeshError
from qmq.replication.protocol.frame_table import FROM_PULLING_SIDE, FROM_SERVING_SIDE, JOURNAL, decode
from qmq.replication.protocol.frames import Batches, MeshFrame
from qmq.replication.protocol.handshake import Answering, Dialling, Partner
from qmq.replication.protocol.values import Sender
from qmq.storage.format.batch import BATCH_BYTES_MAX
from qmq.wire.stomp.connection import Connection
from qmq.wire.stomp.frames import Frame
from qmq.wire.stomp.limits import BODY_BYTES_CEILING, Limits
from qmq.wire.stomp.states import Role


class LinkSide(Enum):
    """Which half of a link this is."""

    FOLLOWER = "follower"
    SERVER = "server"


class LinkState(Enum):
    """The state of a link."""

    CONNECTING = "connecting"
    """The other side has not named itself."""
    PROVING = "proving"
    """It has named itself; its proof for this conversation (server) or its Welcome (follower) comes next."""
    OPEN = "open"
    ENDED = "ended"
    """A rule was broken, or the other side sent its last frame."""


# The frames of each state, and the next state. Absent means refused.
NEXT_STATE: Final[Mapping[LinkSide, Mapping[LinkState, Mapping[str, LinkState]]]] = {
    LinkSide.SERVER: {
        LinkState.CONNECTING: {"CONNECT": LinkState.PROVING, "STOMP": LinkState.PROVING},
        LinkState.PROVING: {"SUBSCRIBE": LinkState.OPEN},
        LinkState.OPEN: {
            **dict.fromkeys(FROM_PULLING_SIDE, LinkState.OPEN),
            "DISCONNECT": LinkState.ENDED,
        },
        LinkState.ENDED: {},
    },
    LinkSide.FOLLOWER: {
        LinkState.CONNECTING: {"CONNECTED": LinkState.PROVING, "ERROR": LinkState.ENDED},
        LinkState.PROVING: {"/mesh/welcome": LinkState.OPEN, "ERROR": LinkState.ENDED},
        LinkState.OPEN: {
            **{name: LinkState.OPEN for name in FROM_SERVING_SIDE if name != "/mesh/welcome"},
            JOURNAL: LinkState.OPEN,
            "ERROR": LinkState.ENDED,
        },
        LinkState.ENDED: {},
    },
}

LIMITS: Final = Limits(body_bytes_max=BODY_BYTES_CEILING)
"""A frame holds a batch (at most `BATCH_BYTES_MAX`) or messages (one, or about a quarter of a MiB)."""

assert BATCH_BYTES_MAX <= LIMITS.body_bytes_max

UNPROVEN_BYTES_MAX: Final = 16 << 10
"""All that may arrive before the frame that opens the link was complete; the codec bounds CONNECT by 8 KiB alone."""


class Conversation:
    """Both sides use this; `handshake` decides which side this is.

    `error` is None until the other side breaks a rule, and then stays. `reply` collects what the handshake
    sends; the caller takes it after every `receive`.
    """

    def __init__(self, handshake: Dialling | Answering) -> None:
        self._handshake = handshake
        self._side = LinkSide.FOLLOWER if isinstance(handshake, Dialling) else LinkSide.SERVER
        self._codec = Connection(Role.CLIENT if self._side is LinkSide.FOLLOWER else Role.SERVER, LIMITS)
        self._table = NEXT_STATE[self._side]
        self._unproven_bytes = 0
        self._sender: Sender | None = None
        self._journal_frames = 0
        self.state = LinkState.CONNECTING
        self.partner: Partner | None = None
        """The identity that the other side claims; a server must not rely on it before `is_proven`."""
        self.is_proven = False
        """The other side has given all proofs of its identity."""
        self.turned = ""
        """The node that dialled this connection to be the serving side on it; it continues with the roles reversed."""
        self.error: MeshError | None = None
        self.reply = b""

    def receive(self, data: bytes) -> list[MeshFrame]:
        """The mesh frames that `data` completes. When a rule is broken, those before it, and `error` is set."""
        frames: list[MeshFrame] = []
        if self.error is not None or self.state is LinkState.ENDED:
            return frames
        try:
            for frame in self._codec.receive(data):
                self._take(frame, frames)
            broken = self._codec.error
            if broken is not None:
                raise MeshError(broken.code, broken.message)
            if not self.is_proven:
                self._unproven_bytes += len(data)
                if self._unproven_bytes > UNPROVEN_BYTES_MAX:
                    raise MeshError("login-too-large", f"over {UNPROVEN_BYTES_MAX} bytes before the link was open")
        except MeshError as error:
            self.error = error
            self.state = LinkState.ENDED
        return frames

    def _take(self, frame: Frame, frames: list[MeshFrame]) -> None:
        command = frame.head.command
        what = command
        if command in ("SEND", "MESSAGE"):
            what = frame.head.headers.get("destination", "")
        following = self._table[self.state].get(what)
        if following is None:
            raise MeshError("bad-frame", f"{ascii(what[:40])} is not allowed while a link is {self.state.value}")
        if command == "ERROR":
            raise refused_by_peer(frame)
        if command in ("SEND", "MESSAGE"):
            frames.append(self._decode(what, frame))
        else:
            self._handshake_step(command, frame)
        self.state = LinkState.ENDED if self.turned else following

    def _handshake_step(self, command: str, frame: Frame) -> None:
        handshake = self._handshake
        if isinstance(handshake, Dialling):
            self.partner, answer = handshake.connected(frame)
            self.is_proven = True
            self.reply += answer
        elif command == "SUBSCRIBE":
            handshake.subscribe(frame)
            self.is_proven = True
        elif command != "DISCONNECT":
            self.turned = handshake.turned(frame)
            if self.turned:
                return
            self.partner, answer = handshake.connect(frame)
            self.reply += answer
        if self.partner is not None and self._sender is None:
            self._sender = Sender(self.partner.origin.node)

    def _decode(self, destination: str, frame: Frame) -> MeshFrame:
        assert self._sender is not None  # the table lets no mesh frame in before the handshake
        if destination == JOURNAL:
            self._journal_frames += 1
            return Batches(self._journal_frames, frame.body)
        table = FROM_SERVING_SIDE if self._side is LinkSide.FOLLOWER else FROM_PULLING_SIDE
        return decode(table, destination, frame.body, self._sender)


REFUSED: Final = "refused-"
"""Before the code of an ERROR that the other side sent: both nodes report it."""


def refused_by_peer(frame: Frame) -> MeshError:
    """An ERROR frame of the serving node as an error of this side."""
    headers = frame.head.headers
    code = headers.get("error-code", "error")
    if not code.replace("-", "").isalnum() or not code.isascii() or len(code) > 40:
        code = "error"
    return MeshError(f"{REFUSED}{code}", f"the peer says: {ascii(headers.get('message', '')[:200])}")
