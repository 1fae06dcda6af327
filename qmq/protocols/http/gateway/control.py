"""`/v1/control/…`: a request to the headers of a SEND to `/control/…`, which has the same words.

The query has the headers (`?scope=mesh&limit=50`), the body is the body. What only shows may be asked with GET.
"""

from typing import Final

from qmq.protocols.http.codec import HttpRefusal, HttpRequest

SHOWS: Final = frozenset(
    {
        "status",
        "conditions",
        "count-msgs",
        "count-subscribers",
        "list",
        "list-subscribers",
        "connections",
        "consumers",
        "links",
        "overview",
        "history",
        "rights",
        "audit",
        "exchanges",
        "bindings",
        "trace",
        "peek",
        "get",
    }
)
"""Verbs that change nothing."""

SHOWS_DEFINITIONS: Final = frozenset({"list", "get", "export"})

NOT_HEADERS: Final = frozenset({"destination", "receipt", "transaction", "reply-to", "correlation-id"})


def control_of(request: HttpRequest, destination: str) -> dict[str, str]:
    """The headers of the SEND. Raises HttpRefusal, 405 for a GET that would change something."""
    parts = destination.split("/")
    verb = parts[2]
    shows = verb in SHOWS or (verb == "definitions" and len(parts) > 3 and parts[3] in SHOWS_DEFINITIONS)
    if request.method == "GET" and not shows:
        raise HttpRefusal(405, "bad-method", "This request changes something: use POST.", headers=[("allow", "POST")])
    headers = {"destination": destination}
    for name, value in request.query.items():
        if name == "access_token":
            continue
        header = name.replace("_", "-")
        if header in NOT_HEADERS:
            raise HttpRefusal(400, "bad-query", f"The query has no {name!r}.")
        headers[header] = value
    return headers
