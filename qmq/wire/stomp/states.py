"""The commands that each side may send in each state: the table first, then the object that applies it.

The codec of a server reads the frames of clients, and the codec of a client those of servers. A command that is absent
from the row of the current state is refused, and after a refusal nothing has changed. BROKEN is entered by
`Connection` alone, after the first error, and has no next state.

Surprising: ERROR leaves a client in OPEN. The specification's server closes after it, but QMQ keeps a connection open
when its client asked for that (`on-error:keep-open`). Before CONNECTED it always means the end.
"""

from collections.abc import Mapping
from enum import Enum

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.head import Head
from qmq.wire.stomp.refusals import unknown_command
from qmq.wire.stomp.version import Version, negotiate_version, version_of_connected


class Role(Enum):
    """Which side of the connection this codec is."""

    SERVER = "server"
    CLIENT = "client"


class State(Enum):
    EXPECT_CONNECT = "expect connect"
    """A server waits for CONNECT or STOMP, a client for CONNECTED."""
    OPEN = "open"
    CLOSING = "closing"
    """The other side sent its last frame (DISCONNECT, or the ERROR that refuses a login)."""
    BROKEN = "broken"
    """The other side broke a rule; nothing is read any more."""


NEXT_STATE: Mapping[Role, Mapping[State, Mapping[str, State]]] = {
    Role.SERVER: {
        State.EXPECT_CONNECT: {"CONNECT": State.OPEN, "STOMP": State.OPEN},
        State.OPEN: {
            "SEND": State.OPEN,
            "SUBSCRIBE": State.OPEN,
            "UNSUBSCRIBE": State.OPEN,
            "ACK": State.OPEN,
            "NACK": State.OPEN,
            "BEGIN": State.OPEN,
            "COMMIT": State.OPEN,
            "ABORT": State.OPEN,
            "DISCONNECT": State.CLOSING,
        },
        State.CLOSING: {},
        State.BROKEN: {},
    },
    Role.CLIENT: {
        State.EXPECT_CONNECT: {"CONNECTED": State.OPEN, "ERROR": State.CLOSING},
        State.OPEN: {"MESSAGE": State.OPEN, "RECEIPT": State.OPEN, "ERROR": State.OPEN},
        State.CLOSING: {},
        State.BROKEN: {},
    },
}

COMMANDS: Mapping[Role, frozenset[str]] = {
    role: frozenset(command for row in table.values() for command in row) for role, table in NEXT_STATE.items()
}
"""Every command that a codec of this role can be sent."""


class Dialogue:
    """The state and version of one connection. Changes only by frames that the table allows."""

    __slots__ = ("_row", "_table", "role", "state", "version")

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = State.EXPECT_CONNECT
        self.version = Version.V10
        self._table = NEXT_STATE[role]
        # The table's row of the current state, so that a frame need not look it up.
        self._row = self._table[self.state]

    def check(self, command: str) -> None:
        """Raise RemoteProtocolError unless `command` may come now. Changes nothing."""
        if command not in self._row:
            raise self._refusal(command)

    def advance(self, head: Head) -> bool:
        """Take a complete frame, already checked, into account. Returns whether the state is another one now.

        CONNECT and CONNECTED settle the version. Raises RemoteProtocolError when the versions do not meet; nothing
        has changed then.
        """
        following = self._row[head.command]
        if following is self.state:
            return False
        if following is State.OPEN:
            if self.role is Role.SERVER:
                self.version = negotiate_version(head.headers.get("accept-version"))
            else:
                self.version = version_of_connected(head.headers.get("version"))
        self._enter(following)
        return True

    def break_off(self) -> None:
        """The other side broke a rule: no command is allowed any more."""
        self._enter(State.BROKEN)

    def _enter(self, state: State) -> None:
        self.state = state
        self._row = self._table[state]

    def _refusal(self, command: str) -> RemoteProtocolError:
        if command not in COMMANDS[self.role]:
            return unknown_command(command.encode(), COMMANDS[self.role])
        if self.state is State.EXPECT_CONNECT:
            first = " or ".join(sorted(c for c, state in self._row.items() if state is State.OPEN))
            return RemoteProtocolError("not-connected", f"{command} before {first}", f"The first frame is {first}.")
        if self.state is State.OPEN:
            return RemoteProtocolError(
                "already-connected", f"second {command}", "A connection is opened once and keeps its user and version."
            )
        if self.role is Role.SERVER:
            return RemoteProtocolError(
                "after-disconnect", f"{command} after DISCONNECT", "DISCONNECT is the last frame of a connection."
            )
        return RemoteProtocolError("after-error", f"{command} after ERROR", "A refused login ends the connection.")
