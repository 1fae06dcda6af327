"""`[[authentication]]`: the authenticators that are asked about a login, in this order (docs/authentication.md).

The first that knows the credentials decides. Without any entry these are the users of the mesh alone.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from msgspec import Meta

from qmq.address import Address
from qmq.auth.credentials import HTTP, TOKEN, USERS
from qmq.auth.jwks import ASYMMETRIC, SYMMETRIC
from qmq.section import FilePath, Section

OF_CALLS: Final = ("timeout_seconds", "cache_seconds", "checks_at_once")
KEYS: Final[Mapping[str, Sequence[str]]] = {
    USERS: (),
    TOKEN: (
        "jwks",
        "issuer",
        "audience",
        "algorithms",
        "leeway_seconds",
        "name_claim",
        "groups_claim",
        "groups_prefix",
    ),
    HTTP: ("url", "ca", "insecure", *OF_CALLS),
}
"""Kind → its keys beside `kind`."""

OF_PLUGINS: Final = ("options", *OF_CALLS)

REQUIRED: Final = {"jwks": TOKEN, "issuer": TOKEN, "audience": TOKEN, "url": HTTP}


def _keys_of(kind: str) -> Sequence[str]:
    return KEYS.get(kind, OF_PLUGINS)


def _read_kind(value: object) -> object:
    if isinstance(value, str) and value in KEYS:
        return value
    from qmq.auth.plugins import installed  # reads the files of all packages

    others = installed()
    if value not in others:
        found = f": {', '.join(others)}" if others else ", and none is installed"
        known = ", ".join(f'"{kind}"' for kind in KEYS)
        raise ValueError(f"must be {known}, or an entry point of the group qmq.auth{found}")
    return value


def _read_text(value: object) -> object:
    if value is None or (isinstance(value, str) and value and value.isprintable()):
        return value
    raise ValueError("must be text of at least one printable character")


def _read_algorithm(value: object) -> object:
    if value not in (*ASYMMETRIC, *SYMMETRIC):
        raise ValueError(f"must be one of {', '.join((*ASYMMETRIC, *SYMMETRIC))}")
    return value


def _read_options(value: object) -> object:
    """Immutable, but for the dictionaries."""
    if not isinstance(value, dict):
        raise ValueError("must be a section of keys")
    return _as_tuples(value)


def _as_tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _as_tuples(inner) for key, inner in value.items()}
    return tuple(_as_tuples(inner) for inner in value) if isinstance(value, list) else value


def _check_url(value: object) -> str:
    """The URL, if it is safe to ask it."""
    if not isinstance(value, str):
        raise ValueError("must be text in quotes")
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or not value.isprintable() or " " in value:
        raise ValueError("must be the URL of a service: https://HOST/PATH")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must have no user, ? and #: it is shown in conditions and logs")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("must have a port between 1 and 65535") from None
    return value


def _check_algorithms(algorithms: tuple[str, ...]) -> tuple[str, ...]:
    if not algorithms:
        raise ValueError("must have at least one algorithm")
    return algorithms


Text = Annotated[str, _read_text]
AlgorithmName = Annotated[str, _read_algorithm]


class AuthenticationSettings(Section):
    """One `[[authentication]]`."""

    kind: Annotated[str, _read_kind]
    """`users`, `token`, `http`, or the name of an entry point of the group `qmq.auth`."""

    # Tokens.
    jwks: FilePath | None = None
    """The file of the keys that verify signatures."""
    issuer: Text | None = None
    audience: Text | None = None
    algorithms: Annotated[tuple[AlgorithmName, ...], _check_algorithms] = tuple(ASYMMETRIC)
    """HS256, HS384 and HS512 must be written down; then the file has a symmetric key, and is a secret."""
    leeway_seconds: Annotated[float, Meta(ge=0, le=600)] = 30.0
    """For clocks that differ: so much later a token expires, and so much earlier it is valid."""
    name_claim: Text = "sub"
    groups_claim: Text = "groups"
    """A name with dots leads into objects: `realm_access.roles`."""
    groups_prefix: str = ""
    """Only groups that begin so count, without it."""

    # A service.
    url: Annotated[str, _check_url] | None = None
    ca: FilePath | None = None
    """The authority for the certificate of the service. None: those of the system."""
    insecure: bool = False
    """Whether passwords may go to another machine without TLS."""

    # A service, and entry points.
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 2.0
    """Without a decision in this time, the login is refused."""
    cache_seconds: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """How long a decision is remembered; refusals for 5 seconds at most."""
    checks_at_once: Annotated[int, Meta(ge=1, le=64)] = 8
    """Further logins wait for their turn."""

    # Entry points.
    options: Annotated[Mapping[str, Any], _read_options] = {}
    """Keyword arguments for the class. They may be secrets and are never shown."""

    def effective_keys(self) -> Sequence[str]:
        return ("kind", *_keys_of(self.kind))

    def is_explicit(self, key: str) -> bool:
        return key != "options" or bool(self.options)

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        """Each kind has its own keys. A default is no mistake of the file."""
        url, kind = seen.get("url"), seen.get("kind")
        if key == "insecure" and url is not None and not value and not url.startswith("https:"):
            if not _is_loopback(url):
                why = "passwords would cross the network in clear"
                raise ValueError(f"must be true, unless url begins with https: {why}")
        if kind is not None and value is None and REQUIRED.get(key) == kind:
            raise ValueError(f'is required for the kind "{kind}"')
        if kind is not None and key not in _keys_of(kind) and value != cls.keys()[key].default:
            raise ValueError(f'must be left out for the kind "{kind}"')


def asks_others(authentication: Sequence[AuthenticationSettings]) -> bool:
    """Whether clients can log in that are no users of the node."""
    return any(one.kind != USERS for one in authentication)


def asks_users(authentication: Sequence[AuthenticationSettings]) -> bool:
    """Whether the users of the node can log in."""
    return not authentication or any(one.kind == USERS for one in authentication)


def _is_loopback(url: str) -> bool:
    return Address(urlsplit(url).hostname or "", 0).is_loopback
