"""Addresses at which a node serves clients, for each protocol, and which users need no login there."""

import re
from pathlib import Path
from typing import Literal

from pydantic import ValidationInfo, field_validator

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

    @field_validator("crl")
    @classmethod
    def _certificates_are_asked_for(cls, crl: Path | None, info: ValidationInfo) -> Path | None:
        if crl is not None and info.data.get("ca") is None:
            raise ValueError("must be left out, unless ca is set: only certificates that it covers are checked")
        return crl


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

    @field_validator("certificate_user")
    @classmethod
    def _certificates_are_checked(cls, source: str | None, info: ValidationInfo) -> str | None:
        tls = info.data.get("tls")
        if source is not None and (tls is None or tls.ca is None) and "tls" in info.data:
            raise ValueError("must be left out, unless tls has ca: only a checked certificate names a user")
        return source

    @field_validator("insecure")
    @classmethod
    def _passwords_are_encrypted(cls, insecure: bool, info: ValidationInfo) -> bool:
        address = info.data.get("address")
        if address is not None and not address.is_loopback and "tls" in info.data and info.data["tls"] is None:
            if not insecure:
                why = f"passwords would cross the network to {address} in clear"
                raise ValueError(f"must be true, unless tls is set: {why}")
        return insecure

    @field_validator("anonymous")
    @classmethod
    def _anonymous_on_loopback_only(cls, anonymous: bool | None, info: ValidationInfo) -> bool | None:
        address = info.data.get("address")
        if anonymous and address is not None and not address.is_loopback:
            raise ValueError(f"must be false: {address} can be reached from other machines; add [[users]] instead")
        return anonymous


def check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """`origins`, if each is one. Raises ValueError."""
    for origin in origins:
        if not re.fullmatch(r"https?://[^/?#@\s]+", origin):
            raise ValueError(f"must have origins as https://HOST[:PORT], not {origin!r}")
    return origins


class HttpListenerSettings(ListenerSettings):
    """One `[[http]]`: an address of the web port. `hosts` are names of it besides its address."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    """Origins of pages that may use the port, besides pages of the port itself: `https://app.example.org`."""

    def served_hosts(self, is_anonymous: bool) -> tuple[str, ...] | None:
        """The names in `Host` that are served; None for all, where each client logs in and no names are given."""
        if not is_anonymous and not self.hosts:
            return None
        return (*self.hosts, self.address.host, *(LOOPBACK_NAMES if self.address.is_loopback else ()))

    @field_validator("origins")
    @classmethod
    def _origins_are_whole(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return check_origins(origins)


class BeanstalkListenerSettings(ListenerSettings):
    """One `[[beanstalk]]`: an address for beanstalkd clients, which do not log in."""

    user: str | None = None
    """As which user they act. None: without a name, which only a node without users allows."""
    job_bytes_max: Size = 65_535
    """Of the body of a job; `limits.body_bytes_max` counts, too."""
