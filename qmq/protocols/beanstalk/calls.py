"""What a node asks of its peers about jobs of beanstalkd clients, and about tubes.

A change of jobs has an id, by which a node knows what it has done already (`qmq.mesh.peers.once`).
"""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from qmq.admin.inspection.message_search import parse_message_id
from qmq.mesh.peers.calls import Count, PeerCall, R, Text, Whole
from qmq.protocols.beanstalk.listener import REQUEST

StateName = Annotated[str, Meta(pattern=r"^(ready|reserved|delayed|buried)\Z")]
KickedName = Annotated[str, Meta(pattern=r"^(delayed|buried)\Z")]


class BeanstalkCall(PeerCall[R], frozen=True, tag_field="do"):
    kind: ClassVar = REQUEST


class JobFacts(Struct, frozen=True):
    """A job: its message, its state, and how long it stays so. `body` None: too long for a reply."""

    found: bool
    dot: Text = ""
    queue: Text = ""
    headers: bytes = b""
    body: bytes | None = None
    at_us: Count = 0
    attempts: Whole = 0
    state: StateName = "ready"
    left_us: Count = 0

    def __post_init__(self) -> None:
        if self.found:
            parse_message_id(self.dot)


class FindJob(BeanstalkCall[JobFacts], frozen=True, tag="find"):
    """The job with this id, if the node serves it."""

    job: Count


class FirstJob(BeanstalkCall[JobFacts], frozen=True, tag="first"):
    """The next job of a tube in this state."""

    tube: Text
    state: StateName


class JobDone(Struct, frozen=True):
    """Whether the job was there, and no client had reserved it. None: the node may not deliver yet."""

    done: bool | None


class ChangeJob(BeanstalkCall[JobDone], frozen=True):
    """Do something with the job that the message `dot` is."""

    dot: Text
    id: Text

    def __post_init__(self) -> None:
        parse_message_id(self.dot)


class CheckJob(ChangeJob, frozen=True, tag="check"):
    """Whether no client has reserved it."""


class DeleteJob(ChangeJob, frozen=True, tag="delete"):
    """Settle it."""


class KickJob(ChangeJob, frozen=True, tag="kick"):
    """Make it ready."""


class JobsKicked(Struct, frozen=True):
    """None: the node may not deliver yet."""

    count: Count | None


class KickTube(BeanstalkCall[JobsKicked], frozen=True, tag="kick-tube"):
    """Make up to `bound` jobs of a tube ready."""

    tube: Text
    bound: Count
    what: KickedName
    id: Text


class PauseTube(BeanstalkCall[dict[str, Any]], frozen=True, tag="pause"):
    """Reserve nothing of a tube for so long."""

    tube: Text
    seconds: Count


class TubeCounts(BeanstalkCall[dict[str, Whole]], frozen=True, tag="tube"):
    """The part of a node in `stats-tube`."""

    tube: Text


class ServerCounts(BeanstalkCall[dict[str, Whole]], frozen=True, tag="server"):
    """The part of a node in `stats`."""


class Tubes(Struct, frozen=True):
    tubes: list[Text]


class TubeNames(BeanstalkCall[Tubes], frozen=True, tag="tubes"):
    """The tubes that a node knows."""
