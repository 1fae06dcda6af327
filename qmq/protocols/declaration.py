"""What a protocol declares for the rooms below its dialogue: where its clients are served, and whether they log in."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from qmq.address import Address, ip_of
from qmq.section import AddressText, FilePath, NetworkText, Section


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
    """One section of the node file, such as `[[stomp]]`: an address at which the node serves clients."""

    address: AddressText
    tls: TlsSettings | None = None
    proxied_from: tuple[NetworkText, ...] = ()
    """Proxies: each connection from there begins with a header of the PROXY protocol, which names the client."""
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
        return self.is_private and not has_users if self.anonymous is None else self.anonymous

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it: proxies bring clients of other machines."""
        return self.address.is_loopback and not self.proxied_from

    def is_proxy(self, peer_address: str) -> bool:
        """Whether a connection from there begins with a header that names the client."""
        peer = ip_of(peer_address) if self.proxied_from else None
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return peer is not None and any(peer in network for network in self.proxied_from)

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        address = seen.get("address")
        is_reachable = address is not None and not address.is_loopback
        if key == "certificate_user" and value is not None:
            is_checked_by_proxy = value == "subject" and seen.get("proxied_from")
            if "tls" in seen and (seen["tls"] is None or seen["tls"].ca is None) and not is_checked_by_proxy:
                raise ValueError("must be left out, unless tls has ca: only a checked certificate names a user")
        elif key == "insecure" and not value:
            if is_reachable and "tls" in seen and seen["tls"] is None:
                why = f"passwords would cross the network to {address} in clear"
                raise ValueError(f"must be true, unless tls is set: {why}")
        elif key == "anonymous" and value and (is_reachable or seen.get("proxied_from")):
            raise ValueError(f"must be false: {address} can be reached from other machines; add users instead")


class LoginlessListenerSettings(ListenerSettings):
    """The same for a protocol whose clients do not log in."""

    user: str | None = None
    """As which user they act. None: without a name, which only a node without users allows."""


class Declaration(NamedTuple):
    """What a protocol says of itself before any of it is loaded (`listener.DECLARATION` in its room)."""

    name: str
    """That of its folder, of its sections in the node file, and of its address in the peers file."""
    title: str
    """For the log, and for errors."""
    settings: type[ListenerSettings] = ListenerSettings
    """Its section in the node file, which says where a node serves it."""
    default: Address | None = None
    """Where `qmq serve` without a file serves it."""
    of_mesh: Mapping[str, Any] = {}
    """Keys of its section, and their types. The peers file may have these lists for all nodes, beside their own."""
    page: str = ""
    """What a browser shows at its address."""
    requests: tuple[str, ...] = ()
    """The kinds of its requests between nodes. A node that does not serve it answers them, too."""
