"""The response to a request that breaks a rule of HTTP: its status, a code for programs, and the rule.

Nothing of what was sent is repeated, so a response never carries bytes of the client into another program.
"""

from collections.abc import Sequence

from qmq.errors import RemoteProtocolError


class HttpRefusal(RemoteProtocolError):
    """A request that is refused with `status`, and with `headers` beside those of every response.

    Raised by the codec, it also means that the connection takes no further request: it is answered and closed.
    """

    def __init__(
        self, status: int, code: str, message: str, detail: str = "", headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(code, message, detail)
        self.status = status
        self.headers = tuple(headers)


def bad_request(message: str, detail: str = "") -> HttpRefusal:
    return HttpRefusal(400, "bad-request", message, detail)


def body_too_large(body_bytes_max: int) -> HttpRefusal:
    return HttpRefusal(413, "body-too-large", f"the body of a request has at most {body_bytes_max} bytes")


def head_too_large(head_bytes_max: int) -> HttpRefusal:
    return HttpRefusal(431, "headers-too-large", f"the headers of a request have at most {head_bytes_max} bytes")
