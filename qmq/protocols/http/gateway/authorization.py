"""The header `Authorization`, and the query that stands for it where a client can send no header."""

import base64

from qmq.protocols.http.codec import HttpRefusal, HttpRequest


def authorization_of(request: HttpRequest) -> str | None:
    """The credentials of a request as they were sent, or None.

    `EventSource` can send no headers: a GET may have its token in the query.
    """
    said = request.headers.get("authorization")
    if said or request.method != "GET":
        return said
    token = request.query.get("access_token")
    return None if token is None else f"Bearer {token}"


def parse_authorization(said: str | None) -> tuple[str | None, str, str | None]:
    """The login, its passcode, and the token in a header. Raises HttpRefusal for a header that has none of them."""
    scheme, _, value = (said or "").partition(" ")
    if scheme.lower() == "basic":
        try:
            login, colon, passcode = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except ValueError:
            colon = ""
        if not colon:
            raise HttpRefusal(400, "bad-header", "The header Authorization has no name and passcode in base64.")
        return login, passcode, None
    if scheme.lower() == "bearer":
        return None, "", value.strip()
    if said:
        raise HttpRefusal(400, "bad-header", "The header Authorization is Basic or Bearer.")
    return None, "", None
