"""Makes a site of the project's pages: `make docs`.

The pages are plain Markdown that a forge shows as it is; nothing in them is written for Sphinx. The source directory
is the repository, so that links between README and docs/ work in both places. The navigation is made from the lists
below "All pages" of docs/index.md, and from the list of docs/decisions/README.md. A page that is in none of them is a
warning, and a warning fails the build. So does a page that loads anything from another host: the site works offline.
What people search for leads to the page that answers it (`SEARCHED`), and what is in docs/site comes with each page.
"""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
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
html_static_path = ["site"]
html_css_files = ["tables.css"]
html_search_scorer = str(Path(__file__).parent / "site/scorer.js")
html_favicon = "../qmq/admin/console/static/icon.svg"

SEARCHED = {
    "ack timeout": "queues.md#when-a-delivery-fails",
    "alerts": "first-mesh.md#metrics-and-alerts",
    "backup": "operations.md#back-up-and-restore",
    "certificates": "first-mesh.md#write-the-files",
    "clustering": "first-mesh.md#three-machines-in-fifteen-minutes",
    "consumer timeout": "queues.md#when-a-delivery-fails",
    "dead letters": "queues.md#when-a-delivery-fails",
    "delay": "queues.md#what-a-sender-may-ask",
    "docker": "operations.md#run-nodes-in-containers",
    "durable": "stomp.md#durable-subscriptions",
    "encryption": "first-mesh.md#write-the-files",
    "exactly once": "client.md#fanouts-exactly-once",
    "failover": "client.md#connecting",
    "kubernetes": "operations.md#run-nodes-in-containers",
    "memory": "operations.md#how-large-a-machine",
    "monitoring": "metrics.md#metrics-and-health",
    "ordering": "guarantees.md#delivery-and-order",
    "passwords": "configuration.md#users",
    "poison message": "howto-poisoned-queue.md#a-queue-is-poisoned-at-2-am",
    "prefetch": "queues.md#prefetch-windows",
    "prometheus": "metrics.md#scrape-a-node",
    "restore": "operations.md#back-up-and-restore",
    "resume": "stomp.md#durable-subscriptions",
    "retry": "queues.md#when-a-delivery-fails",
    "sizing": "operations.md#how-large-a-machine",
    "split brain": "no-majority.md#why-sending-needs-no-majority",
    "tls": "first-mesh.md#write-the-files",
    "ttl": "queues.md#what-a-sender-may-ask",
    "upgrade": "operations.md#upgrade-the-software",
    "users": "configuration.md#users",
}
"""What people search for → where they read of it: the first result, whatever the words of that page are."""

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


def add_searched(app: Any, page: nodes.document) -> None:
    """Give the sections of `SEARCHED` an entry that only the search reads."""
    for word, target in SEARCHED.items():
        name, _, anchor = target.partition(".md#")
        if app.env.docname == f"docs/{name}":
            (section,) = [section for section in page.findall(nodes.section) if section.get("slug") == anchor]
            section.insert(1, addnodes.index(entries=[("single", word, section["ids"][0], "main", None)]))


def pages_of_searched(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Read again at each build: Sphinx forgets the entries of pages that it does not write."""
    return sorted({f"docs/{target.partition('.md#')[0]}" for target in SEARCHED.values()})


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Append to the two lists what only Sphinx reads."""
    if name == root_doc:
        _, *parts = SECTION.split(source[0].partition("## All pages")[2])
        source[0] += "".join(tree(body, caption) for caption, body in zip(parts[::2], parts[1::2], strict=True))
    elif name == "docs/decisions/README":
        source[0] += tree(source[0])


def finish(app: Any, error: Exception | None) -> None:
    """Lead from the top to the front page, refuse what is loaded from elsewhere, and look into the search."""
    if error is None:
        made = Path(app.outdir)
        icon, to_front = '<link rel="icon" href="_static/icon.svg">', f"0; url={root_doc}.html"
        front = f'<!doctype html><title>QMQ</title>{icon}<meta http-equiv="refresh" content="{to_front}">\n'
        (made / "index.html").write_text(front, "utf-8")
        search = (made / "searchindex.js").read_text("utf-8")
        known = json.loads(search.removeprefix("Search.setIndex(").removesuffix(")"))["indexentries"]
        for word in SEARCHED.keys() - known.keys():
            raise ExtensionError(f"the search does not know {word}")
        for page in sorted([*made.rglob("*.html"), *made.rglob("*.css")]):
            for found in LOADED.findall(page.read_text("utf-8")):
                raise ExtensionError(f"{page.relative_to(made)} loads {''.join(found)}")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_lexer("cron", TextLexer)
    app.add_lexer("haproxy", TextLexer)
    app.add_lexer("stomp", TextLexer)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", add_searched)
    app.connect("env-get-outdated", pages_of_searched)
    app.connect("build-finished", finish)
