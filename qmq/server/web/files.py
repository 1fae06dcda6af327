"""Files of the package that the web port serves: the description of the API, and the client for browsers."""

from functools import cache
from importlib.resources import files
from typing import Final

JAVASCRIPT: Final = ("content-type", "text/javascript; charset=utf-8")


@cache
def file_of(name: str) -> bytes:
    """`openapi.json` (OpenAPI 3.1), or `qmq.js` (an ES module)."""
    return files("qmq.server.web").joinpath(name).read_bytes()
