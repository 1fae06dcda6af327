"""One request, as its consumer reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from qmq.protocols.http.codec.target import Pairs


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request whose head and body are complete.

    `path` has the decoded segments: `/v1/queues/a%2Fb` is `("v1", "queues", "a/b")`, `/` is `()`. `query` has the first
    value of each name, `query_pairs` all of them. `headers` has lower-case names; the values of a repeated header are
    joined with commas. Values are UTF-8, or Latin-1 if they are not UTF-8. `version` is "1.1" or "1.0".
    """

    method: str
    target: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    query_pairs: Pairs
    headers: Mapping[str, str]
    version: str
    keep_alive: bool
    """Whether the client may send another request on the connection."""
    expects_continue: bool
    """The client sends the body only after an interim response."""
    body: bytes = b""

    def with_body(self, body: bytes) -> "HttpRequest":
        """The same request with `body`."""
        return HttpRequest(
            self.method,
            self.target,
            self.path,
            self.query,
            self.query_pairs,
            self.headers,
            self.version,
            self.keep_alive,
            self.expects_continue,
            body,
        )
