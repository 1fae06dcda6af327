"""Rights of clients on their node: control destinations and system topics.

The right is the `control` of its user in `[[users]]`. A node without users is for development: every client that its
listeners serve may do everything. If there are users, a client without login may do no more than a user without
`control`. Otherwise a user would get more rights by omitting its login.

A destination that is not in `READS` needs `admin`. So a destination added later is closed until it is listed here.
"""

import logging
from typing import Final

from qmq.config import CONTROLS, LOCAL_ADMINISTRATOR, Control, NodeSettings, User
from qmq.errors import Refused

READS: Final = (
    "/control/status",
    "/control/count-msgs/",
    "/control/count-subscribers/",
    "/control/list/",
    "/control/list-subscribers/",
    "/system/events",
    "/system/peers",
)
"""Destinations, or their beginnings, for which `read` is enough."""

log = logging.getLogger("qmq.node")


def control_of(user: str | None, users: tuple[User, ...]) -> Control:
    """The right of `user`, None for a client without login, on a node with these users."""
    if not users or user == LOCAL_ADMINISTRATOR:
        return "admin"
    return next((known.control for known in users if known.name == user), "none")


def check_right(user: str | None, users: tuple[User, ...], destination: str) -> None:
    """Raises Refused when `user` may not use this control destination or system topic."""
    needed = "read" if destination.startswith(READS) else "admin"
    if CONTROLS.index(control_of(user, users)) >= CONTROLS.index(needed):
        return
    who = "A client without login" if user is None else "This user"
    raise Refused("not-allowed", f'{who} may not use {destination}: it needs control = "{needed}" in [[users]].')


def note_if_open(settings: NodeSettings) -> None:
    """Log that the node has no users, and what that means. Its listeners are all on loopback then."""
    if not settings.users:
        log.info("= no users are configured: every client on this machine may do everything, administration included")
