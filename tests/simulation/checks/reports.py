"""What operators are shown.

I1   a message that is said to be lost was on disks that are gone, and on no other
"""

import re
from collections.abc import Iterable

from qmq.model.dots import Dot, parse_origin
from tests.simulation.evidence import AllowedLosses

_LOST = re.compile(r"EVENT lost: the message (\S+)-(\d+) of ")
_MAY_BE_LOST = re.compile(r"EVENT lost: unsettled messages of \S+ after \d+ up to \d+, if there were any")
"""Of a queue store of which nothing could be read."""

_MET_FAILING_DISK = re.compile(r"session failed: commit failed: .* made to fail")
"""A command of beanstalkd that wrote a checkpoint: the next writer ends the node."""


def unexplained(errors: Iterable[str], allowed_losses: AllowedLosses) -> list[str]:
    """Those of the logged `errors` that no harm to a disk explains."""
    return [
        error
        for error in errors
        if not _MAY_BE_LOST.search(error)
        and not _MET_FAILING_DISK.search(error)
        and not _is_lost(error, allowed_losses)
    ]


def _is_lost(error: str, allowed_losses: AllowedLosses) -> bool:
    found = _LOST.search(error)
    return found is not None and Dot(parse_origin(found[1]), int(found[2])) in allowed_losses.dots
