"""Addresses of nodes, as programs and commands write them."""

from qmq.address import PORT_MAX, Address


def parse_address(text: str) -> Address:
    """`host:port`, `[ipv6]:port`. Raises ValueError, TypeError.

    >>> parse_address("[::1]:61613")
    Address(host='::1', port=61613)
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no address: it is text, such as '127.0.0.1:61613'")
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, such as [::1]:61613")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= PORT_MAX):
        raise ValueError(f"{text!r} is not host:port, such as 127.0.0.1:61613")
    try:
        host.encode("idna")
    except UnicodeError:  # Each look-up of the name would fail with this, and perhaps only when another node is down.
        raise ValueError(f"{text!r} has a name that no host can have") from None
    return Address(host, int(port))
