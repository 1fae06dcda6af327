"""Which pages may use the port. A page of any site can call an address of the machine that its browser runs on.

`Host` must be a name that this port is meant to have: a page of a name that was rebound to this address has another one
("DNS rebinding"). `Origin` must be that of the port itself, or be listed. A page can send some requests without asking
first, and without `Origin`. Those that ask the node for something are refused: a GET from a page of another site, and a
POST with one of the three content types of forms, unless the client has a login.
"""

from collections.abc import Collection
from typing import Final

from qmq.gateways.encoder import Lines
from qmq.protocols.http.codec import HttpRefusal, HttpRequest

FORM_TYPES: Final = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""What a form can send ("CORS-safelisted" content types, WHATWG Fetch)."""

OWN_SITES: Final = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` of pages of this port, and of what a person types. `same-site` may be another port."""

PREFLIGHT_SECONDS: Final = 600


class Origins:
    """The rule of one listener. `hosts` None accepts any name: for a port whose clients all log in."""

    def __init__(self, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self._hosts = None if hosts is None else frozenset(_in_brackets(host.lower()) for host in hosts)
        self._origins = frozenset(origins)

    def check(self, request: HttpRequest) -> Lines:
        """The headers that let the page of another origin read the response. Raises HttpRefusal, 403 or 421."""
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if _has_port(host) else host
        if self._hosts is not None and name not in self._hosts:
            raise HttpRefusal(
                421, "bad-host", f"The name {name!r} is not a name of this port.", "hosts of the listener has them."
            )
        origin = request.headers.get("origin")
        if origin is None or origin.lower() in (f"http://{host}", f"https://{host}"):
            return ()
        if origin not in self._origins:
            raise HttpRefusal(
                403, "bad-origin", "Pages of this origin may not use this port.", "origins of the listener lists them."
            )
        return (("access-control-allow-origin", origin), ("vary", "origin"))

    def preflight(self, request: HttpRequest) -> Lines:
        """The headers of the response to OPTIONS of a page that is allowed."""
        asked = request.headers.get("access-control-request-headers", "")
        return (
            ("access-control-allow-methods", "GET, POST, DELETE"),
            ("access-control-allow-headers", asked or "content-type, authorization"),
            ("access-control-max-age", str(PREFLIGHT_SECONDS)),
        )


def check_unasked(request: HttpRequest) -> None:
    """Refuse what a page of any site can send without asking first. Raises HttpRefusal, 403 or 415."""
    if "origin" not in request.headers and request.headers.get("sec-fetch-site", "none") not in OWN_SITES:
        raise HttpRefusal(403, "bad-origin", "A page of another origin sends this request.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and "authorization" not in request.headers and kind in FORM_TYPES:
        raise HttpRefusal(
            415,
            "bad-content-type",
            f"Without a login, a POST needs another content-type than {kind or 'none'}.",
            "A page of any site can send forms. Use application/json or application/octet-stream.",
        )


def _in_brackets(host: str) -> str:
    """As `Host` has it: an IPv6 address is in brackets there."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _has_port(host: str) -> bool:
    return ":" in host and not host.endswith("]")
