"""`/v1/control/…`: a request to the headers of a SEND to `/control/…`, which has the same words.

The query has the headers (`?scope=mesh&limit=50`), the body is the body. What only shows may be asked with GET.
"""

from typing import Final

from qmq.protocols.http.codec import HttpRefusal, HttpRequest
from qmq.verbs.table import verb_of

NOT_HEADERS: Final = frozenset({"destination", "receipt", "transaction", "reply-to", "correlation-id"})


def control_of(request: HttpRequest, destination: str) -> dict[str, str]:
    """The headers of the SEND. Raises HttpRefusal, 405 for a GET that would change something."""
    verb, _ = verb_of(destination)
    if request.method == "GET" and (verb is None or verb.changes or verb.takes_body):
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
