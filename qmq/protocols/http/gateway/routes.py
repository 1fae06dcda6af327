"""Which request is which call: the table of paths and methods.

A destination is the kind and the name in the path: `/v1/queues/NAME` is `/queue/NAME`. A name with a slash has it as
`%2F`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from qmq.protocols.http.codec import HttpRefusal, HttpRequest


class Call(Enum):
    """What a request asks for."""

    SEND = auto()
    RECEIVE = auto()
    ACKS = auto()
    EVENTS = auto()
    CONTROL = auto()
    OPENAPI = auto()
    MESSAGE_SCHEMA = auto()
    SCHEMA = auto()
    """One that the mesh defines."""
    SCRIPT = auto()
    """The client for browsers."""
    METRICS = auto()
    LIVEZ = auto()
    READYZ = auto()
    PAGE = auto()
    """A file of the console."""
    MANAGEMENT = auto()
    """A part of RabbitMQ's management API."""
    CONSOLE = auto()
    """Login and logout of a browser, and the events of the console."""
    STOMP = auto()
    """A WebSocket that carries STOMP."""
    LONG_POLL = auto()
    """STOMP in requests: its session is in the path, but for the request that begins one."""


class Route(NamedTuple):
    """One request: its call, and the destination or the rest of the path that it is about."""

    call: Call
    about: str = ""


KINDS: Final[Mapping[str, str]] = {
    "queues": "queue",
    "topics": "topic",
    "fanouts": "fanout",
    "exchanges": "exchange",
    "system": "system",
}
"""Kind in a path → kind of a destination."""

ACTIONS: Final[Mapping[str, tuple[Call, str, tuple[str, ...]]]] = {
    "messages": (Call.SEND, "POST", ("queues", "topics", "fanouts", "exchanges")),
    "receive": (Call.RECEIVE, "POST", ("queues",)),
    "events": (Call.EVENTS, "GET", ("topics", "fanouts", "system")),
}
"""Last segment of `/v1/KIND/NAME/…` → the call, its method, and the kinds that have it."""

PLAIN: Final[Mapping[Sequence[str], tuple[Call, tuple[str, ...]]]] = {
    ("v1", "acks"): (Call.ACKS, ("POST",)),
    ("v1", "openapi.json"): (Call.OPENAPI, ("GET", "HEAD")),
    ("v1", "schemas", "message.avsc"): (Call.MESSAGE_SCHEMA, ("GET", "HEAD")),
    ("qmq.js",): (Call.SCRIPT, ("GET", "HEAD")),
    ("metrics",): (Call.METRICS, ("GET", "HEAD")),
    ("livez",): (Call.LIVEZ, ("GET", "HEAD")),
    ("readyz",): (Call.READYZ, ("GET", "HEAD")),
    ("stomp",): (Call.STOMP, ("GET",)),
    ("stomp", "websocket"): (Call.STOMP, ("GET",)),
}

CONSOLE: Final[Mapping[str, tuple[str, ...]]] = {"login": ("GET", "POST"), "logout": ("POST",), "events": ("GET",)}
"""Last segment of `/v1/console/…` → its methods."""

PROBES: Final = frozenset({Call.LIVEZ, Call.READYZ, Call.OPENAPI, Call.MESSAGE_SCHEMA, Call.SCRIPT, Call.PAGE})
"""Calls that need no login: what starts and watches a node has none, and they show no name of a destination."""

OPEN: Final = PROBES | {Call.STOMP, Call.LONG_POLL}
"""Calls that need no login here: a client of STOMP logs in with CONNECT."""


BODY_BYTES: Final[Mapping[Call, int]] = {
    Call.RECEIVE: 64 << 10,
    Call.ACKS: 512 << 10,
    **dict.fromkeys((*PROBES, Call.METRICS, Call.EVENTS, Call.CONSOLE, Call.MANAGEMENT, Call.STOMP), 4 << 10),
}
"""Largest bodies: these are parsed at once, and those of PROBES are held for a client without a login."""


def route_of(request: HttpRequest) -> Route:
    """The call of a request. Raises HttpRefusal: 404 for an unknown path, 405 for another method."""
    path = request.path
    if path in PLAIN:
        call, methods = PLAIN[path]
        _check_method(request, methods)
        return Route(call)
    if not path or path[0] == "console":
        _check_method(request, ("GET", "HEAD"))
        return Route(Call.PAGE, "/".join(path[1:]))
    if path[:2] == ("v1", "console") and len(path) == 3 and path[2] in CONSOLE:
        _check_method(request, CONSOLE[path[2]])
        return Route(Call.CONSOLE, path[2])
    if path[0] == "api":
        _check_method(request, ("GET",))
        return Route(Call.MANAGEMENT)
    if path[:2] == ("v1", "stomp") and len(path) <= 3 and path[2:] != ("",):
        _check_method(request, ("POST",) if len(path) == 2 else ("GET", "POST", "DELETE"))
        return Route(Call.LONG_POLL, "".join(path[2:]))
    if path[:2] == ("v1", "control") and len(path) > 2:
        _check_method(request, ("GET", "POST"))
        return Route(Call.CONTROL, f"/control/{'/'.join(path[2:])}")
    if path[:2] == ("v1", "schemas") and len(path) == 3:
        _check_method(request, ("GET", "HEAD"))
        return Route(Call.SCHEMA, path[2])
    if len(path) == 4 and path[0] == "v1" and path[3] in ACTIONS and path[1] in KINDS:
        call, method, kinds = ACTIONS[path[3]]
        if path[1] in kinds:
            if not path[2]:
                raise HttpRefusal(400, "bad-destination", f"The path names one of {path[1]}: /v1/{path[1]}/NAME.")
            _check_method(request, (method,))
            key = request.query.get("key")
            suffix = f"/{key}" if key is not None and path[1] == "exchanges" else ""
            return Route(call, f"/{KINDS[path[1]]}/{path[2]}{suffix}")
    raise HttpRefusal(
        404,
        "unknown-path",
        "There is nothing at this path.",
        "Paths are /v1/queues|topics|fanouts|exchanges/NAME/messages, /v1/queues/NAME/receive, /v1/acks, "
        "/v1/topics|fanouts/NAME/events, /v1/schemas/NAME, /v1/control/…, /v1/stomp, /stomp, /metrics, /livez, "
        "/readyz; /v1/openapi.json has all.",
    )


def _check_method(request: HttpRequest, methods: Sequence[str]) -> None:
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise HttpRefusal(
            405, "bad-method", f"The method here is {allowed.replace(', ', ' or ')}.", headers=[("allow", allowed)]
        )
