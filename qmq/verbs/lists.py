"""Verbs that count and list destinations and subscribers."""

from typing import Annotated, Final, Literal

from qmq.access.rights import KINDS
from qmq.verbs.verb import After, Limit, Rates, Showing, option

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 200
OFFSET_MAX: Final = 2_000
"""Pages further down are not offered: `filter` finds what is there."""

FILTER_CHARS_MAX: Final = 256

Sort = Literal["name", "depth", "oldest", "rate", "growth"]

Scope = Annotated[Literal["node", "mesh"], option("Ask all nodes of the mesh, and merge their answers.", word="mesh")]


class CountMessages(Showing):
    """Count the messages of a queue."""

    form = "count-msgs/queue/NAME"

    scope: Scope = "node"


class CountSubscribers(Showing):
    """Count the subscribers of a destination."""

    form = "count-subscribers/queue|topic|fanout/NAME"

    scope: Scope = "node"


class List(Showing):
    """List the destinations of a kind whose names begin with NAME."""

    form = "list/queue|topic|fanout/NAME"

    oldest: Annotated[bool, option("Show the age of the oldest message of each queue.")] = False
    scope: Scope = "node"
    rate_seconds: Rates = 0
    limit: Limit = 100
    after: After = ""

    @classmethod
    def destination_of(cls, name: str) -> str:
        """The prefix of a list counts as a pattern; without one it is a list of the whole kind."""
        about = f"/{name}" if "/" in name else f"/{name}/"
        about = about if about.endswith("*") else f"{about}*"
        return about if about.startswith(KINDS) else ""


class QueuePage(Showing):
    """One page of queues in any order, for the console: a list of queues with `sort`."""

    form = "list/queue"

    sort: Annotated[Sort, option("The order of the page.")] = "name"
    order: Annotated[Literal["asc", "desc"], option("By default, names rise and all others fall.")] | None = None
    filter: Annotated[str, option("Only names that contain this.", max_length=FILTER_CHARS_MAX)] = ""
    limit: Annotated[int, option("Rows of the page.", ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT
    offset: Annotated[int, option("How many rows are before the page.", ge=0, le=OFFSET_MAX)] = 0
    scope: Scope = "node"

    @classmethod
    def destination_of(cls, name: str) -> str:
        return List.destination_of(name)

    @property
    def is_reversed(self) -> bool:
        return (self.order or ("asc" if self.sort == "name" else "desc")) == "desc"


class ShowPolicies(Showing):
    """Show which rules apply to a destination, and where each is from.

    A rule is from the declaration of a queue, else from the policy that matches best, else from a setting of the node
    that answers, or it is a default. Each definition is from a node file, or from a change at run time.
    """

    form = "policies/queue|topic|fanout|exchange/NAME"


class ListSubscribers(Showing):
    """List the subscribers of a destination.

    DESTINATION is /queue/NAME, /topic/NAME or /fanout/NAME. For a topic, subscriptions to matching patterns are listed,
    too. Without DESTINATION, all subscriptions are listed.
    """

    form = "list-subscribers/queue|topic|fanout/NAME"

    scope: Scope = "node"
    rate_seconds: Rates = 0
    limit: Limit = 100
    after: After = ""
