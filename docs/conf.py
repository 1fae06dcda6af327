"""Makes a site of the project's pages: `make docs`.

The pages are plain Markdown that a forge shows as it is; nothing in them is written for Sphinx. The source directory
is the repository, so that links between README and docs/ work in both places. The navigation is made from the links of
docs/index.md, section by section. A page that is not linked there is a warning, and a warning fails the build.
"""

import re
from pathlib import Path
from typing import Any

project = "QMQ"
copyright = "the QMQ authors"
html_title = "QMQ"

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "build", "docs/benchmarks"]

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False

SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w./-]+)\.md\)")


def navigation(text: str) -> str:
    """One hidden table of contents for each section of the index, of the pages that the section links to."""
    parts = SECTION.split(text)[1:]
    trees = []
    for caption, body in zip(parts[::2], parts[1::2], strict=True):
        pages = "\n".join(dict.fromkeys(PAGE.findall(body)))
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n")
    return "\n" + "\n".join(trees)


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Append to the index what only Sphinx reads."""
    if name == root_doc:
        source[0] += navigation(source[0])


def add_front_page(app: Any, error: Exception | None) -> None:
    """Lead from the top of the site to the index of the pages."""
    if error is None:
        front = f'<!doctype html><title>QMQ</title><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(front, "utf-8")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_front_page)
