"""The header with which a proxy says whose connection it forwards (HAProxy's PROXY protocol, versions 1 and 2).

Version 1 is a line of text, version 2 has a binary prefix of 16 bytes that says how many follow. Behind the header
comes what the client sends, TLS too. So a reader asks `bytes_missing` how many bytes it may read, and never takes one
of the client's. The rules are those of sections 2.1 and 2.2 of the specification. The checksum of version 2
(PP2_TYPE_CRC32C) is optional for a reader (2.2.3), and is not read here.
"""

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Final, NamedTuple

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
PREFIX: Final = Struct(">12sBBH")
"""Version 2: signature, version and command, family and transport, and how many bytes follow."""

LINE_BYTES_MIN: Final = len(b"PROXY UNKNOWN\r\n")
"""Less than any header of either version, so that a reader may begin with as many."""
LINE_BYTES_MAX: Final = 107
BODY_BYTES_MAX: Final = 4096
"""Behind the prefix. Addresses take up to 216 bytes, and what proxies add is short."""

LINE: Final = re.compile(rb"PROXY TCP([46]) ([0-9A-Fa-f:.]{2,39}) ([0-9A-Fa-f:.]{2,39}) ([0-9]{1,5}) ([0-9]{1,5})\r\n")

LOCAL: Final = 0x20
PROXIED: Final = 0x21
TCP4, TCP6, UNIX, UNSPECIFIED = 0x11, 0x21, 0x31, 0x00
ADDRESSES: Final = {TCP4: Struct(">4s4sHH"), TCP6: Struct(">16s16sHH"), UNIX: Struct(">108s108s")}
VALUE: Final = Struct(">BH")
"""Type and length of each value behind the addresses."""
SSL: Final = 0x20
SSL_HEAD: Final = Struct(">BI")
SSL_COMMON_NAME: Final = 0x22
SHOWN_CERTIFICATE: Final = 0x02 | 0x04
"""The client has shown a certificate, on this connection or in the TLS session that it resumes."""


class ProxiedClient(NamedTuple):
    """The client behind the proxy. `common_name` is that of its certificate, if it has shown one that the proxy found
    valid; else "".
    """

    address: str
    port: int
    common_name: str = ""


def bytes_missing(header: bytes) -> int:
    """How many bytes a reader may take before it asks again; 0: the header is complete. Raises ValueError."""
    if len(header) < LINE_BYTES_MIN:
        return LINE_BYTES_MIN - len(header)
    if header.startswith(SIGNATURE):
        if len(header) < PREFIX.size:
            return PREFIX.size - len(header)
        length: int = PREFIX.unpack_from(header)[3]
        if length > BODY_BYTES_MAX:
            raise ValueError(f"it has {length} bytes, and at most {BODY_BYTES_MAX} are read")
        return PREFIX.size + length - len(header)
    if not header.startswith(b"PROXY "):
        raise ValueError("it begins neither as version 1 nor as version 2")
    if header.endswith(b"\r\n"):
        return 0
    if len(header) >= LINE_BYTES_MAX:
        raise ValueError(f"its line is longer than {LINE_BYTES_MAX} bytes")
    return 1


def read_header(header: bytes) -> ProxiedClient | None:
    """What a complete header says. None: the connection is the proxy's own (a health check), or it does not know whose.

    Raises ValueError.
    """
    return _read_binary(header) if header.startswith(SIGNATURE) else _read_line(header)


def _read_line(line: bytes) -> ProxiedClient | None:
    if line.startswith((b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ")):
        return None
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError("its line is not that of version 1")
    family, source, target, *ports = (part.decode() for part in found.groups())
    read = IPv4Address if family == "4" else IPv6Address
    read(target)
    if any(int(port) > 65535 for port in ports):
        raise ValueError("a port is above 65535")
    return ProxiedClient(str(read(source)), int(ports[0]))


def _read_binary(header: bytes) -> ProxiedClient | None:
    _, command, family, length = PREFIX.unpack_from(header)
    if command == LOCAL:
        return None
    if command != PROXIED:
        raise ValueError(f"it has the version and command {command:#x}")
    if family == UNSPECIFIED:
        return None
    addresses = ADDRESSES.get(family)
    if addresses is None:
        raise ValueError(f"it has the family and transport {family:#x}, which are not of TCP")
    if length < addresses.size:
        raise ValueError("it is too short for its addresses")
    values = header[PREFIX.size + addresses.size :]
    common_name = "".join(_common_name(value) for kind, value in _values(values) if kind == SSL)
    if family == UNIX:
        return None
    source, _, port, _ = addresses.unpack_from(header, PREFIX.size)
    return ProxiedClient(str(IPv4Address(source) if family == TCP4 else IPv6Address(source)), port, common_name)


def _common_name(ssl: bytes) -> str:
    if len(ssl) < SSL_HEAD.size:
        raise ValueError("its value for TLS is too short")
    client, unverified = SSL_HEAD.unpack_from(ssl)
    if unverified or not client & SHOWN_CERTIFICATE:
        return ""
    return next((value.decode() for kind, value in _values(ssl[SSL_HEAD.size :]) if kind == SSL_COMMON_NAME), "")


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each."""
    at = 0
    while at < len(data):
        if at + VALUE.size > len(data):
            raise ValueError("a value of it ends early")
        kind, length = VALUE.unpack_from(data, at)
        at += VALUE.size
        if at + length > len(data):
            raise ValueError("a value of it ends early")
        yield kind, data[at : at + length]
        at += length
