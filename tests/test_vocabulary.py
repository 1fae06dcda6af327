"""Names and pages use the words of docs/glossary.md: retired words are refused, and one class has one name."""

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "qmq").rglob("*.py"))
TEXTS = {path: path.read_text("utf-8") for path in FILES}
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)

# Retired word → the word of the glossary.
RETIRED: Mapping[str, str] = {
    "adopting": "adoption",
    "anew": "again",
    "aside": "quarantined",
    "burial": "dead letter",
    "chance": "rng",
    "clerk": "pager",
    "desk": "context",
    "entangled": "foreign server",
    "errand": "load lock",
    "fate": "state",
    "fresh": "new, recent, or unseen",
    "gone": "lost, settled, or left",
    "hearer": "subscriber",
    "heedless": "no takeover support",
    "hub": "registry",
    "hurry": "deliver first",
    "lack": "missing range",
    "lacks": "missing ranges",
    "lane": "level, or partition",
    "lanes": "levels, or partitions",
    "life": "lifetime of a process or handle",
    "mend": "repair",
    "mender": "repairer",
    "mending": "repair",
    "mistakes": "problems",
    "nobody": "unknown user",
    "picking": "selective dispatch",
    "picture": "status, snapshot, or index",
    "pictures": "statuses, or snapshots",
    "recalls": "retained delivery",
    "releasing": "quarantine restore",
    "rest": "snapshot, or the name of what is left",
    "rests": "range snapshots",
    "retiring": "decommission",
    "roster": "consumers",
    "sealing": "incarnation collection",
    "stretch": "range",
    "teller": "dispatcher",
    "telling": "publisher",
    "tells": "publishes",
    "timekeeper": "deadline timer",
    "toil": "cost",
    "told": "delivered, or announced",
    "twin": "copy",
    "wants": "interest, or needs",
    "who": "name",
    "world": "environment",
}

# Names of the storage format, whose words are not retired: a record, and a flag of a batch.
ON_DISK = {"GONE", "REST"}

# Words that no page uses for nodes and programs.
NOT_IN_PROSE = {"told", "tells", "telling", "nobody", "somebody", "whoever", "anew", "clerk", "stretch", "mending"}

# Words that no text of the source has: docstrings, comments, help, errors and log lines.
NOT_IN_TEXTS = NOT_IN_PROSE | {"tell", "who", "whom", "anybody", "someone", "everybody", "everyone", "anyone"}

# Names of columns, fields and files on disk; a text of the source may name them.
FIELDS_ON_DISK: Mapping[str, set[str]] = {
    "qmq/storage/catalog/catalog.py": {"told"},
    "qmq/storage/format/cursor_record.py": {"told"},
    "qmq/storage/repair/fanout_logs.py": {"mending"},
}

# Words that no name of a test has.
NOT_IN_TESTS = NOT_IN_TEXTS | {"burial", "clerk", "mended", "toil"}

DUPLICATES_MAX = 12
"""Class names that two modules define. This number only shrinks."""


def parts(name: str) -> list[str]:
    """The words of an identifier in snake case or camel case."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def names(tree: ast.AST) -> Iterator[str]:
    """Every name that a module defines or uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_with(words: Collection[str]) -> list[Path]:
    """Those that may have one of `words`, as a word or as part of a name. Only these are worth a parser."""
    spellings = [spell(word) for word in words for spell in (str.lower, str.capitalize, str.upper)]
    found = re.compile(f"({'|'.join(spellings)})(?![a-z0-9])")
    return [path for path in FILES if found.search(TEXTS[path])]


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each comment and string of a module."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def prose_of(text: str) -> str:
    """Without code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL))


def test_no_name_has_a_retired_word() -> None:
    found = {
        (place(path), name)
        for path in files_with(RETIRED)
        for name in set(names(ast.parse(TEXTS[path]))) - ON_DISK
        if RETIRED.keys() & set(parts(name))
    }

    assert found == set(), "see RETIRED for the words of the glossary"


def test_a_dead_letter_is_called_one_in_every_name() -> None:
    found = {
        (place(path), name)
        for path in files_with(["letter", "letters"])
        for name in set(names(ast.parse(TEXTS[path])))
        for before, word in pairwise(["", *parts(name)])
        if word in {"letter", "letters"} and before != "dead"
    }

    assert found == set(), "a search for dead letters finds none of these"


def test_few_class_names_are_defined_twice() -> None:
    modules: dict[str, set[Path]] = defaultdict(set)
    for path in FILES:
        if place(path) == "qmq/client/blocking.py":
            continue  # its names are those of qmq.client, so that a program changes its style by one import
        for name in re.findall(r"^ *class (\w+)", TEXTS[path], re.MULTILINE):
            modules[name].add(path)

    twice = sorted(name for name, paths in modules.items() if len(paths) > 1)

    assert len(twice) <= DUPLICATES_MAX, twice


def test_no_text_of_the_source_has_a_word_for_people() -> None:
    found = [
        (place(path), line, word)
        for path in files_with(NOT_IN_TEXTS)
        for line, text in texts_of(TEXTS[path])
        for word in re.findall(r"[a-z]+", prose_of(text).lower())
        if word in NOT_IN_TEXTS and word not in FIELDS_ON_DISK.get(place(path), ())
    ]

    assert found == []


def test_no_test_is_named_with_a_word_for_people() -> None:
    found = [
        (place(path), name)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
        if NOT_IN_TESTS & set(parts(name))
    ]

    assert found == []


def test_no_page_uses_a_retired_word() -> None:
    found = [
        (place(page), line)
        for page in PAGES
        for line in prose_of(page.read_text("utf-8")).splitlines()
        if set(re.findall(r"[a-z]+", line.lower())) & NOT_IN_PROSE
    ]

    assert found == []


@pytest.mark.parametrize(
    ("name", "expected"), [("QueuePager", ["queue", "pager"]), ("TOLD_BYTES", ["told", "bytes"]), ("_rest", ["rest"])]
)
def test_words_of_a_name(name: str, expected: list[str]) -> None:
    assert parts(name) == expected
