"""The request of an administrative verb, as the functions of all verbs get it."""

from collections.abc import Mapping
from typing import NamedTuple

from qmq.access.rules import Principal
from qmq.errors import Refused
from qmq.gateways.headers import is_said


class VerbRequest(NamedTuple):
    """One SEND to `/control/VERB/…`. `about` is what follows the verb, with its slash; `principal` None: without
    login.
    """

    verb: str
    about: str
    headers: Mapping[str, str]
    principal: Principal | None
    address: str
    session: int
    body: bytes = b""

    @property
    def user(self) -> str | None:
        """The name of the principal."""
        return None if self.principal is None else self.principal.name

    @property
    def is_mesh(self) -> bool:
        """Whether all nodes are asked. Raises Refused for a scope that is none."""
        scope = self.headers.get("scope", "node")
        if scope not in ("node", "mesh"):
            raise Refused("bad-scope", "The header scope is node or mesh.")
        return scope == "mesh"

    @property
    def is_dry_run(self) -> bool:
        """Whether the response says what would happen, and nothing changes."""
        return is_said(self.headers, "dry-run")
