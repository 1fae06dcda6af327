"""What each side may say when: the table first, then the object that walks it.

The codec of a server reads what clients say, and the codec of a client what servers say. A command that is absent
from the row of the current state is refused, and after a refusal nothing has changed. BROKEN is entered by
`Connection` alone, after the first error, and has no way out.

Surprising: ERROR leaves a client in OPEN. The specification's server closes after it, but QMQ keeps a connection open
when its client asked for that (`on-error:keep-open`). Before CONNECTED it always means the end.
"""

from collections.abc import Mapping
from enum import Enum

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.head import Head
from qmq.wire.stomp.refusals import shown
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
    """The other side said its last word (DISCONNECT, or the ERROR that refuses a login)."""
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
    """Where one connection stands: state and version. Moves only by frames that the table allows."""

    __slots__ = ("_commands", "_table", "role", "state", "version")

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = State.EXPECT_CONNECT
        self.version = Version.V10
        self._table = NEXT_STATE[role]
        self._commands = COMMANDS[role]

    def check(self, command: str) -> None:
        """Raise RemoteProtocolError unless `command` may come now. Changes nothing."""
        if command not in self._table[self.state]:
            raise self._refusal(command)

    def advance(self, head: Head) -> None:
        """Take a complete frame into account; after CONNECT or CONNECTED the version is settled.

        Raises RemoteProtocolError when the versions do not meet; nothing has changed then.
        """
        following = self._table[self.state][head.command]
        if self.state is State.EXPECT_CONNECT and following is State.OPEN:
            if self.role is Role.SERVER:
                self.version = negotiate_version(head.headers.get("accept-version"))
            else:
                self.version = version_of_connected(head.headers.get("version"))
        self.state = following

    def _refusal(self, command: str) -> RemoteProtocolError:
        if command not in self._commands:
            return unknown_command(command, self.role)
        if self.state is State.EXPECT_CONNECT:
            first = " or ".join(sorted(c for c, state in self._table[self.state].items() if state is State.OPEN))
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


def unknown_command(command: str, role: Role) -> RemoteProtocolError:
    return RemoteProtocolError(
        "unknown-command",
        f"unknown command {shown(command)}",
        "A frame starts with one of " + ", ".join(sorted(COMMANDS[role])) + ".",
    )
