"""One side of a STOMP connection without its socket: bytes in, frames out.

The gateway handles the frames; this class knows which command may come when, which version was
agreed, and how to decode the bytes. Bytes to send are made by `writer`, which needs no state.

Surprising: receive() never raises. What the other side did wrong is in `error`, after the frames that came before it,
because those frames were valid and must still be handled.
"""

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.cache import HeadCaches
from qmq.wire.stomp.frames import Frame
from qmq.wire.stomp.limits import DEFAULT_LIMITS, Limits
from qmq.wire.stomp.reader import Reader
from qmq.wire.stomp.states import Dialogue, Role, State
from qmq.wire.stomp.version import Version


class Connection:
    """The receiving half of a connection. `caches` is shared by the connections of a node; alone it keeps its own.

    `error` is None until the other side breaks a rule, and then stays. `error_receipt` is the receipt that the
    offending frame requested, when that much of it was readable; the ERROR frame names it as `receipt-id`.
    """

    __slots__ = ("_dialogue", "_reader", "error", "error_receipt")

    def __init__(
        self,
        role: Role,
        limits: Limits = DEFAULT_LIMITS,
        caches: HeadCaches | None = None,
        *,
        gathers: bool = False,
    ) -> None:
        """`gathers`: many frames may come as one `Acks` or `Sends` instead of a Frame each."""
        self.error: RemoteProtocolError | None = None
        self.error_receipt: str | None = None
        self._dialogue = Dialogue(role)
        self._reader = Reader(self._dialogue, limits, HeadCaches() if caches is None else caches, gathers)

    @property
    def state(self) -> State:
        return self._dialogue.state

    @property
    def version(self) -> Version:
        """1.0 until CONNECT or CONNECTED has settled it."""
        return self._dialogue.version

    @property
    def is_amid_frame(self) -> bool:
        """Whether the other side has begun a frame and not ended it."""
        return self.error is None and self._reader.is_amid_frame

    @property
    def unfinished_bytes(self) -> int:
        """Of a frame whose end has not come."""
        return self._reader.unfinished_bytes

    def forget(self) -> None:
        """Drop all buffers; nothing more is received."""
        self._reader.forget()

    def receive(self, data: bytes) -> list[Frame]:
        """Every frame that `data` completes; heart-beats between frames are consumed silently.

        When a rule is broken, the frames before it are returned, `error` is set, and every later call returns [].
        """
        frames: list[Frame] = []
        if self.error is None:
            try:
                self._reader.read(data, frames)
            except RemoteProtocolError as error:
                self.error = error
                self.error_receipt = self._reader.failed_receipt()
                self._dialogue.break_off()
                self._reader.forget()
        return frames
