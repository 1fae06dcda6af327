"""The files of the console: a page, its style and its modules, as browsers get them. There is no build step.

What they ask of a node is the public API (docs/http.md). The page keeps no state of its own but settings of the view.
"""

from functools import cache
from importlib.resources import files
from typing import Final

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
"""Only what this node serves, and no text becomes a script or markup."""

SECURITY: Final = (
    ("content-security-policy", POLICY),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""Headers of each file."""

INDEX: Final = "index.html"


@cache
def contents() -> dict[str, tuple[str, bytes]]:
    """Name of each file → its content type, and its bytes."""
    found = {}
    for file in files("qmq.console").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in TYPES:
            found[file.name] = (TYPES[suffix], file.read_bytes())
    return found
