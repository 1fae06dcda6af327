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
)
"""Headers of each file, besides those of all responses."""

INDEX: Final = "index.html"
PAGES: Final = "pages"
"""The folder of the modules that each show one page."""


@cache
def contents() -> dict[str, tuple[str, bytes]]:
    """Path of each file below `static` → its content type, and its bytes."""
    static = files("qmq.admin.console").joinpath("static")
    found = {}
    for folder, prefix in ((static, ""), (static.joinpath(PAGES), f"{PAGES}/")):
        for file in folder.iterdir():
            suffix = file.name[file.name.rfind(".") :]
            if suffix in TYPES:
                found[prefix + file.name] = (TYPES[suffix], file.read_bytes())
    return found
