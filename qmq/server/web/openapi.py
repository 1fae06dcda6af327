"""The description of the HTTP API, as it is served."""

from functools import cache
from importlib.resources import files


@cache
def openapi_page() -> bytes:
    """`openapi.json`, OpenAPI 3.1."""
    return files("qmq.server.web").joinpath("openapi.json").read_bytes()
