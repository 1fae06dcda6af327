"""Makes a site of the project's pages: `make docs`.

The pages are plain Markdown that a forge shows as it is; nothing in them is written for Sphinx. The source directory
is the repository, so that links between README and docs/ work in both places. The navigation is made from the lists
below "All pages" of docs/index.md, and from the list of docs/decisions/README.md. A page that is in none of them is a
warning, and a warning fails the build. So does a page that loads anything from another host: the site works offline.
"""

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.errors import ExtensionError

project = "QMQ"
copyright = "the QMQ authors"
html_title = "QMQ"

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "build", "docs/benchmarks"]

extensions = ["myst_parser"]
myst_heading_anchors = 4

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False

SECTION = re.compile(r"^### (.+)$", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w./-]+)\.md\)")
LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)|"""
    r"""(?:import |from |@import |url\()\s*["']((?:https?:)?//[^"']+)"""
)
"""What a browser fetches with a page."""


def tree(pages: str, caption: str = "") -> str:
    """A hidden table of contents of the pages that a text links to."""
    names = "\n".join(dict.fromkeys(PAGE.findall(pages)))
    return f"\n```{{toctree}}\n:hidden:\n{caption and f':caption: {caption}'}\n\n{names}\n```\n"


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Append to the two lists what only Sphinx reads."""
    if name == root_doc:
        _, *parts = SECTION.split(source[0].partition("## All pages")[2])
        source[0] += "".join(tree(body, caption) for caption, body in zip(parts[::2], parts[1::2], strict=True))
    elif name == "docs/decisions/README":
        source[0] += tree(source[0])


def finish(app: Any, error: Exception | None) -> None:
    """Lead from the top of the site to its front page, and refuse what is loaded from elsewhere."""
    if error is None:
        made = Path(app.outdir)
        front = f'<!doctype html><title>QMQ</title><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (made / "index.html").write_text(front, "utf-8")
        for page in sorted([*made.rglob("*.html"), *made.rglob("*.css")]):
            for found in LOADED.findall(page.read_text("utf-8")):
                raise ExtensionError(f"{page.relative_to(made)} loads {''.join(found)}")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_lexer("cron", TextLexer)
    app.add_lexer("haproxy", TextLexer)
    app.add_lexer("stomp", TextLexer)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", finish)
