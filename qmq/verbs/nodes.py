"""Verbs about nodes: connections, links and members; conditions and status; what the console shows."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from qmq.access.rights import Need
from qmq.access.rules import Action
from qmq.verbs.verb import After, Changing, Effect, Limit, Rates, Scope, Showing, Verb, option

AUDIT: Final = "/system/audit"
USERS: Final = "/control/definitions/get/user/"

User = Annotated[str, option("Only connections of this user.", metavar="NAME", audited="kicked_user")]
Address = Annotated[str, option("Only connections from this address.", metavar="IP", audited="kicked_address")]


class Connections(Showing):
    """List the connections of clients, on all nodes.

    The ID of a connection is for `qmq kick`.
    """

    form = "connections[/ID]"
    subject = "connection"

    user: User | None = None
    address: Address | None = None
    scope: Scope = "node"
    rate_seconds: Rates = 0
    limit: Limit = 1000
    after: After = ""


class Kick(Changing):
    """End connections of clients, by ID, user or address, on all nodes.

    The client gets an ERROR with the code `kicked`. What it has in flight is delivered again. It may connect again: to
    prevent that, change its user or its permissions. Exit code 1 if there is no such connection or a node is missing.
    """

    form = "kick/[ID]"
    subject = "connection"

    user: User | None = None
    address: Address | None = None
    scope: Scope = "node"
    reason: Annotated[str, option("What the client reads in its ERROR.", metavar="TEXT", audited="reason")] = (
        "no reason given"
    )
    dry_run: Annotated[bool, option("Show which connections it would be, and change nothing.")] = False


class Links(Showing):
    """List the links between the nodes, as each node sees them.

    Shows the link of NODE to PEER (OUT), the link from there (IN), how many records of NODE the peer is missing, and
    the bytes of the journal over the present links.
    """

    form = "links"
    subject = "link"

    scope: Scope = "node"
    rate_seconds: Rates = 0


class Retire(Verb):
    """Remove NODE from the mesh for good."""

    form = "retire/NODE"
    subject = "retired_node"
    changes = True

    force: Annotated[
        bool, option("Also if another node can reach it; then it stops as soon as it gets the record.")
    ] = False
    majority_lost: Annotated[
        bool, option("Too few nodes are left to decide: NODE... names all lost nodes, and none of them comes back.")
    ] = False


class Drain(Changing):
    """Let the clients of a node finish and move to other nodes, and let no others in.

    /readyz says 503. Consumers get nothing more, finish what they have in flight, and get an ERROR with the code
    `stopping`; after `limits.drain_seconds` all clients are disconnected. Then the other nodes have all its
    records. It still answers probes, metrics and commands over HTTP and its Unix socket, and consumers at other nodes
    get the messages that it has. A restart of the node ends the drain, as `qmq undrain` does. Exit code 1 if clients
    are left. NAME is the node, by default the one that --at names.
    """

    form = "drain/[NAME]"
    subject = "drained_node"

    stop: Annotated[bool, option("Stop the node when it is drained, as SIGTERM does.", audited="stop")] = False
    reason: Annotated[str, option("What clients read in their ERROR.", metavar="TEXT", audited="reason")] = ""


class Undrain(Changing):
    """Let clients in again at a node that `qmq drain` has drained.

    A drained node serves STOMP only at its Unix socket: ask another node of the mesh, or use --data on its machine.
    """

    form = "undrain/[NAME]"
    subject = "drained_node"


class Backup(Verb):
    """Begin to read a backup of this node, and list its files, or end the one with ID; see `qmq backup`."""

    form = "backup[/ID]"
    subject = "backup"
    changes = True


class BackupPiece(Verb):
    """The next bytes of a file of a backup, in base64, at most 512 KiB; none at its end."""

    form = "backup-piece/ID"
    subject = "backup"

    file: Annotated[int, option("Its number in the list.", of=" of a file", ge=0, le=10**9)] = 0
    offset: Annotated[int, option("Of the first byte.", of=" of bytes", ge=0, le=10**12)] = 0


class Status(Showing):
    """Show the status of a node."""

    form = "status"

    scope: Scope = "node"
    rate_seconds: Rates = 0
    about: Annotated[str, option("A fanout whose position a client without the right may see.")] = ""


class ListConditions(Showing):
    """Show the present conditions of all nodes, the most severe first.

    Shows each with its node, when it began, and what to do about it; with --past the latest first. Exit code 1 if a
    present one is an error or critical, or if a node did not answer.
    """

    form = "conditions[/past]"

    scope: Annotated[
        Literal["node", "mesh"], option("Ask only the node that answers, not the whole mesh.", word="one-node")
    ] = "node"
    limit: Limit = 100
    after: After = ""


class ShowOverview(Showing):
    """What each node says of itself."""

    form = "overview"

    scope: Scope = "node"


class ShowHistory(Showing):
    """The last hour of each node."""

    form = "history"

    scope: Scope = "node"


class ShowQueueHistory(Showing):
    """The last hour of a queue, where it was one of the deepest or was looked at."""

    form = "queue-history/queue/NAME"

    scope: Scope = "node"


class ShowAudit(Verb):
    """The last events of the audit."""

    form = "audit"

    scope: Scope = "node"

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        return [Need(Action.ADMINISTER, AUDIT)]


class ShowRights(Verb):
    """What a client may do. For oneself it needs no right, for another user that to read its definition."""

    form = "rights"

    user: Annotated[str, option("Another user.")] | None = None
    about: Annotated[str, option("A destination, or the beginning of one with *.")] = ""

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        return []


class PasswordHash(Verb):
    """The hash of a passcode, for the definition of a user. The body is `{"passcode": …}`."""

    form = "password-hash"
    takes_body = True

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        return [Need(Action.ADMINISTER, "/control/definitions/*")]
