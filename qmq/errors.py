"""Every error of the package, drawn once.

    QmqError
    ├── ConfigError              the operator's files: all errors at once
    ├── ProtocolError            the bytes on a connection broke a rule
    │   ├── LocalProtocolError   we did it: a bug here
    │   └── RemoteProtocolError  they did it: carries the reply to give
    │       └── HttpRefusal      of a request of HTTP, with its status (qmq.protocols.http.codec)
    ├── Refused                  a well-formed request that the broker's rules forbid: carries the reply to give
    │   └── LoginRefused         credentials that an authenticator knows, and that are wrong
    ├── AuthenticationUnavailable  an authenticator cannot decide now
    ├── StorageError             the disk, or what is on it
    │   ├── LogBroken            an append or fsync failed: the process must stop (docs/guarantees.md)
    │   ├── DiskFull             no room for new messages; settles still fit in the reserve
    │   │   └── NoDescriptor     a file cannot be opened now, because too many are open
    │   ├── CorruptLog           a bad batch with valid ones after it: damage, not a torn tail
    │   ├── FutureVersion        written by a newer format than this code reads
    │   ├── DirectoryInUse       another process holds the data directory
    │   └── NodeRetired          its mesh retired this node: its data directory is not used again
    ├── MeshError                a peer that must not be talked to: carries the condition to raise
    └── ClientError              the Python client (qmq.client) cannot do what it was asked
        ├── NotConnected         it was closed, or every node of its list refuses it: it has stopped
        │   └── TlsFailed        no node of its list can be reached by TLS, such as by a certificate that is not trusted
        ├── Stale                the message cannot be settled any more: its connection or subscription is gone
        ├── ReplyLost            the connection ended between a request and its reply
        └── Overrun              a topic subscription did not take its messages and has missed some

Things that end normally (a client leaves, a stream ends, nothing to read yet) are return values, never exceptions.
`code` is machine-readable: lower case words joined by hyphens, stable between releases, sent as `error-code`.
"""


class QmqError(Exception):
    """Root of the tree; never raised itself."""


class ConfigError(QmqError):
    """The node file or peers file has errors; `diagnostics` has one line for each, ready to print."""

    def __init__(self, diagnostics: list[str]) -> None:
        super().__init__("\n".join(diagnostics))
        self.diagnostics = diagnostics


class ProtocolError(QmqError):
    """`code` for machines, `message` for the `message` header, `detail` for the body of the ERROR frame."""

    def __init__(self, code: str, message: str, detail: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.detail = detail


class LocalProtocolError(ProtocolError):
    """This side was about to send what the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what the protocol forbids; the connection cannot go on."""


class Refused(QmqError):
    """A rule of the broker forbids it; nothing has changed. Fields as in ProtocolError."""

    def __init__(self, code: str, message: str, detail: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.detail = detail


class LoginRefused(Refused):
    """A login is refused. `why` is for the log of the node and for its audit; the client gets `message`."""

    def __init__(
        self, authenticator: str, why: str, code: str = "login-failed", message: str = "Unknown user or wrong passcode."
    ) -> None:
        super().__init__(code, message)
        self.authenticator = authenticator
        self.why = why


class AuthenticationUnavailable(QmqError):
    """An authenticator cannot decide; the text says what is wrong with it, and nothing about credentials."""


class StorageError(QmqError):
    """The disk refused, or what is on it is not what was written."""


class LogBroken(StorageError):
    """How much of the last write reached the disk is unknown; this log takes no more records until recovered."""


class Malformed(LogBroken):
    """A database file is damaged. The next opening quarantines it and begins a new one."""


class DiskFull(StorageError):
    """There is no room, or only the reserve. Nothing has changed, and it can be tried again."""


class NoDescriptor(DiskFull):
    """The system gives no file descriptor for a file to write. Nothing has changed, and it can be tried again."""


class CorruptLog(StorageError):
    """A batch is damaged and valid ones follow it, so it was not torn by a crash."""


class FutureVersion(StorageError):
    """The file or batch was written by a newer version; upgrade before opening it."""


class DirectoryInUse(StorageError):
    """Another process has the data directory open."""


class NodeRetired(StorageError):
    """The mesh retired this node; every further start from its data directory fails, too."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(
            f"node {node} was retired from its mesh ({why}): a node that joins needs another name and an empty data "
            "directory"
        )


class MeshError(QmqError):
    """A peer broke the trust of the mesh: wrong mesh id, bad proof, forged origin, bad checksum."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ClientError(QmqError):
    """Root of what only a client can meet. What a node refuses is `Refused`, here as everywhere."""


class NotConnected(ClientError):
    """The client does nothing any more; what it had not finished has an unknown outcome."""


class TlsFailed(NotConnected):
    """TLS with a node cannot work: its certificate is not trusted, has another name, or only one side speaks TLS."""


class Stale(ClientError):
    """An ACK or NACK comes too late: the message is delivered again, or its settling had reached the node after all."""


class ReplyLost(ClientError):
    """A node took the request, and the connection to which the reply would have come ended: whether it was obeyed is
    unknown."""


class Overrun(ClientError):
    """More topic messages came than the subscription's buffer holds; those beyond it are missed."""
