"""Request targets: the segments of the path, and the query, decoded.

A segment is decoded after the path is split. So `/v1/queues/a%2Fb/messages` has the segment `a/b`, and no decoding can
add a segment. Dot segments are refused, encoded or not: a proxy in front may have resolved them differently, and then
its rules protect another resource.
"""

import re
from urllib.parse import unquote_to_bytes

from qmq.protocols.http.codec.refusals import HttpRefusal, bad_request

BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
CONTROL = re.compile("[\x00-\x1f\x7f]")
ABSOLUTE = re.compile("https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)

Pairs = tuple[tuple[str, str], ...]


def origin_form(method: str, target: str, host: str | None) -> str:
    """The path and query of `target`. Raises HttpRefusal for a target that this server has no resource for.

    An absolute target must name the host of the Host header: two parts of one request that name different hosts are
    read differently by different servers.
    """
    if target.startswith("/"):
        path = target
    elif absolute := ABSOLUTE.fullmatch(target):
        if host is None or absolute[1].lower() != host.lower():
            raise bad_request("the request target names another host than the Host header")
        path = absolute[2] if absolute[2].startswith("/") else "/" + absolute[2]
    elif method == "CONNECT":
        raise HttpRefusal(501, "method-not-implemented", "this server is no proxy: CONNECT is not implemented")
    elif target == "*" and method == "OPTIONS":
        path = "*"
    else:
        raise bad_request("the request target must begin with /")
    if "#" in path:
        raise bad_request("the request target has a fragment, which is not sent")
    return path


def split_target(target: str) -> tuple[tuple[str, ...], Pairs]:
    """The segments of the path and the pairs of the query of a target in origin form.

    `/` has no segments; a `/` at the end of a longer path is an empty last segment. Raises HttpRefusal.
    """
    path, _, query = target.partition("?")
    if path in ("/", "*"):
        return (), pairs_of(query)
    segments = tuple(_decode(segment, "path") for segment in path[1:].split("/"))
    if "." in segments or ".." in segments:
        raise bad_request("the path has a segment of dots")
    return segments, pairs_of(query)


def pairs_of(query: str) -> Pairs:
    """The names and values of a query, decoded, in order; `+` is a blank. Raises HttpRefusal."""
    if not query:
        return ()
    pairs = []
    for part in query.replace("+", " ").split("&"):
        if part:
            name, _, value = part.partition("=")
            pairs.append((_decode(name, "query"), _decode(value, "query")))
    return tuple(pairs)


def _decode(text: str, where: str) -> str:
    if "%" in text:
        if BROKEN_ESCAPE.search(text):
            raise bad_request(f"a percent sign in the {where} is not followed by two hexadecimal digits")
        try:
            text = unquote_to_bytes(text).decode("utf-8")
        except UnicodeDecodeError:
            raise bad_request(f"the {where} is not UTF-8") from None
        if where == "path" and CONTROL.search(text):
            raise bad_request("the path has a control character")
    return text
