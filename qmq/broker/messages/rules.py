"""What the operator decided for a queue: bounds, patience with consumers, and where messages go that no consumer takes.

One object per policy, shared by all queues under it, and replaced as a whole when the configuration is read again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Overflow = Literal["refuse", "drop-oldest", "drop-newest"]

DEAD_LETTERS: Final = "/queue/dead-letters"
DELIVERY_LIMIT_DEFAULT: Final = 20
REDELIVERY_US_MIN: Final = 100_000
REDELIVERY_US_MAX: Final = 60_000_000


@dataclass(slots=True, kw_only=True, eq=False)
class QueueRules:
    """Times in µs, sizes in bytes of bodies; 0 is no bound.

    `dead_letter` is a queue, or `/exchange/NAME/KEY`, or without key, if the message's own counts. "": dead letters are
    dropped.

    `is_delivery_paused`, `is_acceptance_paused`: no consumer gets a message, or no client may send one, until an
    operator resumes the queue.
    `has_lifetime`: the queue may end when it has no consumer, so changes of its consumers are noted.
    `check_owner`: asked with the size of a message before it comes in; raises Refused if the user that declared the
    queue may hold no more. None: there is none.
    `keeps_dropped`: what expires or does not fit goes to the dead letters, too, and not only what consumers refuse.
    """

    messages_max: int = 0
    bytes_max: int = 0
    overflow: Overflow = "refuse"
    ack_timeout_us: int = 0
    delivery_limit: int = DELIVERY_LIMIT_DEFAULT
    redelivery_us_min: int = REDELIVERY_US_MIN
    redelivery_us_max: int = REDELIVERY_US_MAX
    dead_letter: str = DEAD_LETTERS
    keeps_dropped: bool = False
    exclusive: bool = False
    is_delivery_paused: bool = False
    is_acceptance_paused: bool = False
    has_lifetime: bool = False
    check_owner: Callable[[int], None] | None = None

    def back_off(self, failures: int) -> int:
        """How long a message waits after its n-th failed delivery, in µs: doubled each time up to the most."""
        if not self.redelivery_us_min:
            return 0
        return min(self.redelivery_us_min << min(failures - 1, 40), self.redelivery_us_max)


DEFAULT_RULES: Final = QueueRules()
