"""Addresses in text: `host:port`, and `[host]:port` for IPv6; and where a table is, as a path or an address.

Only the text is checked. No name is looked up, because a valid configuration must not become invalid when a name server
is down. So `is_loopback` is true only for `localhost` and literal loopback addresses.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Final, NamedTuple

PORT_MAX = 65535
HOST_CHARACTERS_MAX = 253  # RFC 1035, 2.3.4: the longest name
LABEL_CHARACTERS_MAX = 63

OBJECT_STORES: Final = ("s3", "gs", "abfss")
"""Schemes of addresses at which a table may be, beside `file`."""
_TABLE: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]+):(?=/)(//(?P<host>[^/]*))?(?P<path>.*)", re.IGNORECASE | re.DOTALL
)


class Address(NamedTuple):
    """An address to listen at or to dial. `str()` is the inverse of `parse_address`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    @lru_cache(maxsize=1024)  # noqa: B019 (an address is a small value)
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than `localhost` counts as reachable from outside."""
        ip = ip_of(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of a machine: it can be listened at, and not be dialled."""
        ip = ip_of(self.host)
        return ip is not None and ip.is_unspecified


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def parse_address(text: str) -> Address:
    """Read `host:port` or `[ipv6]:port`. Port 0: the system chooses one. Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError("must be host:port, such as 127.0.0.1:61613")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("must have an IPv6 address between the brackets, such as [::1]:61613") from None
    elif host.count(":") > 1:
        raise ValueError("must have an IPv6 address in brackets, such as [::1]:61613")
    elif not host:
        raise ValueError("must name a host before the colon, such as 127.0.0.1:61613")
    elif not _may_be_looked_up(host):
        raise ValueError("must have a host name or an IP address before the colon")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > PORT_MAX:
        raise ValueError(f"must have a port from 0 to {PORT_MAX} after the colon")
    return Address(host, int(port))


def _may_be_looked_up(host: str) -> bool:
    """Whether the system can look up this name. A name that is too long or has an empty part raises there."""
    if len(host) > HOST_CHARACTERS_MAX or not all(c.isalnum() or c in "-._" for c in host):
        return False
    if not host.isascii():
        import idna  # slow to import, and rarely needed

        try:
            host.encode("idna")  # as Python does (2003)
            idna.encode(host, uts46=True)  # as trio does (2008)
        except UnicodeError:
            return False
    return all(1 <= len(label) <= LABEL_CHARACTERS_MAX for label in host.removesuffix(".").split("."))


def table_place(text: str) -> str:
    """Where a table is: a path, which may be written as `file:///path`, or an address of an object store, such as
    `s3://bucket/archive`. Raises ValueError with the reason.
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        return text
    scheme, host, path = found["scheme"].lower(), found["host"], found["path"]
    if scheme == "file" and not host:
        return path
    if scheme not in OBJECT_STORES or not host:
        known = ", ".join(f"{one}://…" for one in OBJECT_STORES)
        raise ValueError(f"is no address of a table: there are paths, such as /data/archive, and {known}")
    if set("?#") & set(path) or ":" in host or ("@" in host and scheme != "abfss"):
        raise ValueError("must have no keys in it: an archiver takes them from its environment")
    return f"{scheme}://{host}{path.rstrip('/')}"


def is_table_address(place: str) -> bool:
    """Whether what `table_place` returned is no path."""
    return place.startswith(tuple(f"{scheme}://" for scheme in OBJECT_STORES))
