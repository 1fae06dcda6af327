"""Addresses at which a node serves clients, for each protocol, and which users need no login there."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from qmq.section import AddressText, FilePath, Section, Size

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class TlsSettings(Section):
    """PEM files, read when the node starts."""

    certificate: FilePath
    key: FilePath
    ca: FilePath | None = None
    """The authority for certificates of the other side; required for the mesh, optional for a client listener."""
    crl: FilePath | None = None
    """Lists of revoked certificates, one of each authority that signs certificates of the other side."""

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key == "crl" and value is not None and seen.get("ca") is None:
            raise ValueError("must be left out, unless ca is set: only certificates that it covers are checked")


class ListenerSettings(Section):
    """One `[[stomp]]`: an address at which the node serves clients."""

    address: AddressText
    tls: TlsSettings | None = None
    anonymous: bool | None = None
    """Whether CONNECT without login is accepted. None: on loopback, while no user is configured."""
    certificate_user: Literal["subject", "san"] | None = None
    """Where the certificate of a client names its user: the common name, or a DNS name (subjectAltName). None: nowhere,
    and clients log in with a password."""
    insecure: bool = False
    """Whether passwords may arrive without TLS from other machines. It must be written down."""
    receipts_before_commit: bool = False
    """Whether the receipts of a transaction's frames come at once, for clients that wait for them before COMMIT."""

    def serves_anonymous(self, *, has_users: bool) -> bool:
        """Whether CONNECT without login is accepted here; `has_users` says whether the node has any user."""
        return self.address.is_loopback and not has_users if self.anonymous is None else self.anonymous

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        address = seen.get("address")
        is_reachable = address is not None and not address.is_loopback
        if key == "certificate_user" and value is not None:
            if "tls" in seen and (seen["tls"] is None or seen["tls"].ca is None):
                raise ValueError("must be left out, unless tls has ca: only a checked certificate names a user")
        elif key == "insecure" and not value:
            if is_reachable and "tls" in seen and seen["tls"] is None:
                why = f"passwords would cross the network to {address} in clear"
                raise ValueError(f"must be true, unless tls is set: {why}")
        elif key == "anonymous" and value and is_reachable:
            raise ValueError(f"must be false: {address} can be reached from other machines; add [[users]] instead")


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not re.fullmatch(r"https?://[^/?#@\s]+", origin):
            raise ValueError(f"must have origins as https://HOST[:PORT], not {origin!r}")
    return origins


Origins = Annotated[tuple[str, ...], _check_origins]
"""Origins of pages: `https://app.example.org`."""


class HttpListenerSettings(ListenerSettings):
    """One `[[http]]`: an address of the web port. `hosts` are names of it besides its address."""

    hosts: tuple[str, ...] = ()
    origins: Origins = ()
    """Origins of pages that may use the port, besides pages of the port itself: `https://app.example.org`."""

    def served_hosts(self, is_anonymous: bool) -> tuple[str, ...] | None:
        """The names in `Host` that are served; None for all, where each client logs in and no names are given."""
        if not is_anonymous and not self.hosts:
            return None
        return (*self.hosts, self.address.host, *(LOOPBACK_NAMES if self.address.is_loopback else ()))


class BeanstalkListenerSettings(ListenerSettings):
    """One `[[beanstalk]]`: an address for beanstalkd clients, which do not log in."""

    user: str | None = None
    """As which user they act. None: without a name, which only a node without users allows."""
    job_bytes_max: Size = 65_535
    """Of the body of a job; `limits.body_bytes_max` counts, too."""
