"""The three versions of STOMP and how two sides agree on one of them (STOMP 1.2, "Protocol Negotiation")."""

from enum import IntEnum

from qmq.errors import RemoteProtocolError


class Version(IntEnum):
    """Ordered, so that `version >= Version.V11` reads as it should."""

    V10 = 10
    V11 = 11
    V12 = 12

    @property
    def text(self) -> str:
        """As it stands in the `version` header: `1.2`."""
        return VERSION_TEXTS[self]


VERSION_TEXTS: dict[Version, str] = {Version.V10: "1.0", Version.V11: "1.1", Version.V12: "1.2"}

VERSIONS_BY_TEXT: dict[str, Version] = {text: version for version, text in VERSION_TEXTS.items()}

SUPPORTED_VERSIONS = "1.0,1.1,1.2"
"""For the `version` header of the ERROR that answers a failed negotiation."""


def negotiate_version(accept_version: str | None) -> Version:
    """The highest version that the client's `accept-version` and this side share; 1.0 when it sent none.

    Raises:
        RemoteProtocolError: `version-unsupported`, there is no common version.
    """
    if accept_version is None:
        return Version.V10
    common = [VERSIONS_BY_TEXT[text] for text in map(str.strip, accept_version.split(",")) if text in VERSIONS_BY_TEXT]
    if not common:
        raise version_unsupported()
    return max(common)


def version_of_connected(version: str | None) -> Version:
    """The version that a server's CONNECTED frame announces; a 1.0 server announces none.

    Raises:
        RemoteProtocolError: `version-unsupported`, it is none of ours.
    """
    if version is None:
        return Version.V10
    try:
        return VERSIONS_BY_TEXT[version.strip()]
    except KeyError:
        raise version_unsupported() from None


def version_unsupported() -> RemoteProtocolError:
    return RemoteProtocolError(
        "version-unsupported",
        "no common STOMP version",
        f"Supported versions are {SUPPORTED_VERSIONS}; none of them was offered.",
    )
